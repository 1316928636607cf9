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
    """One form (out of place or in place) of one algorithm at one size; times in microseconds, bandwidths in GB/s (1e9).

    Attributes:
        p50_us, p95_us, p99_us, min_us, max_us, avg_us, stdev_us: Over rounds; the first one is "the" time.
        alg_bw, bus_bw: See the module.
        nwrong: Wrong elements on all ranks; None if answers were not checked.
        ratio: Native time over this time; None without a native time.
        iterations, batch: Rounds, and calls timed together in each.
        work_us, both_us, hidden: In overlap mode: time of the work alone, of the call with the work inside, and the share of the
            shorter of call and work that this hides (`hpcoll.cli.bench.modes.hidden_share`); else None.
        moved: Bytes that the busiest rank reads and writes, where they are asked for and known; else None.
        copy_share: The rate of that, as a share of the rate at which all ranks at once copy arrays of the message's size; else None.
    """

    p50_us: float
    p95_us: float
    p99_us: float
    min_us: float
    max_us: float
    avg_us: float
    stdev_us: float
    alg_bw: float
    bus_bw: float
    nwrong: int | None
    ratio: float | None
    iterations: int
    batch: int
    work_us: float | None = None
    both_us: float | None = None
    hidden: float | None = None
    moved: int | None = None
    copy_share: float | None = None


@dataclass(frozen=True)
class ResultRow:
    """One algorithm at one size.

    Attributes:
        algorithm: Name asked for: of the catalogue, ``native``, or ``auto``.
        ran: Name of what ran.
        size: Bytes of the message; of all ranks' blocks together.
        count: Elements of the vector, or of one block.
        block_nbytes: Bytes of the vector, or of one block.
        type, redop, root: As nccl-tests prints them; ``none`` and -1 where there is none.
        out_of_place, in_place: Results; None for a form that the collective does not have.
    """

    algorithm: str
    ran: str
    size: int
    count: int
    block_nbytes: int
    type: str
    redop: str
    root: int
    out_of_place: Measured | None
    in_place: Measured | None

    @property
    def sides(self) -> tuple[Measured, ...]:
        """The forms there are."""
        return tuple(side for side in (self.out_of_place, self.in_place) if side is not None)


def bus_factor(collective: str, nranks: int) -> float:
    """busbw over algbw.

    >>> bus_factor("allreduce", 4), bus_factor("allgather", 4), bus_factor("bcast", 4)
    (1.5, 0.75, 1.0)
    """
    if collective == "allreduce":
        return 2 * (nranks - 1) / nranks
    if collective in ("reduce_scatter", "allgather", "gather", "scatter", "alltoall"):
        return (nranks - 1) / nranks
    return 1.0


def summarise(seconds: np.ndarray, nbytes: int, factor: float, *, nwrong: int | None, native: np.ndarray | None, batch: int) -> Measured:
    """The numbers of one form.

    Args:
        seconds: Time per call in each round.
        nbytes: Bytes of the message.
        factor: busbw over algbw.
        nwrong, batch: As in `Measured`.
        native: Times per call of the native algorithm in the same rounds, or None.
    """
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
    """Mean busbw over all sizes and forms, in GB/s; 0 of nothing."""
    found = [side.bus_bw for row in rows for side in row.sides]
    return sum(found) / len(found) if found else 0.0


def total_wrong(rows: Iterable[ResultRow]) -> int:
    """Wrong elements of all rows."""
    return sum(side.nwrong or 0 for row in rows for side in row.sides)
