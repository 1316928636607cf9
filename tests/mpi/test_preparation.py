"""Ranks exchange facts in a first call before it can run: a rank that waits there says so, gives up, and is told."""

import logging
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import SOON_S, comes, ensure_none, fresh, raised, set_from_here, unless

import hpcoll
from hpcoll import ArgumentError, CollectiveTimeout

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

WORLD = MPI.COMM_WORLD
NRANKS, LAST = WORLD.size, WORLD.size - 1
LATE = WORLD.rank == LAST
COUNTS = [rank + 1 for rank in range(NRANKS)]
TOTAL = sum(COUNTS)
# this rank's block
OWN = np.arange(TOTAL, dtype=np.float64)[sum(COUNTS[: WORLD.rank]) :][: COUNTS[WORLD.rank]]


def reduce_scatter(comm: hpcoll.Communicator) -> bool:
    found = np.zeros(OWN.size)
    comm.Reduce_scatter(np.arange(TOTAL, dtype=np.float64), found)
    return bool((found == NRANKS * OWN).all())


def reduce_scatter_in_flight(comm: hpcoll.Communicator) -> bool:
    found = np.zeros(OWN.size)
    comm.Ireduce_scatter(np.arange(TOTAL, dtype=np.float64), found).Wait()
    return bool((found == NRANKS * OWN).all())


def persistent_reduce_scatter(comm: hpcoll.Communicator) -> bool:
    found = np.zeros(OWN.size)
    request = comm.Reduce_scatter_init(np.arange(TOTAL, dtype=np.float64), found)
    request.Start()
    request.Wait()
    return bool((found == NRANKS * OWN).all())


def gatherv(comm: hpcoll.Communicator) -> bool:
    found = np.zeros(TOTAL)
    comm.Gatherv(OWN, (found, COUNTS) if LATE else None, root=LAST, algorithm="binomial")
    return not LATE or bool((found == np.arange(TOTAL)).all())


def scatterv(comm: hpcoll.Communicator) -> bool:
    found = np.zeros(OWN.size)
    comm.Scatterv(
        (np.arange(TOTAL, dtype=np.float64), COUNTS) if LATE else None, found, root=LAST, algorithm="binomial"
    )
    return bool((found == OWN).all())


def zeros(comm: hpcoll.Communicator) -> bool:
    found = comm.zeros((3, 2), np.int32)
    return found.shape == (3, 2) and found.dtype == np.int32 and not found.any()


def share(comm: hpcoll.Communicator) -> bool:
    found = comm.share(np.arange(5) if LATE else None, LAST)
    return bool((found == np.arange(5)).all())


CALLS = {
    "Reduce_scatter": reduce_scatter,
    "Ireduce_scatter": reduce_scatter_in_flight,
    "Reduce_scatter_init": persistent_reduce_scatter,
    "Gatherv": gatherv,
    "Scatterv": scatterv,
    "zeros": zeros,
}
AGREED = {
    **dict.fromkeys(list(CALLS)[:3], "Reduce_scatter, for which each rank tells its count"),
    **{name: f"{name}, for which rank {LAST} tells the sizes of blocks" for name in ("Gatherv", "Scatterv")},
    "zeros": "zeros with shape (3, 2) of int32",
}
SHORT = ("Ireduce_scatter", "Gatherv", "zeros")  # in the short run: one for each thing that is told


def each(*names: str, short: tuple[str, ...] = SHORT) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [name if name in short else pytest.param(name, marks=pytest.mark.full) for name in names]
    )


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
@each(*CALLS, short=SHORT[:1])
def test_who_waits_gives_up_and_who_is_late_is_told(name: str) -> None:
    comm = used(timeout=2 * SOON_S if WORLD.rank else 1.0)  # the others are told, not left to find out
    if LATE:
        WORLD.Barrier()  # until all others have given up
    begun = time.monotonic()
    error = raised(lambda: CALLS[name](comm))
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


@each(*CALLS, short=SHORT[:1])
def test_who_waits_says_so(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, on rank 0, for which the last one waits; ranks in between, which come after that, know that it waits, and say nothing."""
    comm, said = used(warn=0.2), WORLD.bcast(tmp_path / "said")
    told, wrong = Told(f"{AGREED[name]} at {__file__}:", said if WORLD.rank == 0 else None), list[Any]()
    with caplog.at_level(logging.WARNING, "hpcoll"):
        caplog.clear()
        logging.getLogger("hpcoll").addHandler(told)
        wrong += unless(WORLD.rank == 0 or comes(said.exists), "rank 0 says nothing")
        if LATE and NRANKS > 2:
            time.sleep(0.5)
        wrong += unless(CALLS[name](comm), "wrong")
        logging.getLogger("hpcoll").removeHandler(told)
    wrong += unless(len(told.warnings) == (WORLD.rank == 0), caplog.messages)
    ensure_none(wrong)
