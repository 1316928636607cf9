"""A trace in words and numbers: the waits of each rank, as `hpcoll.analysis.waits` judges them, calls by operation and place, facts."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from hpcoll.analysis.waits import PlaceWaits, RankWaits
from hpcoll.base.text import counted, duration, ranks_in_words
from hpcoll.cli.trace.owners import SliceWaits
from hpcoll.cli.trace.reading import CALL, OTHER, STEP, RunTrace

S = 1e-6  # a microsecond
_NAMES = 20  # of slices of other tools, those that took longest

Key: TypeAlias = tuple[str, str]  # name of the collective; file and line, or the region where they are not known


class OperationTimes(NamedTuple):
    """The calls of one collective at one place of the program, of all ranks together."""

    calls: int
    nbytes: int
    waited_s: float
    moved_s: float


def rank_waits(trace: RunTrace, waits: SliceWaits) -> list[RankWaits]:
    """Return the waits of each rank of a trace."""
    hosts, ours = trace.host_of(), trace.rank >= 0
    order = np.flatnonzero(ours)[np.argsort(trace.rank[ours], kind="stable")]
    places = [(kind.at, kind.region) for kind in trace.kinds]
    ranks, firsts = np.unique(trace.rank[order], return_index=True)
    return [_of_rank(trace, waits, int(rank), hosts[int(rank)], slices, places) for rank, slices in zip(ranks, np.split(order, firsts[1:]))]


def _of_rank(trace: RunTrace, waits: SliceWaits, rank: int, host: str, slices: np.ndarray, places: list[tuple[str, str]]) -> RankWaits:
    calls = slices[trace.category[slices] == CALL]
    inside, waited = waits.in_call[slices].sum(), waits.length[slices].sum()
    in_flight = trace.length[calls[waits.compared[calls] & (trace.lane[calls] > 0)]].sum()
    awaited = waits.in_call[slices[waits.in_call[slices] > 0]].sum() - waits.in_call[calls].sum()
    end = trace.start[slices] + trace.length[slices]
    return RankWaits(
        rank=rank,
        host=host,
        run_s=float(end.max() - trace.start[slices].min()) * S,
        calls=int(waits.compared[calls].sum()),
        uncompared=int((~waits.compared[calls]).sum()),
        held_up_by=dict(Counter(waits.owner[slices[waits.length[slices] > 0]].tolist())),
        waited_s=float(waited) * S,
        moved_s=float(inside - waited) * S,
        hidden_s=max(0.0, float(in_flight - awaited)) * S,
        python_s=0.0,
        nbytes=int(np.maximum(_nbytes(trace)[trace.kind[calls]], 0).sum()),
        waited_for=_by_owner(waits, slices, waits.length),
        caused=_by_owner(waits, slices, waits.divided),
        inherited=_by_owner(waits, slices, waits.inherited),
        taken_s=0.0,
        absent_s=0.0,
        computed_s=0.0,
        places=tuple(_places(trace, waits, slices, places)),
        clock_error_s=trace.clock_error_us(rank) * S,
    )


def _by_owner(waits: SliceWaits, slices: np.ndarray, values: np.ndarray) -> dict[int, float]:
    """Return seconds by the rank that was awaited."""
    slices = slices[waits.length[slices] > 0]
    owners, which = np.unique(waits.owner[slices], return_inverse=True)
    sums = np.bincount(which, values[slices], len(owners)) * S
    return {int(owner): float(seconds) for owner, seconds in zip(owners, sums)}


def _places(trace: RunTrace, waits: SliceWaits, slices: np.ndarray, places: list[tuple[str, str]]) -> list[PlaceWaits]:
    slices = slices[(trace.number[slices] >= 0) & (trace.category[slices] != STEP)]
    kinds = defaultdict[tuple[str, str], list[int]](list)
    for kind in np.unique(trace.kind[slices]):
        kinds[places[kind]].append(int(kind))
    found = []
    for (place, region), alike in kinds.items():
        mine = slices[np.isin(trace.kind[slices], alike)]
        waited = float(waits.length[mine].sum())
        moved, calls = float(waits.in_call[mine].sum()) - waited, int((trace.category[mine] == CALL).sum())
        found.append(PlaceWaits(place, region, calls, waited * S, moved * S, _by_owner(waits, mine, waits.length)))
    return found


def _nbytes(trace: RunTrace) -> np.ndarray:
    return np.array([kind.nbytes for kind in trace.kinds], np.int64)


def operations(trace: RunTrace, waits: SliceWaits) -> dict[Key, OperationTimes]:
    """Return the operations of a trace, by the name of the collective and the place; the wait for a call in flight is its call's."""
    n = len(trace.kinds)
    is_call = trace.category == CALL
    calls = np.bincount(trace.kind[is_call], minlength=n)
    waited, inside = (np.bincount(trace.kind, column, n) for column in (waits.length, waits.in_call))
    found = dict[Key, OperationTimes]()
    for kind, about in enumerate(trace.kinds):
        if calls[kind] or inside[kind]:
            key = about.method, f"{about.at or about.region}"
            old = found.get(key, OperationTimes(0, 0, 0.0, 0.0))
            nbytes = int(calls[kind]) * max(about.nbytes, 0)
            new = int(calls[kind]), nbytes, float(waited[kind]) * S, float(inside[kind] - waited[kind]) * S
            found[key] = OperationTimes._make(a + b for a, b in zip(old, new))
    return found


def facts(trace: RunTrace) -> str:
    """Return how much is in a trace."""
    span = float((trace.start + trace.length).max() - trace.start.min()) * S
    calls, others = int((trace.category == CALL).sum()), int((trace.category == OTHER).sum())
    ranks, hosts = (len(set(found)) for found in (trace.host_of(), trace.host_of().values()))
    ours = f"{counted(calls, 'call')} of {counted(ranks, 'rank')} on {counted(hosts, 'host')}" if calls else ""
    theirs = f"{counted(others, 'slice')} of other tools" if others else ""
    return f"{' and '.join(filter(None, (ours, theirs)))} within {duration(span)}"


def missing(trace: RunTrace, waits: SliceWaits) -> Iterator[str]:
    """Yield what a trace lacks, in sentences."""
    is_call = trace.category == CALL
    calls, alone = int(is_call.sum()), int((is_call & ~waits.compared).sum())
    if not calls:
        yield "no calls of hpcoll are in it, so nobody's waits are known: a call needs cat, comm, and its number"
    elif alone:
        yield f"{alone:,} of {calls:,} calls are not known of all ranks of their communicator: of these only waits that are written count"
    silent = sorted(set(range(trace.nranks)) - set(trace.host_of()))
    if calls and silent:
        yield f"{ranks_in_words(silent)} left nothing in it"
    if trace.lost:
        yield f"{counted(trace.lost, 'call')} were too fast to be written"


def slices_by_name(trace: RunTrace) -> list[list[str]]:
    """Return a table of the slices of other tools, its header first."""
    others = np.flatnonzero(trace.category == OTHER)
    names = defaultdict[str, list[float]](lambda: [0, 0.0])
    counts = np.bincount(trace.kind[others], minlength=len(trace.kinds))
    times = np.bincount(trace.kind[others], trace.length[others], len(trace.kinds)) * S
    for kind, count, took in zip(trace.kinds, counts, times):
        if count:
            names[kind.name][0] += int(count)
            names[kind.name][1] += float(took)
    longest = sorted(names.items(), key=lambda item: -item[1][1])
    more = [[f"and {len(longest) - _NAMES} more", "", ""]] if len(longest) > _NAMES else []
    return [["slice", "times", "took"], *([name, f"{count:,}", duration(took)] for name, (count, took) in longest[:_NAMES]), *more]
