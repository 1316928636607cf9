"""`call_compiled`, the one entrance from Python into compiled code.

It is compiled, kept on disk under a digest of its sources, and called as a function of C, without Numba's dispatch. Where it is kept,
Numba is not imported. The interpreter's `advance` is compiled by itself: a third of the work, which another rank can do meanwhile.
"""

from functools import lru_cache, partial
from pathlib import Path

from hpcoll.kernels.machine_code import load_all, python_function

_HPCOLL = Path(__file__).parents[2]
# The sources of compiled code and of its constants.
_MADE_OF = (
    Path(__file__),
    *sorted((_HPCOLL / "runtime/engine").rglob("*.py")),
    *sorted((_HPCOLL / "runtime/program").glob("*.py")),
    _HPCOLL / "schedules/ir.py",
    _HPCOLL / "base/sizes.py",
    *(
        _HPCOLL / "kernels" / f"{name}.py"
        for name in ("__init__", "machine_code", "object_code", "one_shot_layout")
    ),
)


def _compile(name: str, symbol: str) -> bytes:
    from hpcoll.runtime.engine.compiled import dispatch

    made: bytes = getattr(dispatch, f"{name}_file")(symbol)
    return made


@lru_cache
def advance_noting_address() -> int:
    """Return the address of the interpreter's `advance` that notes steps, which is compiled when a trace first asks for them."""
    return load_all({"advance_noting": partial(_compile, "advance_noting")}, _MADE_OF)[0]


_PARTS = "engine", "advance", "region"  # the longer ones first
_engine, advance_address, region_address = load_all(
    {name: partial(_compile, name) for name in _PARTS}, _MADE_OF
)
call_compiled = python_function("call_compiled", _engine)
run_cached = call_compiled  # with the address of a table, what is sent, what is received and the operator: `call_lookup.run_cached`
