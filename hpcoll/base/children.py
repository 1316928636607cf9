"""Processes of Python that hpcoll starts: none imports from the working directory, where other users may have put modules.

``python -c`` looks there first. From Python 3.11 on ``-P`` forbids that: there Python itself may import before the program begins. Python
3.10 has no such option, and imports nothing before. Imports nothing of hpcoll.
"""

import os
import sys
from pathlib import Path

# folders of hpcoll and of Python
_OWN = [str(Path(file).resolve().parents[above]) for file, above in ((__file__, 2), (os.__file__, 0))]


def python(program: str, *arguments: str) -> list[str]:
    """Return the command of a process of this Python that runs the text of a program; it imports from `trusted`."""
    safely = ("-P",) if sys.version_info >= (3, 11) else ()
    return [sys.executable, *safely, "-c", f"import sys; sys.path[:] = {trusted()!r}\n{program}", *arguments]


def trusted() -> list[str]:
    """Return the folders from which this process imports, without the working directory and what is relative to it.

    Where hpcoll or Python lies in the working directory, that comes last.
    """
    folders = [
        folder
        for folder in sys.path
        if os.path.isabs(folder) and not (os.path.isdir(folder) and os.path.samefile(folder, os.curdir))
    ]
    return [*folders, *(folder for folder in _OWN if folder not in folders)]
