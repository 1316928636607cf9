"""Who comes late: the rank that does is named on all ranks, with its cause; none where none does. The answer at the end of the program."""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from internals import resources
from launching import command, finished
from mpi4py import MPI
from reference import agreed

import hpcoll
from hpcoll.analysis.waits import LEAST_SHARE
from hpcoll.comm.telemetry.account import rank_waits

X, Y = np.ones(4), np.empty(4)


def calls(comm: hpcoll.Communicator, late: int, delay: Callable[[], None], ncalls: int = 40) -> None:
    """Make calls of which each has compiled code already; ``delay`` is what one rank does before some."""
    for i in range(ncalls):
        if comm.rank == late and i % 4 == 0:
            delay()
        comm.Allreduce(X, Y)


@pytest.fixture
def comm() -> hpcoll.Communicator:
    """A communicator that has run its calls before, whose waits are forgotten."""
    made = hpcoll.Communicator(MPI.COMM_WORLD)
    calls(made, -1, lambda: None)
    made.stragglers(reset=True)
    return made


@pytest.mark.mpi(min_size=2)
@pytest.mark.once
def test_a_rank_that_sleeps_is_named(comm: hpcoll.Communicator) -> None:
    """All ranks get the same value; the seconds that it cost are those that it slept, and the place is this file."""
    last = comm.size - 1
    calls(comm, last, lambda: time.sleep(0.1))
    found = comm.stragglers()
    row, slept = found.rows[last], 1.0
    wrong = (
        []
        if found.worst == last and 0.9 * slept < row.caused_s < 1.5 * slept and row.last >= 0.25
        else [str(found)]
    )
    wrong += (
        [] if "test_stragglers.py:" in found.verdict and found.places[0].most_for == last else [found.places]
    )
    wrong += [] if len(set(comm.allgather(str(found)))) == 1 and found.calls == 40 else [found.calls]
    assert agreed(wrong) == []


@pytest.mark.mpi(min_size=2)
def test_none_is_named_where_none_is_late(comm: hpcoll.Communicator) -> None:
    """Ranks that wait for each other in turns, by as much, do not stand out."""
    for i in range(8 * comm.size):
        calls(comm, i % comm.size, lambda: time.sleep(0.02), 4)
    found = comm.stragglers()
    assert (
        agreed([] if found.worst is None and found.verdict.startswith("no rank stands out") else [str(found)])
        == []
    )


@pytest.mark.mpi(min_size=2)
def test_calls_are_counted_by_region(comm: hpcoll.Communicator) -> None:
    """Also where a program goes through more regions than are told apart at once."""
    for i in range(150):
        with comm.region(f"part {i % 50}"):
            calls(comm, 0, lambda: time.sleep(0.001), 2)
    comm.stragglers()
    ncalls, owners = Counter[str](), set[int]()
    for place in rank_waits(resources(comm)).places:
        ncalls[place.region] += place.calls
        owners.update(place.waited_for)
    good = ncalls == {f"part {i}": 6 for i in range(50)} and (comm.rank == 0 or 0 in owners)
    assert agreed([] if good else [ncalls, owners]) == []


@pytest.mark.mpi(min_size=2)
def test_reset_begins_anew(comm: hpcoll.Communicator) -> None:
    """What was before is forgotten."""
    calls(comm, 0, lambda: time.sleep(0.3), 8)
    before = comm.stragglers(reset=True)
    calls(comm, -1, lambda: None, 12)
    after = comm.stragglers()
    good = before.calls == 8 and after.calls == 12 and after.rows[0].caused_s < 0.3 <= before.rows[0].caused_s
    assert agreed([] if good else [str(before), str(after)]) == []


@pytest.mark.mpi(min_size=3)
def test_the_first_of_a_chain_is_blamed(comm: hpcoll.Communicator) -> None:
    """A rank that is late for all because it waited in a smaller communicator passes the blame on."""
    first, second = comm.size - 1, comm.size - 2
    pair = comm.Split(comm.rank >= second)
    calls(pair, -1, lambda: None, 4)
    comm.stragglers(reset=True)
    for _ in range(10):
        if comm.rank == first:
            time.sleep(0.1)
        if comm.rank >= second:
            pair.Allreduce(X, Y)
        comm.Bcast(Y, second)  # for which nobody awaits the one that slept
    found = comm.stragglers()
    late, held_up = found.rows[first], found.rows[second]
    good = (
        found.worst == first
        and 0.9 < late.caused_s < 1.5
        and held_up.caused_s < LEAST_SHARE * found.run_s + 0.3
    )
    good = good and held_up.inherited_s > 0.3 and f"most by rank {first}" in held_up.why
    assert agreed([] if good else [str(found), found.rows]) == []
    pair.Free()


SCRIPT = """
x, y = np.ones(4), np.empty(4)
for i in range(20):
    comm.Allreduce(x, y)
comm.stragglers(reset=True)
for i in range(20):
    if comm.rank == 1:
        time.sleep(0.02)
    comm.Allreduce(x, y)
"""
ENDS = {
    "": "rank 1 (",
    "MPI.Finalize()": "rank 1 (",
    "time.sleep(1.0 * comm.rank)": "rank 1 (",
    "if os.fork() == 0: os._exit(0)\nos.wait()": "rank 1 (",
    "if comm.rank == 1: raise SystemExit(0)": "rank 1 (",
    "if comm.rank == 1: raise ValueError('mine')": "no summary of who came late: rank 1 was ended by ValueError: mine",
    "if comm.rank == 1: time.sleep(0.5); raise ValueError('mine')": "no summary of who came late: rank 1 was ended by ValueError: mine",
}
PLAIN = ("", "time.sleep(1.0 * comm.rank)", "if os.fork() == 0: os._exit(0)\nos.wait()")


@pytest.mark.mpi
@pytest.mark.smoke
@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank")
@pytest.mark.parametrize(
    "end", [pytest.param(one, marks=pytest.mark.full) if one in PLAIN else one for one in ENDS]
)
def test_the_summary_is_printed_once_at_the_end(end: str) -> None:
    """However the program ends; where a rank has failed, no rank waits for it, and the status is as without a summary."""
    done = finished(command(2, SCRIPT + end), {"HPCOLL_SUMMARY": "1"})
    said = [
        line for line in done.stderr.splitlines() if line.startswith("hpcoll: ") and "compile" not in line
    ]
    assert sum(ENDS[end] in line for line in said) == 1, said
    assert sum("rank  host" in line for line in said) == (0 if "ValueError" in end else 1), said
    assert (done.returncode != 0) == ("ValueError" in end)


@pytest.mark.mpi
@pytest.mark.smoke
@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank")
def test_a_rank_that_calls_on_is_told_that_the_other_has_ended() -> None:
    """A rank that waits for the others' summary has left for those that still call, as it has without one."""
    done = finished(command(2, SCRIPT + "if comm.rank == 1: comm.Allreduce(x, y)"), {"HPCOLL_SUMMARY": "1"})
    assert done.returncode != 0
    assert "has ended its program" in done.stderr
    assert done.stderr.count("no summary of who came late") == 1


@pytest.mark.mpi
@pytest.mark.smoke
@pytest.mark.skipif(MPI.COMM_WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank")
def test_a_summary_says_which_ranks_it_is_about() -> None:
    """Ranks in it are those of the communicator, of which there may be several."""
    made = "from mpi4py import MPI\nimport hpcoll\nhpcoll.Communicator(MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank)).Barrier()"
    done = finished(command(2, made, head=""), {"HPCOLL_SUMMARY": "1"})
    assert all(f"ranks, rank {rank} of MPI_COMM_WORLD" in done.stderr for rank in range(2))
