"""A call as flight records and texts have it: spelled as a program writes the method, and where the program called it."""

from types import SimpleNamespace

import mpi4py
import pytest

mpi4py.rc.initialize = False  # importing hpcoll.comm must not start MPI

from mpi4py import MPI  # noqa: E402

from hpcoll.cli.inspect.flight_records import RecordedCall  # noqa: E402
from hpcoll.cli.inspect.wording import method, spelled  # noqa: E402
from hpcoll.comm.diagnosis.flight_recorder import _of_log  # noqa: E402
from hpcoll.comm.plans.signature import _COLLECTIVES, _OPS, Signature  # noqa: E402
from hpcoll.comm.status.blocked_call import BlockedCall  # noqa: E402
from hpcoll.schedules.collectives import COLLECTIVES  # noqa: E402

SUM = 1 + _OPS.index("sum")
V = ("allgather", "gather", "scatter", "alltoall", "reduce_scatter")  # whose blocks may differ


@pytest.mark.parametrize("varies", [0, 1])
@pytest.mark.parametrize("collective", _COLLECTIVES)
def test_inspect_spells_calls_as_errors_do(collective: str, varies: int) -> None:
    reduces = COLLECTIVES[collective].reduces
    one = Signature(_COLLECTIVES.index(collective), varies, 4, SUM if reduces else 0, 0, 0, 0)
    found = one.record(24)
    call = RecordedCall(1, "blocking", begun=0.0, ended=None, state="waiting", step="", awaits=(), caller="", **found)
    assert spelled(call) == one.text(24)


@pytest.mark.parametrize("lane", ["blocking", "in flight 1", "persistent 3"])
@pytest.mark.parametrize(("collective", "varies"), [*((name, 0) for name in _COLLECTIVES), *((name, 1) for name in V)])
def test_programs_have_these_methods(collective: str, varies: int, lane: str) -> None:
    """With the names that mpi4py has for calls in flight and persistent requests, too."""
    found = Signature(_COLLECTIVES.index(collective), varies, 4, 0, 0, 0, 0).record(24)
    call = RecordedCall(1, lane, begun=0.0, ended=None, state="waiting", step="", awaits=(), caller="", **found)
    assert callable(getattr(MPI.Intracomm, method(call)))
    assert spelled(call).startswith(f"{method(call)}(")


def test_where_the_program_called() -> None:
    """The place begins where the call ends, whatever its folders are called."""
    word = Signature(_COLLECTIVES.index("bcast"), 0, 4, 0, 0, 0, 0).word
    log = SimpleNamespace(records=lambda: [(3, word, 64, 10, 0), (4, word, 64, 11, 0)])
    place = "/home/runs (2) at night/train at 9.py:9"
    wait = BlockedCall("", 0, 4, f"Bcast(float64[8], root=0) at {place}", "", (1,), "row 1 of 3")
    assert [call["caller"] for call in _of_log(log, "blocking", [wait])] == ["", place]  # type: ignore[arg-type]


def test_the_method_of_blocks() -> None:
    """Blocks of one size and of several have methods of their own names."""
    at = _COLLECTIVES.index("reduce_scatter")
    found = [Signature(at, varies, 4, SUM, 0, 0, 0).record(3)["collective"] for varies in (0, 1)]
    assert found == ["reduce_scatter_block", "reduce_scatter"]
