"""A machine whose CUDA driver is the double: Python imports this at its start where this folder is in PYTHONPATH.

Whoever asks for libcuda.so.1 gets a double, and /dev/nvidiactl seems to be there.
"""

import ctypes
import os
import sys
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

        _made.append(install(current=None))
    return _made[0].library


ctypes.CDLL = _library  # type: ignore[assignment,misc]
os.path.exists = lambda path: path == _DEVICE_FILE or _exists(path)  # type: ignore[assignment]
