"""Timing of candidates side by side in one run: every round calls each of them once, in an order drawn anew.

So whatever disturbs the machine disturbs all alike, and the ratio of two medians means something. All ranks draw the same
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
    """How long to measure.

    Attributes:
        rounds: Rounds per size; None: as many as fit ``budget_s``, between 5 and 1000.
        warmup: Calls of each candidate before; None: 20 for small messages, 1 for others.
        batch: Calls per timing; None: enough for ``batch_s`` where the message is small, else 1.
        batch_s: Seconds that a batch takes at least.
        budget_s: Seconds per size.
        average: Which rank's time counts: 0 rank 0's, 1 the average, 2 the least, 3 the greatest.
    """

    rounds: int | None = None
    warmup: int | None = None
    batch: int | None = None
    batch_s: float = BATCH_S
    budget_s: float = 1.0
    average: int = 3


class Times(NamedTuple):
    """What was measured.

    Attributes:
        seconds: Time per call, ``[candidate, round]``; equal on all ranks.
        batch: Calls per timing.
    """

    seconds: np.ndarray
    batch: int


def measure(comm: MPI.Intracomm, calls: Sequence[Call], nbytes: int, pace: Pace) -> Times:
    """Time all calls; collective over ``comm``, which may be the one they use."""
    small = nbytes < SMALL_NBYTES
    warmup = pace.warmup if pace.warmup is not None else 20 if small else 1
    estimates = np.array([_timed(comm, call, max(1, warmup)) for call in calls])
    comm.Allreduce(MPI.IN_PLACE, estimates, op=MPI.MAX)
    batch = pace.batch or (_batch(float(estimates.min()), pace.batch_s) if small else 1)
    rounds = pace.rounds or _rounds(estimates * batch, pace.budget_s)
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
    return Times(over_ranks(comm, seconds, pace.average), batch)


def over_ranks(comm: MPI.Intracomm, seconds: np.ndarray, average: int) -> np.ndarray:
    """One time from those of all ranks; ``average`` as in `Pace`."""
    if average == 0:
        comm.Bcast(seconds, root=0)
        return seconds
    comm.Allreduce(MPI.IN_PLACE, seconds, op={1: MPI.SUM, 2: MPI.MIN, 3: MPI.MAX}[average])
    return seconds / comm.Get_size() if average == 1 else seconds


def _timed(comm: MPI.Intracomm, call: Call, batch: int) -> float:
    """Seconds per call of ``batch`` calls back to back."""
    comm.Barrier()
    start = perf_counter()
    for _ in range(batch):
        call()
    return (perf_counter() - start) / batch


def _batch(estimate: float, batch_s: float) -> int:
    return min(MAX_BATCH, max(1, -int(-batch_s // max(estimate, 1e-9))))


def _rounds(estimates: np.ndarray, budget_s: float) -> int:
    return int(np.clip(budget_s / float((estimates + BARRIER_S).sum()), *ROUNDS))
