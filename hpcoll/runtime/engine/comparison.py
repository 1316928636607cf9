"""The comparison of calls, compiled by itself: who reads a trace need not compile the engine.

`tell` and `compare` take the address of a table (`hpcoll.runtime.program.wait_fields`).
"""

import ctypes
from functools import partial
from pathlib import Path

import numpy as np

from hpcoll.kernels.machine_code import load_all
from hpcoll.runtime.program import wait_fields as w
from hpcoll.schedules.collectives import COLLECTIVES

_FOLDER = Path(__file__).parent
_MADE_OF = (
    Path(__file__),
    *(_FOLDER / "compiled" / f"{name}.py" for name in ("waits", "checks", "ffi")),
    *(_FOLDER.parent / "program" / f"{name}.py" for name in ("fields", "wait_fields", "opcodes")),
)
_KINDS = {
    "bcast": w.FROM_ROOT,
    "scatter": w.FROM_ROOT,
    "reduce": w.TO_ROOT,
    "gather": w.TO_ROOT,
    "scan": w.BEFORE,
    "exscan": w.BEFORE,
}
KINDS = np.zeros(1 << w.COLLECTIVE_BITS, np.int64)  # by number of the collective
KINDS[: len(COLLECTIVES)] = [
    w.NEAR if collective.neighbours else _KINDS.get(name, w.ALL) for name, collective in COLLECTIVES.items()
]


def _compile(name: str, symbol: str) -> bytes:
    from hpcoll.kernels.object_code import object_file
    from hpcoll.runtime.engine.compiled import waits

    return object_file(getattr(waits, name).py_func, "void(int64)", symbol)


_function = ctypes.CFUNCTYPE(None, ctypes.c_int64)
compare, tell = map(
    _function, load_all({name: partial(_compile, name) for name in ("compare", "tell")}, _MADE_OF)
)
