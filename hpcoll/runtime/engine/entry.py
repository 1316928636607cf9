"""`call_compiled`, the one entrance from Python into compiled code.

It is compiled, kept on disk under a name that holds a digest of all it was made from, and called as a function of C, without Numba's
dispatch. Where it is kept, Numba is not imported. What runs the rows of programs is compiled by itself: a third of the work, which another
rank can do meanwhile.
"""

from pathlib import Path

from hpcoll.kernels.machine_code import load_all, python_function
from hpcoll.runtime.program.fields import ACTIVATE as ACTIVATE
from hpcoll.runtime.program.fields import HOLD as HOLD
from hpcoll.runtime.program.fields import LET_GO as LET_GO
from hpcoll.runtime.program.fields import RESIZE as RESIZE
from hpcoll.runtime.program.fields import RUN as RUN
from hpcoll.runtime.program.fields import SERVE as SERVE
from hpcoll.runtime.program.fields import START as START
from hpcoll.runtime.program.fields import UNPACK_RESULTS as UNPACK_RESULTS
from hpcoll.runtime.program.fields import WAIT as WAIT

_HPCOLL = Path(__file__).parents[2]
# What compiled code is made of, and where its constants come from.
_MADE_OF = (
    Path(__file__), *sorted((_HPCOLL / "runtime/engine").rglob("*.py")), *sorted((_HPCOLL / "runtime/program").glob("*.py")),
    _HPCOLL / "schedules/ir.py", _HPCOLL / "base/sizes.py",
)  # fmt: skip


def _compile(symbol: str) -> bytes:
    from hpcoll.runtime.engine.compiled.dispatch import dispatch_file

    return dispatch_file(symbol)


def _compile_advance(symbol: str) -> bytes:
    from hpcoll.runtime.engine.compiled.dispatch import advance_file

    return advance_file(symbol)


_engine, advance_address = load_all({"engine": _compile, "advance": _compile_advance}, _MADE_OF)  # what takes longest first
call_compiled = python_function("call_compiled", _engine)
run_cached = call_compiled  # with the address of a table, what is sent, what is received and the operator: `call_lookup.run_cached`
