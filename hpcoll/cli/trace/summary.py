"""A trace in words and numbers: the waits of each rank, as `hpcoll.analysis.waits` judges them, calls by operation and place, facts."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from hpcoll.analysis.waits import PlaceWaits, RankWaits
from hpcoll.base.text import counted, duration, gaps, runs_in_words
from hpcoll.cli.trace.owners import SliceWaits
from hpcoll.cli.trace.reading import CALL, OTHER, STEP, RunTrace

S = 1e-6  # a microsecond
_NAMES = 20  # of slices of other tools, those that took longest

# name of the collective; file and line, or the region where they are not known
Key: TypeAlias = tuple[str, str]


class OperationTimes(NamedTuple):
    """The calls of one collective at one place of the program, of all ranks together."""

    calls: int
    nbytes: int
    waited_s: float
    moved_s: float


def rank_waits(trace: RunTrace, waits: SliceWaits) -> list[RankWaits]:
    """Return the waits of each rank of a trace."""
    ours = np.flatnonzero(trace.rank >= 0)
    ranks, at = np.unique(trace.rank[ours], return_inverse=True)
    hosts, kind, length, in_call = trace.host_of(), trace.kind[ours], trace.length[ours], waits.in_call[ours]
    is_call, compared = trace.category[ours] == CALL, waits.compared[ours]

    def total(values: np.ndarray, chosen: np.ndarray) -> list[float]:
        return np.bincount(at, np.where(chosen, values, 0), len(ranks)).tolist()

    begin, end, nbytes = (
        np.full(len(ranks), np.inf),
        np.full(len(ranks), -np.inf),
        np.zeros(len(ranks), np.int64),
    )
    np.minimum.at(begin, at, trace.start[ours])
    np.maximum.at(end, at, trace.start[ours] + length)
    np.add.at(
        nbytes, at[is_call], np.array([max(call.nbytes, 0) for call in trace.kinds], np.int64)[kind[is_call]]
    )
    waited, inside = (
        np.bincount(at, values, len(ranks)).tolist() for values in (waits.length[ours], in_call)
    )
    in_flight, awaited = (
        total(length, is_call & compared & (trace.lane[ours] > 0)),
        total(in_call, ~is_call & (in_call > 0)),
    )
    ncompared, nalone = total(compared, is_call), total(~compared, is_call)
    held, places = _by_owner(waits, ours, at, len(ranks)), _places(trace, waits, ours, at, len(ranks))
    return [
        RankWaits(
            rank=rank,
            host=hosts[rank],
            run_s=float(end[i] - begin[i]) * S,
            calls=int(ncompared[i]),
            uncompared=int(nalone[i]),
            held_up_by={owner: sums.calls for owner, sums in held[i].items()},
            waited_s=waited[i] * S,
            moved_s=(inside[i] - waited[i]) * S,
            hidden_s=max(0.0, in_flight[i] - awaited[i]) * S,
            python_s=0.0,
            nbytes=int(nbytes[i]),
            waited_for={owner: sums.waited_s for owner, sums in held[i].items()},
            caused={owner: sums.caused_s for owner, sums in held[i].items()},
            inherited={owner: sums.inherited_s for owner, sums in held[i].items()},
            taken_s=0.0,
            absent_s=0.0,
            computed_s=0.0,
            places=tuple(places[i]),
            clock_error_s=trace.clock_error_us(rank) * S,
        )
        for i, rank in enumerate(ranks.tolist())
    ]


class _Held(NamedTuple):
    """The waits of one rank for another one."""

    calls: int
    waited_s: float
    caused_s: float
    inherited_s: float


def _by_owner(
    waits: SliceWaits, slices: np.ndarray, group: np.ndarray, ngroups: int
) -> list[dict[int, _Held]]:
    """Return the waits of each group of slices, by the rank that was awaited."""
    waiting = waits.length[slices] > 0
    slices, group = slices[waiting], group[waiting]
    order, firsts = _grouped(group, waits.owner[slices])
    counts = np.diff(firsts, append=len(order)).tolist()
    sums = (
        np.add.reduceat(values[slices[order]], firsts) * S if len(order) else values[:0]
        for values in (waits.length, waits.divided, waits.inherited)
    )
    by_owner: list[dict[int, _Held]] = [{} for _ in range(ngroups)]
    at = order[firsts]
    for index, owner, *held in zip(
        group[at].tolist(), waits.owner[slices[at]].tolist(), counts, *(column.tolist() for column in sums)
    ):
        by_owner[index][owner] = _Held(*held)
    return by_owner


def _grouped(*keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an order in which equal keys follow each other, and where in it each group begins."""
    order = np.lexsort(keys[::-1])
    changes = [np.diff(key[order]) != 0 for key in keys]
    return order, np.flatnonzero(np.concatenate([[True] * (len(order) > 0), np.logical_or.reduce(changes)]))


def _places(
    trace: RunTrace, waits: SliceWaits, ours: np.ndarray, at: np.ndarray, nranks: int
) -> list[list[PlaceWaits]]:
    """Return the places of each rank, in the order in which the trace has them."""
    chosen = (trace.number[ours] >= 0) & (trace.category[ours] != STEP)
    slices, at, place = (
        ours[chosen],
        at[chosen],
        np.array(trace.numbers("at", "region"))[trace.kind[ours[chosen]]],
    )
    places: list[list[PlaceWaits]] = [[] for _ in range(nranks)]
    if not len(slices):
        return places
    order, firsts = _grouped(at, place)
    group = np.empty(len(slices), np.int64)
    group[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
    held = _by_owner(waits, slices, group, len(firsts))
    calls, waited, inside = (
        np.bincount(group, values[slices], len(firsts)).tolist()
        for values in (trace.category == CALL, waits.length, waits.in_call)
    )
    for i, first in enumerate(order[firsts].tolist()):
        kind = trace.kinds[trace.kind[slices[first]]]
        waited_for = {owner: sums.waited_s for owner, sums in held[i].items()}
        moved = (inside[i] - waited[i]) * S
        places[at[first]].append(
            PlaceWaits(kind.at, kind.region, int(calls[i]), waited[i] * S, moved, waited_for)
        )
    return places


def operations(trace: RunTrace, waits: SliceWaits) -> dict[Key, OperationTimes]:
    """Return the operations of a trace, by the name of the collective and the place; the wait for a call in flight is its call's."""
    n = len(trace.kinds)
    is_call = trace.category == CALL
    calls = np.bincount(trace.kind[is_call], minlength=n)
    waited, inside = (np.bincount(trace.kind, column, n) for column in (waits.length, waits.in_call))
    times = dict[Key, OperationTimes]()
    for kind, about in enumerate(trace.kinds):
        if calls[kind] or inside[kind]:
            key = about.method, f"{about.at or about.region}"
            old = times.get(key, OperationTimes(0, 0, 0.0, 0.0))
            nbytes = int(calls[kind]) * max(about.nbytes, 0)
            new = int(calls[kind]), nbytes, float(waited[kind]) * S, float(inside[kind] - waited[kind]) * S
            times[key] = OperationTimes._make(a + b for a, b in zip(old, new))
    return times


def facts(trace: RunTrace) -> str:
    """Return how much is in a trace."""
    span = float((trace.start + trace.length).max() - trace.start.min()) * S
    calls, others = int((trace.category == CALL).sum()), int((trace.category == OTHER).sum())
    ranks, hosts = (len(set(names)) for names in (trace.host_of(), trace.host_of().values()))
    ours = (
        f"{counted(calls, 'call')} of {counted(ranks, 'rank')} on {counted(hosts, 'host')}" if calls else ""
    )
    theirs = f"{counted(others, 'slice')} of other tools" if others else ""
    return f"{' and '.join(filter(None, (ours, theirs)))} within {duration(span)}"


def missing(trace: RunTrace, waits: SliceWaits) -> Iterator[str]:
    """Yield what a trace lacks, in sentences."""
    is_call = trace.category == CALL
    calls, alone = int(is_call.sum()), int((is_call & ~waits.compared).sum())
    if not calls:
        yield "no calls of hpcoll are in it, so nobody's waits are known"
    elif alone:
        yield f"{alone:,} of {calls:,} calls are not known of all ranks of their communicator: they count as neither waiting nor moving"
    silent = gaps(sorted(rank for rank in trace.host_of() if rank < trace.nranks), trace.nranks)
    if calls and silent:
        yield f"{runs_in_words(silent)} left nothing in it"
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
    return [
        ["slice", "times", "took"],
        *([name, f"{count:,}", duration(took)] for name, (count, took) in longest[:_NAMES]),
        *more,
    ]
