"""What ranks tell each other in a call before it can run: a rank that waits there says so, gives up, and is told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import SOON_S, agreed, fresh, raised

import hpcoll
from hpcoll import ArgumentError, CollectiveTimeout

pytestmark = pytest.mark.mpi(min_size=2)

WORLD = MPI.COMM_WORLD
NRANKS, LAST = WORLD.size, WORLD.size - 1
LATE = WORLD.rank == LAST
COUNTS = [rank + 1 for rank in range(NRANKS)]
TOTAL = sum(COUNTS)
OWN = np.arange(TOTAL, dtype=np.float64)[sum(COUNTS[: WORLD.rank]) :][: COUNTS[WORLD.rank]]  # this rank's block

Prepared = Callable[[hpcoll.Communicator], bool]  # makes a call; whether it gave what it must


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
    comm.Scatterv((np.arange(TOTAL, dtype=np.float64), COUNTS) if LATE else None, found, root=LAST, algorithm="binomial")
    return bool((found == OWN).all())


def zeros(comm: hpcoll.Communicator) -> bool:
    found = comm.zeros((3, 2), np.int32)
    return found.shape == (3, 2) and found.dtype == np.int32 and not found.any()


def share(comm: hpcoll.Communicator) -> bool:
    found = comm.share(np.arange(5) if LATE else None, LAST)
    return bool((found == np.arange(5)).all())


CALLS = {
    "Reduce_scatter": reduce_scatter, "Ireduce_scatter": reduce_scatter_in_flight, "Reduce_scatter_init": persistent_reduce_scatter,
    "Gatherv": gatherv, "Scatterv": scatterv, "zeros": zeros,
}  # fmt: skip
AGREED = {
    **dict.fromkeys(list(CALLS)[:3], "Reduce_scatter, for which each rank tells its count"),
    **{name: f"{name}, for which rank {LAST} tells the sizes of blocks" for name in ("Gatherv", "Scatterv")},
    "zeros": "zeros with shape (3, 2) of int32",
}  # fmt: skip
each_call = pytest.mark.parametrize("name", CALLS)


def used(monkeypatch: pytest.MonkeyPatch, **settings: str) -> hpcoll.Communicator:
    """A communicator with settings, whose first use, and all else that is agreed on once, is over."""
    for name, value in settings.items():
        monkeypatch.setenv(f"HPCOLL_{name}", value)
    comm = fresh()
    comm.Barrier()
    made = [comm.Barrier_init() for _ in range(2)]  # there are message contexts for some more of them then
    del made
    return comm


@each_call
def test_who_waits_gives_up_and_who_is_late_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = used(monkeypatch, TIMEOUT="500ms")
    if WORLD.rank:
        comm._context.limit_s = 2 * SOON_S  # it is told, not left to find out
    if LATE:
        WORLD.Barrier()  # until all others have given up
    begun = time.monotonic()
    error = raised(lambda: CALLS[name](comm))
    took_s = time.monotonic() - begun
    if not LATE:
        WORLD.Barrier()
    text = str(error)
    wrong: list[Any] = [] if isinstance(error, CollectiveTimeout) else [repr(error)]
    wrong += [] if "it did not end in 0.5 s: " in text and f"; rank {LAST} is in no collective since" in text else [text]
    wrong += [] if took_s < SOON_S else [took_s]
    again = raised(comm.Barrier)
    wrong += [] if isinstance(again, ArgumentError) and "cannot be used" in str(again) else [repr(again)]
    assert agreed(wrong) == []


@each_call
def test_who_waits_says_so(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    comm = used(monkeypatch, WARN="200ms")
    WORLD.Barrier()
    if LATE:
        time.sleep(0.7)
    with caplog.at_level(logging.WARNING, "hpcoll"):
        right = CALLS[name](comm)
    warned = [text for text in caplog.messages if text.startswith(f"{AGREED[name]} at {__file__}:") and " waits for 0 s: rank " in text]
    assert agreed([] if right and len(warned) == (WORLD.rank == 0) else [(right, caplog.messages)]) == []


@pytest.mark.parametrize("name", [*CALLS, "share"])
def test_all_comes_right_where_ranks_are_slow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now one, now another, by less than a look at the others takes and by more."""
    comm, wrong, call = used(monkeypatch), [], (CALLS | {"share": share})[name]
    for turn in range(2 * NRANKS):
        if turn % NRANKS == WORLD.rank:
            time.sleep(0.3 if turn < NRANKS else 1e-3)
        if not call(comm):
            wrong.append(turn)
    assert agreed(wrong) == []
