"""Flight records as they are written: calls spelled as programs write them, and the place of the program that made each."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from hpcoll.cli.inspect.flight_records import RecordedCall
from hpcoll.cli.inspect.wording import method, spelled
from hpcoll.comm.diagnosis.flight_recorder import _of_log
from hpcoll.comm.plans.signature import _COLLECTIVES, _OPS, Signature
from hpcoll.comm.status.blocked_call import BlockedCall
from hpcoll.comm.status.call_site import place_of_caller
from hpcoll.schedules.collectives import COLLECTIVES


@pytest.mark.parametrize(
    ("name", "seen"),
    [("hpcoll_app", True), ("hpcoll_app.model", True), ("hpcoll.comm.x", False), ("hpcoll", False)],
)
def test_packages_whose_names_begin_alike(name: str, seen: bool) -> None:
    """Are the program's own."""
    there = {"__name__": name, "place_of_caller": place_of_caller}
    exec(compile("place = place_of_caller()", f"{name}.py", "exec"), there)
    place = there["place"]
    assert isinstance(place, tuple)
    assert (place[0].co_filename == f"{name}.py") == seen


SUM = 1 + _OPS.index("sum")
V = ("allgather", "gather", "scatter", "alltoall", "reduce_scatter")  # whose blocks may differ


@pytest.mark.parametrize("varies", [0, 1])
@pytest.mark.parametrize("collective", _COLLECTIVES)
def test_inspect_spells_calls_as_errors_do(collective: str, varies: int) -> None:
    reduces = COLLECTIVES[collective].reduces
    one = Signature(_COLLECTIVES.index(collective), varies, 4, SUM if reduces else 0, 0, 0, 0)
    found = one.record(24)
    call = RecordedCall(
        1, "blocking", begun=0.0, ended=None, state="waiting", step="", awaits=(), caller="", **found
    )
    assert spelled(call) == one.text(24)


@pytest.mark.parametrize("lane", ["blocking", "in flight 1", "persistent 3"])
@pytest.mark.parametrize(
    ("collective", "varies"), [*((name, 0) for name in _COLLECTIVES), *((name, 1) for name in V)]
)
def test_programs_have_these_methods(collective: str, varies: int, lane: str) -> None:
    """With the names that mpi4py has for calls in flight and persistent requests, too."""
    found = Signature(_COLLECTIVES.index(collective), varies, 4, 0, 0, 0, 0).record(24)
    call = RecordedCall(
        1, lane, begun=0.0, ended=None, state="waiting", step="", awaits=(), caller="", **found
    )
    assert callable(getattr(MPI.Cartcomm, method(call)))
    assert spelled(call).startswith(f"{method(call)}(")


def test_where_the_program_called() -> None:
    """The place begins where the call ends, whatever its folders are called."""
    word = Signature(_COLLECTIVES.index("bcast"), 0, 4, 0, 0, 0, 0).word
    log = SimpleNamespace(
        index=0, records=lambda: (3, np.array([[word, 64, 10, 0, 0, 0, 0, 0], [word, 64, 11, 0, 0, 0, 0, 0]]))
    )
    resources = SimpleNamespace(counted=lambda lane, number: number - 2)
    place = "/home/runs (2) at night/train at 9.py:9"
    wait = BlockedCall(
        "1.0.0", 0, 4, f"Bcast(float64[8], root=0) at {place}", "rows", (1,), step="row 1 of 3"
    )
    calls = _of_log(resources, log, "blocking", [wait])  # type: ignore[arg-type]
    assert [(call["caller"], call["counted"]) for call in calls] == [("", 1), (place, 2)]
