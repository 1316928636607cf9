"""A machine whose CUDA driver is the double: Python imports this at its start where this folder is in PYTHONPATH.

Whoever asks for libcuda.so.1 gets a double, and /dev/nvidiactl seems to be there. Two variables say what else is wrong with the machine:
``DOUBLE_OPTIONS``, the options of `cuda_double.install` as JSON; ``BREAKS``, a JSON object from a piece of a command line to "hang" or
"crash", which is what Python programs started by such a command do.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_NAME, _DEVICE_FILE = "libcuda.so.1", "/dev/nvidiactl"
_load, _exists = ctypes.CDLL, os.path.exists
_made: list[Any] = []


def _library(name: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a name of a library stands for; of the driver's a process has one."""
    if name != _NAME:
        return _load(name, *arguments, **options)
    if not _made:
        sys.path.append(str(Path(__file__).parents[2]))
        from cuda_double import install

        _made.append(install(**{"current": None, **json.loads(os.environ.get("DOUBLE_OPTIONS", "{}"))}))
    return _made[0].library


def _break() -> None:
    """Hang or crash where this process is told to."""
    line = " ".join(sys.orig_argv)
    for piece, how in json.loads(os.environ.get("BREAKS", "{}")).items():
        if piece in line:
            if how == "crash":
                os.abort()
            while True:
                time.sleep(1)


_break()
ctypes.CDLL = _library  # type: ignore[assignment,misc]
os.path.exists = lambda path: path == _DEVICE_FILE or _exists(path)  # type: ignore[assignment]
