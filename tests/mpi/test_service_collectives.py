"""Service collectives, by which ranks agree before a call runs: a rank that gives up and one that comes late both get an error."""

import numpy as np
import pytest
from mpi4py import MPI
from reference import ensure, ensure_none, fresh, unless

import hpcoll
from hpcoll.comm.diagnosis.control_plane import distances

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

WORLD = MPI.COMM_WORLD
LATE = WORLD.rank == WORLD.size - 1
LIMIT = "300ms"


@pytest.fixture(params=["shared memory", "messages"])
def limited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit for all that follows, as on a node and as between nodes."""
    if request.param == "messages":
        monkeypatch.setenv("HPCOLL_SHM", "0")
    fresh()  # what a group needs is made without a limit
    monkeypatch.setenv("HPCOLL_TIMEOUT", LIMIT)


def errors_of(comm: MPI.Intracomm) -> list[str]:
    """Return what a call raises, on the last rank after all others have given up; and what raises then the next one."""
    found = []
    for turn in range(2):
        if LATE and not turn:
            WORLD.Barrier()
        try:
            hpcoll.Communicator(comm).Allreduce(np.ones(3), np.zeros(3))
            found.append("went on")
        except hpcoll.HpcollError as error:
            found.append(f"{type(error).__name__}: {error}")
        if not LATE and not turn:
            WORLD.Barrier()
    return found


@pytest.mark.once
@pytest.mark.usefixtures("limited")
def test_who_comes_late_to_a_first_use_is_told() -> None:
    """Instead of waiting for ever, in the MPI library, for those who gave up."""
    first, second = errors_of(WORLD.Dup())
    wrong = unless(first.startswith("CollectiveTimeout: ") and "not all of" in first, first)
    wrong += unless(
        second.startswith("ArgumentError: ") and "cannot be used: not all ranks came to the first" in second,
        second,
    )
    ensure_none(wrong)
    total = np.zeros(3)
    fresh().Allreduce(np.ones(3), total, timeout=60)
    ensure((total == WORLD.size).all(), total)


@pytest.mark.parametrize("nranks", [2, 3, 8, 9, 100, 1000, 4097])
def test_every_rank_hears_of_a_failure(nranks: int) -> None:
    """In a few steps, each of which tells a few ranks."""
    told, steps = {0}, 0
    while len(told) < nranks:
        told |= {(rank + distance) % nranks for rank in told for distance in distances(nranks)}
        steps += 1
    assert steps <= 1 + np.log(nranks) / np.log(8)
    assert len(distances(nranks)) <= 7 * (1 + np.log(nranks) / np.log(8))
