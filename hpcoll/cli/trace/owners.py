"""The owners of the waits in a trace: as the trace says, or by when each rank began the call.

Calls belong together that have the same communicator, name, lane and number, and are all blocking or all in flight.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hpcoll.cli.trace.reading import CALL, IN_WAIT, RunTrace

_FROM_ROOT, _TO_ROOT, _PREFIX = (
    ("bcast", "scatter", "scatterv"),
    ("reduce", "gather", "gatherv"),
    ("scan", "exscan"),
)
LEAST_US = 1.0  # of a wait
_NEAR_US = 1.0  # by which a wait may begin before its call, for rounding


class SliceWaits(NamedTuple):
    """The waits of calls, an entry for each slice of the trace; times are microseconds."""

    start: np.ndarray
    length: np.ndarray  # 0: none
    owner: np.ndarray  # rank that was awaited; -1: none
    divided: np.ndarray  # the wait divided by the number of ranks that could wait for that one in that call
    inherited: np.ndarray  # of `divided`, what the owner had spent in other collectives since its last call of this kind, beyond this rank
    in_call: np.ndarray  # time of the program in the call; of calls in flight while it waits for them; 0 where nothing is known of waits
    compared: np.ndarray  # bool: a call that is known of all its ranks, or the program's wait for one


class _SameCalls(NamedTuple):
    """The calls of one name that all ranks of a communicator have made; rows are calls, columns ranks in ascending order."""

    name: str
    root: int  # rank of the communicator, or -1
    ranks: np.ndarray
    calls: np.ndarray  # positions of slices
    # positions of the slices in which the program waits: the same, or others for calls in flight; -1: none
    waits: np.ndarray


def find(trace: RunTrace) -> SliceWaits:
    """Return the waits of a trace's calls."""
    n = len(trace.start)
    length, divided, inherited, in_call = np.zeros((4, n))
    found = SliceWaits(
        trace.start.copy(), length, np.full(n, -1, np.int32), divided, inherited, in_call, np.zeros(n, bool)
    )
    in_program = (trace.category == IN_WAIT) | ((trace.category == CALL) & (trace.lane == 0))
    found.in_call[in_program] = trace.length[in_program]
    _take_written(trace, found)
    spent, hosts = _spent_elsewhere(trace, in_program), trace.host_of()
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts.values()))}
    clocks = {rank: (numbers[host], trace.clock_error_us(rank)) for rank, host in hosts.items()}
    for table in _tables(trace):
        _fill(trace, found, table, spent, clocks)
    found.in_call[~found.compared & (found.length == 0)] = (
        0.0  # nobody knows when all had come: it moved nothing, perhaps
    )
    return found


def _take_written(trace: RunTrace, found: SliceWaits) -> None:
    """Give the waits that the trace has to their slices: on the same row, with the same number, the last to begin before."""
    calls, waits = np.flatnonzero((trace.category == CALL) | (trace.category == IN_WAIT)), trace.waits
    row, number = (np.concatenate([getattr(trace, name)[calls], waits[name]]) for name in ("row", "number"))
    start = np.concatenate([trace.start[calls], waits["start"] + _NEAR_US])
    order = np.lexsort((start, number, row))
    before = np.maximum.accumulate(np.where(order < len(calls), np.arange(len(order)), 0))
    parent = np.empty(len(order), np.int64)
    parent[order] = order[before]
    mine, at = parent[len(calls) :], np.arange(len(calls), len(order))
    fits = (mine < len(calls)) & (row[mine] == row[at]) & (number[mine] == number[at])
    slices, waits = calls[mine[fits]], waits[fits]
    inside = waits["start"] <= trace.start[slices] + trace.length[slices]
    slices, waits = slices[inside], waits[inside]
    found.start[slices], found.owner[slices] = waits["start"], waits["owner"]
    found.length[slices] = np.minimum(waits["length"], trace.length[slices])
    found.divided[slices] = found.length[slices]  # until it is known how many could wait


def _spent_elsewhere(trace: RunTrace, in_program: np.ndarray) -> np.ndarray:
    """Return for each call what its rank had spent in other collectives since its last call on the same communicator."""
    spent, rank = np.zeros(len(trace.start)), trace.rank
    calls = np.flatnonzero(trace.category == CALL)
    communicator = np.array(trace.numbers("comm", "lane"))[trace.kind[calls]]
    order = np.lexsort((trace.start[calls], communicator, rank[calls]))
    calls, communicator = calls[order], communicator[order]
    program = np.flatnonzero(in_program)
    program = program[np.lexsort((trace.start[program], rank[program]))]
    total = np.concatenate([[0.0], np.cumsum(trace.length[program])])
    before, ranks = np.empty(len(calls)), np.unique(rank[calls])
    ours, theirs = (np.searchsorted(rank[one], [ranks, ranks + 1]).T.tolist() for one in (calls, program))
    for mine, (low, high) in zip((slice(*bounds) for bounds in ours), theirs):
        before[mine] = (
            total[low + np.searchsorted(trace.start[program[low:high]], trace.start[calls[mine]])]
            - total[low]
        )
    after = before + np.where(in_program[calls], trace.length[calls], 0.0)
    same = (communicator[1:] == communicator[:-1]) & (rank[calls[1:]] == rank[calls[:-1]])
    spent[calls] = before
    spent[calls[1:]] -= np.where(same, after[:-1], 0.0)
    return np.maximum(spent, 0)


def _tables(trace: RunTrace) -> Iterator[_SameCalls]:
    of_kind = np.array(trace.numbers("comm", "lane", "method"))
    numbered = np.flatnonzero(((trace.category == CALL) | (trace.category == IN_WAIT)) & (trace.number >= 0))
    in_flight = (trace.lane[numbered] > 0) | (trace.category[numbered] == IN_WAIT)
    family = of_kind[trace.kind[numbered]] * 2 + in_flight
    order = np.lexsort((trace.start[numbered], trace.rank[numbered], trace.number[numbered], family))
    numbered, family = numbered[order], family[order]
    communicators, roots = (
        np.array(trace.numbers("comm"))[trace.kind[numbered]],
        np.array([one.root for one in trace.kinds]),
    )
    members = np.unique(np.stack([communicators, trace.rank[numbered]]), axis=1)
    firsts = np.flatnonzero(np.diff(members[0], prepend=-1))
    ranks_of = dict(zip(members[0, firsts].tolist(), np.split(members[1], firsts[1:])))
    bounds = np.flatnonzero(np.diff(family, prepend=-1, append=-1))
    for low, high in pairwise(bounds):
        slices = numbered[low:high]
        calls, waits = (slices[trace.category[slices] == category] for category in (CALL, IN_WAIT))
        ranks = ranks_of[int(communicators[low])]
        whole = _whole(trace, calls, ranks)
        if not len(whole):
            continue
        kind = trace.kinds[trace.kind[whole[0, 0]]]
        root_of = roots[trace.kind[whole[:, 0]]]
        for root in np.unique(root_of):
            chosen = whole[root_of == root]
            yield _SameCalls(
                kind.name.lower(),
                int(root),
                ranks,
                chosen,
                _program_waits(trace, chosen, waits) if family[low] % 2 else chosen,
            )


def _whole(trace: RunTrace, calls: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return calls, sorted by number and rank, as rows of those that each of the ranks has made once."""
    number = trace.number[calls]
    firsts = np.flatnonzero(np.diff(number, prepend=-1))
    counts = np.diff(firsts, append=len(calls))
    rows = calls[firsts[counts == len(ranks)][:, None] + np.arange(len(ranks))]
    return rows[(trace.rank[rows] == ranks).all(axis=1)]


def _program_waits(trace: RunTrace, calls: np.ndarray, waits: np.ndarray) -> np.ndarray:
    """Return for each call in flight the slice in which its rank waited for it, -1 where there is none; waits sorted by number and rank."""
    wanted = np.rec.fromarrays([trace.number[calls].ravel(), trace.rank[calls].ravel()])
    there = np.rec.fromarrays([trace.number[waits], trace.rank[waits]])
    if not len(there):
        return np.full_like(calls, -1)
    at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    return np.where(there[at] == wanted, waits[at], -1).reshape(calls.shape)


def _fill(
    trace: RunTrace,
    found: SliceWaits,
    table: _SameCalls,
    spent: np.ndarray,
    clocks: Mapping[int, tuple[int, float]],
) -> None:
    """Note the calls of a table as compared, with waits where the trace has none of a call, and with what follows from all of them.

    ``clocks``: of each rank the number of its host, and the error of its clock in microseconds.
    """
    begins, waits, n = trace.start[table.calls], table.waits, len(table.ranks)
    found.compared[table.calls] = True
    found.compared[waits[waits >= 0]] = True
    awaited = _awaited(table, begins)
    if awaited is not None:
        until = np.take_along_axis(begins, np.maximum(awaited, 0), axis=1)
        start = np.where(waits >= 0, trace.start[waits], np.inf)
        length = np.minimum(until, start + np.where(waits >= 0, trace.length[waits], 0)) - start
        host, error = np.array([clocks[rank] for rank in table.ranks.tolist()]).T
        error = np.maximum((error + error[awaited]) * (host != host[awaited]), LEAST_US)
        missing = ~((found.length[waits] > 0) & (waits >= 0)).any(axis=1)
        new = missing[:, None] & (waits >= 0) & (awaited >= 0) & (length > error)
        found.length[waits[new]], found.owner[waits[new]] = length[new], table.ranks[awaited[new]]
    owned = np.where(waits >= 0, found.length[waits], 0) * (found.owner[waits] >= 0)
    owner = np.searchsorted(table.ranks, found.owner[waits]).clip(0, n - 1)
    owned *= table.ranks[owner] == found.owner[waits]
    call, rank = np.nonzero(owned)
    owner, slices, length = owner[call, rank], waits[call, rank], owned[call, rank]
    could = 1 if _short(table.name) in _TO_ROOT else n - 1
    more = spent[table.calls[call, owner]] - spent[table.calls[call, rank]]
    found.divided[slices] = length / could
    found.inherited[slices] = np.clip(more, 0, length) / could


def _short(name: str) -> str:
    """Return the name of a collective as all its forms have it."""
    return name.removesuffix("_init").removeprefix("i")


def _awaited(table: _SameCalls, begins: np.ndarray) -> np.ndarray | None:
    """Return for each call and rank the column of the rank that it waits for, -1 for none; None where that does not follow."""
    name, nranks, root = _short(table.name), begins.shape[1], table.root
    columns = np.broadcast_to(np.arange(nranks), begins.shape)
    if name.startswith("neighbor"):
        return None
    if name in _PREFIX:
        latest = np.maximum.accumulate(begins, axis=1)
        return np.maximum.accumulate(np.where(begins == latest, columns, 0), axis=1)
    last = np.broadcast_to(np.argmax(begins, axis=1)[:, None], begins.shape)
    if name not in _FROM_ROOT + _TO_ROOT:
        return last
    if not 0 <= root < nranks:
        return None
    return np.where(columns == root, -1, root) if name in _FROM_ROOT else np.where(columns == root, last, -1)
