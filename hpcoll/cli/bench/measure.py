"""Timing of candidates side by side in one run: every round calls each of them once, in an order drawn anew.

So a disturbance of the machine disturbs all alike, and the ratio of two medians means something. All ranks draw the same
order; before each timing they meet in a barrier that is not timed.
"""

import gc
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.cli.bench.modes import Call

SMALL_NBYTES = 64 << 10  # below, calls are timed in batches, so that neither clock nor barrier shows
BATCH_S = 100e-6  # a batch takes at least this long unless told
MAX_BATCH = 1000
BARRIER_S = 20e-6  # guess of what surrounds a timing
ROUNDS = 5, 1000  # least and most
_SEED = 20260


@dataclass(frozen=True)
class Pace:
    """The length of a measurement."""

    rounds: int | None = None  # rounds per size; None: as many as fit ``budget_s``, between 5 and 1000
    warmup: int | None = None  # calls of each candidate before; None: 20 for small messages, 1 for others
    batch: int | None = (
        None  # calls per timing; None: enough for ``batch_s`` where the message is small, else 1
    )
    batch_s: float = BATCH_S  # seconds that a batch takes at least
    budget_s: float = 1.0  # seconds per size
    average: int = 3  # the time that counts: 0 rank 0's, 1 the average, 2 the least, 3 the greatest
    per_iter: bool = False  # keep the times of each rank in each round


class Times(NamedTuple):
    """Seconds per call, ``[candidate, round]``, equal on all ranks; calls per timing; on request ``[rank, candidate, round]``."""

    seconds: np.ndarray
    batch: int
    by_rank: np.ndarray | None = None


def measure(comm: MPI.Intracomm, calls: Sequence[Call], nbytes: int, pace: Pace) -> Times:
    """Time all calls; collective over ``comm``, which may be the one they use."""
    small = nbytes < SMALL_NBYTES
    warmup = pace.warmup if pace.warmup is not None else 20 if small else 1
    estimates = np.array([_timed(comm, call, max(1, warmup)) for call in calls])
    comm.Allreduce(MPI.IN_PLACE, estimates, op=MPI.MAX)
    enough = int(np.clip(-(-pace.batch_s // max(float(estimates.min()), 1e-9)), 1, MAX_BATCH)) if small else 1
    batch = pace.batch or enough
    rounds = pace.rounds or int(
        np.clip(pace.budget_s / float((estimates * batch + BARRIER_S).sum()), *ROUNDS)
    )
    seconds = np.empty((len(calls), rounds))
    order, dice = list(range(len(calls))), random.Random(_SEED)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for column in range(rounds):
            dice.shuffle(order)
            for row in order:
                seconds[row, column] = _timed(comm, calls[row], batch)
    finally:
        if collecting:
            gc.enable()
    by_rank = np.array(comm.allgather(seconds)) if pace.per_iter else None
    return Times(over_ranks(comm, seconds, pace.average), batch, by_rank)


def over_ranks(comm: MPI.Intracomm, seconds: np.ndarray, average: int) -> np.ndarray:
    """Return one time from the times of all ranks, where ``average`` is as in `Pace`."""
    if average == 0:
        comm.Bcast(seconds, root=0)
        return seconds
    comm.Allreduce(MPI.IN_PLACE, seconds, op={1: MPI.SUM, 2: MPI.MIN, 3: MPI.MAX}[average])
    return seconds / comm.Get_size() if average == 1 else seconds


def _timed(comm: MPI.Intracomm, call: Call, batch: int) -> float:
    """Return the seconds per call of ``batch`` calls back to back."""
    comm.Barrier()
    start = perf_counter()
    for _ in range(batch):
        call()
    return (perf_counter() - start) / batch
