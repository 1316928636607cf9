"""Ranks exchange facts in a first call before it can run: a rank that waits there says so, gives up, and is told."""

import logging
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import SOON_S, comes, ensure, ensure_none, fresh, raised, set_from_here, unless

import hpcoll
from hpcoll import ArgumentError, CollectiveTimeout
from hpcoll.comm.diagnosis.control_plane import distances

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

WORLD = MPI.COMM_WORLD
NRANKS, LAST = WORLD.size, WORLD.size - 1
LATE = WORLD.rank == LAST
COUNTS = [rank + 1 for rank in range(NRANKS)]
TOTAL = sum(COUNTS)
# this rank's block
OWN = np.arange(TOTAL, dtype=np.float64)[sum(COUNTS[: WORLD.rank]) :][: COUNTS[WORLD.rank]]


def reduce_scatter_in_flight(comm: hpcoll.Communicator) -> bool:
    found = np.zeros(OWN.size)
    comm.Ireduce_scatter(np.arange(TOTAL, dtype=np.float64), found).Wait()
    return bool((found == NRANKS * OWN).all())


def gatherv(comm: hpcoll.Communicator) -> bool:
    found = np.zeros(TOTAL)
    comm.Gatherv(OWN, (found, COUNTS) if LATE else None, root=LAST, algorithm="binomial")
    return not LATE or bool((found == np.arange(TOTAL)).all())


def zeros(comm: hpcoll.Communicator) -> bool:
    found = comm.zeros((3, 2), np.int32)
    return found.shape == (3, 2) and found.dtype == np.int32 and not found.any()


def share(comm: hpcoll.Communicator) -> bool:
    found = comm.share(np.arange(5) if LATE else None, LAST)
    return bool((found == np.arange(5)).all())


CALLS = {  # one for each thing that is told
    "Ireduce_scatter": (reduce_scatter_in_flight, "Reduce_scatter, for which each rank tells its count"),
    "Gatherv": (gatherv, f"Gatherv, for which rank {LAST} tells the sizes of blocks"),
    "zeros": (zeros, "zeros with shape (3, 2) of int32"),
}


def used(**settings: Any) -> hpcoll.Communicator:
    """A communicator with settings, whose first use, and all else that is agreed on once, is over."""
    comm = fresh()
    comm.Barrier()
    made = [comm.Barrier_init() for _ in range(2)]  # there are message contexts for some more of them then
    del made
    set_from_here(comm, **settings)
    WORLD.Barrier()
    return comm


@pytest.mark.once
@pytest.mark.parametrize("name", CALLS)
def test_who_waits_gives_up_and_who_is_late_is_told(name: str) -> None:
    comm = used(timeout=2 * SOON_S if WORLD.rank else 1.0)  # the others are told, not left to find out
    if LATE:
        WORLD.Barrier()  # until all others have given up
    begun = time.monotonic()
    error = raised(lambda: CALLS[name][0](comm))
    took_s = time.monotonic() - begun
    if not LATE:
        WORLD.Barrier()
    text = str(error)
    wrong: list[Any] = unless(isinstance(error, CollectiveTimeout), repr(error))
    told = rf"(?s)at \S+:\d+, on .*, did not end in 1 s:.*\n  rank {LAST} is in no collective since"
    wrong += unless(re.search(told, text), text)
    wrong += unless(took_s < SOON_S, took_s)
    again = raised(comm.Barrier)
    wrong += unless(isinstance(again, ArgumentError) and "cannot be used" in str(again), repr(again))
    ensure_none(wrong)


class Told(logging.Handler):
    """Keeps warnings that begin in some way, and leaves a file when there is one."""

    def __init__(self, begin: str, file: Path | None) -> None:
        super().__init__()
        self._text = re.compile(re.escape(begin) + r"\d+, on .*, has waited for \d+ s: rank ")
        self._file, self.warnings = file, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text.match(record.getMessage()):
            self.warnings.append(record.getMessage())
            if self._file:
                self._file.touch()


@pytest.mark.parametrize("name", CALLS)
def test_who_waits_says_so(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, on rank 0, for which the last one waits; ranks in between, which come after that, know that it waits, and say nothing."""
    comm, said = used(warn=0.2), WORLD.bcast(tmp_path / "said")
    told, wrong = Told(f"{CALLS[name][1]} at {__file__}:", said if WORLD.rank == 0 else None), list[Any]()
    with caplog.at_level(logging.WARNING, "hpcoll"):
        caplog.clear()
        logging.getLogger("hpcoll").addHandler(told)
        wrong += unless(WORLD.rank == 0 or comes(said.exists), "rank 0 says nothing")
        if LATE and NRANKS > 2:
            time.sleep(0.5)
        wrong += unless(CALLS[name][0](comm), "wrong")
        logging.getLogger("hpcoll").removeHandler(told)
    wrong += unless(len(told.warnings) == (WORLD.rank == 0), caplog.messages)
    ensure_none(wrong)


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
