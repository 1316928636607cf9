"""The clock of a team's hosts: times of this host's clock, told on the clock of rank 0's.

One rank of each node exchanges a few short messages with that of another, up a binomial tree of nodes. The error is at most half of the
shortest round trip. Between and after measurements a clock runs on a line.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from mpi4py import MPI

from hpcoll.comm.team.team import Team
from hpcoll.comm.telemetry.leaders import Leaders
from hpcoll.runtime.transports.mpi import may_call

PERIOD_NS = 5_000_000_000  # between measurements
UNKNOWN_NS = 1 << 60  # the error where clocks were never compared

_ROUND_TRIPS = 8
_PATIENCE_S = 1.0  # most that a rank waits for the messages of one measurement
_DRIFT = 100e-6  # most by which two clocks differ, 50 ppm each, until it is measured
_WANDER = 1e-6  # by which a drift may change while it is extrapolated
_KEPT_NS = 60_000_000_000  # of samples from which a drift is taken
_FAILED = -1  # an error that tells of a measurement that failed

_CLOCKS: WeakKeyDictionary[Team, "HostClock"] = WeakKeyDictionary()


def clock_of(team: Team) -> "HostClock":
    """Return the clock of a team's hosts."""
    return _CLOCKS.get(team) or _CLOCKS.setdefault(team, HostClock(team))


class Sample(NamedTuple):
    """A comparison of one host's clock with that of rank 0's host, in nanoseconds."""

    at: int  # on this host's clock
    offset: int  # what is to be added to it
    error: int  # most by which the offset is wrong


class DriftLine:
    """The line on which a clock runs beside another one, through samples that are added in order."""

    def __init__(self) -> None:
        self._kept: list[Sample] = []
        self.last, self.drift, self.uncertainty = Sample(0, 0, UNKNOWN_NS), 0.0, _DRIFT

    def add(self, sample: Sample) -> None:
        """Go through a further sample, unless the line so far knows better; start anew where it contradicts the line."""
        expected = self.error_at(sample.at)
        contradicts = abs(int(self.told(sample.at)) - sample.at - sample.offset) > expected + sample.error
        if expected <= sample.error and not contradicts:
            return
        self._kept = [] if contradicts else [kept for kept in self._kept if sample.at - kept.at < _KEPT_NS]
        self._kept.append(sample)
        self.last, self.drift, self.uncertainty = sample, 0.0, _DRIFT
        for kept in self._kept[:-1]:
            elapsed = sample.at - kept.at
            uncertainty = (kept.error + sample.error) / elapsed + _WANDER
            if uncertainty < self.uncertainty:
                self.drift, self.uncertainty = (sample.offset - kept.offset) / elapsed, uncertainty

    def told(self, ns: Any) -> Any:
        """Return times of this host's clock on the other one."""
        return ns + (self.last.offset + np.rint(self.drift * (ns - self.last.at)).astype(np.int64))

    def error_at(self, ns: int) -> int:
        """Return by how much `told` may be wrong at a time of this host's clock."""
        return min(UNKNOWN_NS, self.last.error + int(self.uncertainty * abs(ns - self.last.at)))


class HostClock:
    """The clock of a team's hosts; found by `clock_of`. On one node it does nothing.

    Attributes:
        leaders: Ranks that compare their clocks.
    """

    def __init__(self, team: Team) -> None:
        self.leaders, self._next = Leaders(team), 0
        self._lines = [DriftLine() for _ in self.leaders.ranks]

    @property
    def crosses_hosts(self) -> bool:
        """Say whether there is more than one node."""
        return len(self._lines) > 1

    def due(self) -> bool:
        """Say whether it is time to measure; rank 0 asks, and tells the others. Nobody is told so twice."""
        if not self.crosses_hosts or time.monotonic_ns() < self._next:
            return False
        self._next = time.monotonic_ns() + PERIOD_NS
        return True

    @property
    def is_known(self) -> bool:
        """Say whether all clocks were compared; alike on all ranks."""
        return all(line.last.error < UNKNOWN_NS for line in self._lines[1:])

    @property
    def drift(self) -> float:
        """The gain of the common clock on this host's, as a share of the time that passes."""
        return self._lines[self.leaders.node].drift

    def measure(self, gather: Callable[[np.ndarray, np.ndarray], Any]) -> None:
        """Compare the clocks of all hosts; collective.

        A rank that does not answer within a second leaves the clocks as they were.

        Args:
            gather: Gathers every rank's array, as an allgather does; what it raises is raised.
        """
        if not self.crosses_hosts:
            return
        self.leaders.begin(_PATIENCE_S)
        mine, every = np.zeros(3, np.int64), np.empty((self.leaders.nranks, 3), np.int64)
        if self.leaders.leads:
            mine[:] = self._exchange()
        gather(mine, every)
        steps = [Sample(*row) for row in every[self.leaders.ranks].tolist()]
        if any(step.error == _FAILED for step in steps):
            self.leaders.left_messages()
            return
        for line, sample in list(zip(self._lines, along_tree(steps), strict=True))[1:]:
            line.add(sample)

    def common(self, ns: Any) -> Any:
        """Return times of this host's `time.monotonic_ns`, an int or an int64 array, on the clock of rank 0's host."""
        return self._lines[self.leaders.node].told(ns)

    @property
    def line(self) -> tuple[int, int, float]:
        """A time of this host's clock, what is to be added to it, and how much more for each nanosecond since then."""
        line = self._lines[self.leaders.node]
        return line.last.at, line.last.offset, line.drift

    @property
    def error_ns(self) -> int:
        """The error of `error_at` now."""
        return self.error_at(int(self.common(time.monotonic_ns())))

    def error_at(self, ns: int) -> int:
        """Return by how much times of two hosts may be wrong against each other, at a time on rank 0's clock.

        `UNKNOWN_NS` or more before the first measurement.
        """
        return sum(sorted(line.error_at(ns - line.last.offset) for line in self._lines[1:])[-2:])

    def _exchange(self) -> Sample:
        """Exchange messages with the nodes beside this one in the tree, and return how its parent's clock differs."""
        sample, node, distance = Sample(time.monotonic_ns(), 0, 0), self.leaders.node, 1
        if not may_call():
            return sample._replace(error=_FAILED)
        try:
            while distance < len(self._lines) and not node & distance:
                if node + distance < len(self._lines):
                    self._answer(node + distance)
                distance *= 2
            return self._ask(node - distance) if node else sample
        except (MPI.Exception, TimeoutError):
            return sample._replace(error=_FAILED)

    def _ask(self, parent: int) -> Sample:
        """Ask the parent for its time: it told it between question and answer, so that each round trip bounds the offset on both sides."""
        begin = time.monotonic_ns()
        least, most = -UNKNOWN_NS * 4, UNKNOWN_NS * 4
        for number in range(_ROUND_TRIPS):
            before = time.monotonic_ns()
            self.leaders.send(parent, number, before)
            theirs = self.leaders.receive(parent, number)
            after = time.monotonic_ns()
            least, most = max(least, theirs - after), min(most, theirs - before)
        return Sample(
            (begin + after) // 2, (least + most) // 2, (most - least + 1) // 2 + int(_DRIFT * (after - begin))
        )

    def _answer(self, child: int) -> None:
        for number in range(_ROUND_TRIPS):
            self.leaders.receive(child, number)
            self.leaders.send(child, number, time.monotonic_ns())


def along_tree(steps: list[Sample]) -> list[Sample]:
    """Return every node's sample against node 0, given that against its parent; offsets and errors add.

    What clocks may have drifted apart while all were measured is part of the error.

    >>> along_tree([Sample(0, 0, 0), Sample(100, -90, 2), Sample(700, -685, 3), Sample(800, -90, 1)])[3]
    Sample(at=800, offset=-775, error=4)
    """
    samples: list[Sample] = []
    for node, step in enumerate(steps):
        if node:
            above = samples[node & (node - 1)]
            step = step._replace(offset=step.offset + above.offset, error=step.error + above.error)
        samples.append(step)
    moments = [sample.at + sample.offset for sample in samples]
    slack = int(_DRIFT * (max(moments) - min(moments)))
    return [sample._replace(error=sample.error + slack * bool(node)) for node, sample in enumerate(samples)]
