"""The decision whether buckets are all-reduced in flight, by the first steps of a training."""

import time
from statistics import median

import numpy as np
from mpi4py import MPI

from hpcoll.comm.communicator import Communicator
from hpcoll.selection.config import log

_WARM, _TRIALS = 4, 16  # steps before the timed ones, and timed steps


class StepPace:
    """Decides, alike on all ranks, whether buckets are all-reduced in flight; the first steps try both in turns, unless the user told.

    Attributes:
        overlaps: Buckets of the current step are all-reduced in flight.
    """

    def __init__(self, comm: Communicator, told: bool | None) -> None:
        self._comm = comm
        self._told = told
        self._step = 0
        self._since = 0.0
        self._seconds: tuple[list[float], list[float]] = [], []
        self.overlaps = told is not False

    def first_ready(self) -> None:
        """Begin to time a step, at its first gradient."""
        self._since = time.perf_counter()

    def step_ended(self) -> None:
        """End the timing of a step, and decide after the last trial."""
        if self._told is not None:
            return
        self._step += 1
        if self._step > _WARM:
            self._seconds[self.overlaps].append(time.perf_counter() - self._since)
        self.overlaps = self._step % 2 == 0
        if self._step == _WARM + _TRIALS:
            times = np.array([median(seconds) for seconds in self._seconds])
            self._comm.Allreduce(MPI.IN_PLACE, times, op=MPI.MAX)
            one_after_another, in_flight = times.tolist()
            self._told = self.overlaps = in_flight < one_after_another
            if self._comm.rank == 0:
                log.info(
                    "gradient buckets: %.3g ms per step in flight, %.3g one after another",
                    1e3 * in_flight,
                    1e3 * one_after_another,
                )
