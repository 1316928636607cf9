"""Results of a benchmark: percentiles of times, and bandwidths as nccl-tests defines them. No MPI.

algbw is the message's bytes over the time; busbw is algbw times a factor that makes it comparable with the bandwidth of a
link, whatever the collective and the number of ranks.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

AUTO = "auto"  # the algorithm that hpcoll chooses


@dataclass(frozen=True)
class Measured:
    """The result of one side (out of place, in place) of an algorithm at one size; times in microseconds, bandwidths in GB/s (1e9)."""

    p50_us: float  # the median over rounds, which counts as "the" time
    p95_us: float
    p99_us: float
    min_us: float
    max_us: float
    avg_us: float
    stdev_us: float
    alg_bw: float
    bus_bw: float
    nwrong: int | None  # wrong elements on all ranks; None if answers were not checked
    ratio: float | None  # native time over this time
    iterations: int  # rounds
    batch: int  # calls timed together in each round
    work_us: float | None = None  # in overlap mode: of the work alone
    both_us: float | None = None  # in overlap mode: of the call with the work inside
    hidden: float | None = None  # in overlap mode: `hpcoll.cli.bench.modes.hidden_share`
    moved: int | None = None  # bytes that the busiest rank reads and writes, where they are asked for and known
    copy_share: float | None = None  # rate of ``moved`` over the rate at which all ranks at once copy arrays of the size


@dataclass(frozen=True)
class ResultRow:
    """The result of an algorithm at one size; a side that the collective does not have is None."""

    algorithm: str  # name asked for: of the catalogue, ``native``, or ``auto``
    ran: str  # name of the algorithm that ran
    size: int  # bytes of the message; of all ranks' blocks together
    count: int  # elements of the vector, or of one block
    type: str  # element type as nccl-tests prints it
    redop: str  # or ``none``
    root: int  # or -1
    out_of_place: Measured | None
    in_place: Measured | None

    @property
    def both(self) -> tuple[Measured | None, Measured | None]:
        """Both sides."""
        return self.out_of_place, self.in_place

    @property
    def sides(self) -> tuple[Measured, ...]:
        """The sides that the collective has."""
        return tuple(filter(None, self.both))


def bus_factor(collective: str, nranks: int) -> float:
    """Return busbw over algbw.

    >>> bus_factor("allreduce", 4), bus_factor("allgather", 4), bus_factor("bcast", 4)
    (1.5, 0.75, 1.0)
    """
    if collective == "allreduce":
        return 2 * (nranks - 1) / nranks
    if collective in ("reduce_scatter", "allgather", "gather", "scatter", "alltoall"):
        return (nranks - 1) / nranks
    return 1.0


def summarise(seconds: np.ndarray, nbytes: int, factor: float, *, nwrong: int | None, native: np.ndarray | None, batch: int) -> Measured:
    """Return the result of one side from seconds per call in each round, and those of the native algorithm; ``factor``: busbw / algbw."""
    us = seconds * 1e6
    p50 = float(np.median(us))
    p95, p99 = (float(value) for value in np.percentile(us, [95, 99]))
    alg_bw = nbytes / (p50 * 1e3)
    ratio = None if native is None else float(np.median(native * 1e6)) / p50
    return Measured(
        p50, p95, p99, float(us.min()), float(us.max()), float(us.mean()), float(us.std()),
        alg_bw, alg_bw * factor, nwrong, ratio, us.size, batch,
    )  # fmt: skip


def average_bus_bandwidth(rows: Iterable[ResultRow]) -> float:
    """Return the mean busbw over all sizes and sides, in GB/s; 0 of nothing."""
    found = [side.bus_bw for row in rows for side in row.sides]
    return sum(found) / len(found) if found else 0.0


def total_wrong(rows: Iterable[ResultRow]) -> int:
    """Return the number of wrong elements of all rows."""
    return sum(side.nwrong or 0 for row in rows for side in row.sides)
