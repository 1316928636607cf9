"""Cores that other programs use while a job is measured. Linux counts that anyway: nothing is timed, so that no speed counts.

What a core did for any program, less what the job's own processes used, was somebody else's. It disturbs the job where it leaves fewer
cores than there are ranks, or where a rank was ready and had none. Where Linux does not count, nothing is known, and nothing is found.
"""

import math
import resource
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcoll.base.machine import CGROUP, CPUS, MEMBERSHIP, PROC, cgroups, read
from hpcoll.base.text import counted

MARK = "*"  # behind what others disturbed
LEAST_S = 0.5  # between two samples: in less, ticks of 10 ms say little
_TICK_S = 0.01  # of the file ``stat``, on all machines
# of a core there: user, nice, system, and stolen by another machine; not interrupts, which may be the job's
_FIELDS = (
    0,
    1,
    2,
    7,
)
_QUIET, _QUIET_SHARE = 0.1, 0.005  # cores, and share of all cores, that the system's own programs may use
_WAITED, _STOPPED = 0.05, 0.02  # shares of the time: without a core; stopped by a quota


class Usage(NamedTuple):
    """The seconds that had been used by a moment, as one process of the job knows them."""

    clock: float
    used: float  # by all programs, on the cores that the process may use; NaN: not known
    own: float  # by this process, and by its children that have ended
    waited: float  # for which the calling thread was ready to run, and had no core
    stopped: float  # for which a quota of a control group has stopped its processes


class CoreUse(NamedTuple):
    """The use of some cores between two moments."""

    seconds: float
    ncores: int  # that do not share their arithmetic units
    nranks: int  # processes of the job that may use them
    others: float  # cores that other programs have used, on average; NaN: not known
    waited: float  # share of the time for which a rank was ready to run, and had no core: the greatest
    stopped: float  # share of the time for which a quota stopped ranks

    @property
    def taken(self) -> float:
        """The cores that others have used and ranks needed."""
        return self.others - max(0, self.ncores - self.nranks)

    @property
    def disturbed(self) -> bool:
        """Others have disturbed what was measured."""
        quiet = _QUIET + _QUIET_SHARE * self.ncores + 2 * _TICK_S * math.sqrt(self.ncores) / self.seconds
        missed = self.taken > 0 or (self.waited > _WAITED and self.nranks <= self.ncores)
        return (self.others > quiet and missed) or self.stopped > _STOPPED

    def __str__(self) -> str:
        if self.stopped > _STOPPED:
            return f"a quota of a control group stopped ranks for {100 * self.stopped:.0f} % of the time"
        return f"other programs used {self.others:.1f} of {counted(self.ncores, 'core')}"


def usage(
    cores: frozenset[int], proc: Path = PROC, root: Path = CGROUP, membership: Path = MEMBERSHIP
) -> Usage:
    """Return the usage by now."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in read(proc / "stat").splitlines() if line.partition(" ")[0] in names]
    used = (
        _TICK_S * sum(int(fields[1 + i]) for fields in lines for i in _FIELDS)
        if len(lines) == len(cores)
        else math.nan
    )
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time() + children.ru_utime + children.ru_stime
    delays = read(proc / "thread-self" / "schedstat").split()
    waited = 1e-9 * int(delays[1]) if len(delays) > 1 else 0.0
    stopped = max((_stopped_s(folder) for folder in cgroups("cpu", root, membership)), default=0.0)
    return Usage(time.monotonic(), used, own, waited, stopped)


def _stopped_s(folder: Path) -> float:
    """Return the seconds for which a control group's quota has stopped its processes."""
    words = dict(line.split() for line in read(folder / "cpu.stat").splitlines() if len(line.split()) == 2)
    return 1e-6 * int(words.get("throttled_usec", 0)) + 1e-9 * int(words.get("throttled_time", 0))


def core_use(before: Sequence[Usage], after: Sequence[Usage], ncores: int) -> CoreUse:
    """Return the use of cores between two moments, at which each process of the job that may use them has taken a sample."""
    passed = [
        Usage(*(now - then for now, then in zip(*pair, strict=True)))
        for pair in zip(after, before, strict=True)
    ]
    seconds = max(passed[0].clock, 1e-9)
    others = (passed[0].used - sum(use.own for use in passed)) / seconds
    waited, stopped = (
        max(getattr(use, field) for use in passed) / seconds for field in ("waited", "stopped")
    )
    return CoreUse(
        seconds, ncores, len(passed), others if math.isnan(others) else max(0.0, others), waited, stopped
    )


def crowds(places: Sequence[tuple[str, frozenset[int]]]) -> list[tuple[list[int], frozenset[int]]]:
    """Return the ranks that share cores, with these cores, from each rank's machine and the cores that it may use.

    >>> crowds([("a", frozenset({0, 1})), ("b", frozenset({0})), ("a", frozenset({1})), ("a", frozenset({2}))])
    [([0, 2], frozenset({0, 1})), ([1], frozenset({0})), ([3], frozenset({2}))]
    """
    groups: list[tuple[str, list[int], frozenset[int]]] = []
    for rank, (machine, cores) in enumerate(places):
        shared = [crowd for crowd in groups if crowd[0] == machine and crowd[2] & cores]
        ranks = sorted([rank, *(other for crowd in shared for other in crowd[1])])
        groups = [crowd for crowd in groups if crowd not in shared]
        groups.append((machine, ranks, cores.union(*(crowd[2] for crowd in shared))))
    return sorted((ranks, cores) for _, ranks, cores in groups)


def ncores_of(cores: frozenset[int], cpus: Path = CPUS) -> int:
    """Return how many of some cores do not share their arithmetic units with another of them."""
    return len({read(cpus / f"cpu{core}/topology/thread_siblings_list") or str(core) for core in cores})


def verdict(uses: Iterable[CoreUse]) -> list[str]:
    """Return what is said once of rows that others disturbed, from the core_use of each: a sentence, or nothing where there are none."""
    disturbed = [use for use in uses if use.disturbed]
    worst = max(disturbed, key=lambda use: use.others, default=None)
    return (
        [] if worst is None else [f"{MARK} {worst} while this was measured: its times and ratios say little"]
    )
