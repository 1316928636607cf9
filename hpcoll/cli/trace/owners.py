"""The waits in a trace: who was awaited, and how long. It is found as ranks find it while they run (`hpcoll.runtime.engine.comparison`)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hpcoll.cli.trace.reading import CALL, IN_WAIT, Context, RunTrace
from hpcoll.runtime.engine.comparison import KINDS, compare
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import wait_fields as w

_LEAST_NS = 1000  # of a wait
_ROOM = 1 << 17  # records that are compared at once
_MOST_TICKS, _MOST_SPENT = (1 << w.TICK_BITS) - 1, (1 << 63 - w.TICK_BITS) - 1


class SliceWaits(NamedTuple):
    """The waits of calls, an entry for each slice of the trace; times are microseconds. A wait begins with its slice."""

    length: np.ndarray  # 0: none
    owner: np.ndarray  # rank that was awaited; -1: none
    divided: np.ndarray  # the wait divided by the number of ranks that could wait for that one in that call
    inherited: np.ndarray  # of `divided`, what the owner had spent in other collectives since its last call of this kind, beyond this rank
    in_call: np.ndarray  # time of the program in the call; of calls in flight while it waits for them; 0 where nothing is known of waits
    compared: np.ndarray  # bool: a call that is known of all its ranks, or the program's wait for one


def find(trace: RunTrace) -> SliceWaits:
    """Return the waits of a trace's calls."""
    n = len(trace.records)
    waits, compared = np.zeros((n, w.FOUND_NFIELDS), np.int64), np.zeros(n, bool)
    waits[:, w.OWNER] = w.NOBODY
    spent = _spent_elsewhere(trace)
    for calls, contexts in _whole_calls(trace):
        compared[calls] = True
        step = max(1, _ROOM // len(contexts))
        for at in range(0, len(calls), step):
            _compare(trace, calls[at : at + step].T, contexts, spent, waits)
    in_program = (trace.category == IN_WAIT) | ((trace.category == CALL) & (trace.lane == 0))
    ours = (trace.category == IN_WAIT) | (trace.category == CALL)
    mine = waits[trace.record] if n else np.zeros((len(trace.record), w.FOUND_NFIELDS), np.int64)
    known = ours & compared[trace.record] if n else ours
    mine[~(known & in_program)] = 0
    length, divided, held = (mine[:, column] / 1000 for column in (w.WAITED, w.DIVIDED, w.HELD))
    owner = np.where(length > 0, mine[:, w.OWNER], -1)
    return SliceWaits(length, owner, divided, held, np.where(in_program & known, trace.length, 0.0), known)


def _spent_elsewhere(trace: RunTrace) -> np.ndarray:
    """Return for each record what its rank had spent in other calls since its last one on the same message context."""
    order = np.lexsort((trace.call_number, trace.context))
    spent = trace.records[order, f.ITS_SPENT]
    elsewhere = np.zeros(len(spent), np.int64)
    same = np.diff(trace.context[order]) == 0
    elsewhere[order[1:]] = np.where(same, np.maximum(np.diff(spent), 0), 0)
    return elsewhere


def _whole_calls(trace: RunTrace) -> Iterator[tuple[np.ndarray, list[Context]]]:
    """Yield the calls that all ranks of a message context have made: records, a row for each call, and the contexts of the ranks."""
    numbers: dict[tuple[str, int, int], int] = {}
    group = [
        numbers.setdefault((context.comm, context.lane, context.size), len(numbers))
        for context in trace.contexts
    ]
    size, at = (
        np.array([getattr(context, name) for context in trace.contexts], np.int64) for name in ("size", "at")
    )
    records = np.flatnonzero(~trace.service)
    family, ranks = np.array(group, np.int64)[trace.context[records]], at[trace.context[records]]
    order = np.lexsort((ranks, trace.call_number[records], family))
    records, family, ranks = records[order], family[order], ranks[order]
    bounds = np.flatnonzero(np.diff(family, prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        number, nranks = trace.call_number[records[low:high]], int(size[trace.context[records[low]]])
        firsts = np.flatnonzero(np.diff(number, prepend=-1))
        firsts = low + firsts[np.diff(firsts, append=len(number)) == nranks]
        if not len(firsts):
            continue
        where = firsts[:, None] + np.arange(nranks)
        calls = records[where[(ranks[where] == np.arange(nranks)).all(axis=1)]]
        if len(calls):
            yield calls, [trace.contexts[i] for i in trace.context[calls[0]].tolist()]


def _compare(
    trace: RunTrace, calls: np.ndarray, contexts: list[Context], spent: np.ndarray, waits: np.ndarray
) -> None:
    """Note who was awaited in calls, whose records are given rank by rank."""
    (nranks, n), records = calls.shape, np.ascontiguousarray(trace.records[calls])
    begins = records[:, :, f.ITS_BEGIN]
    ticks = np.minimum(begins - begins.min(axis=0) >> w.TICK_SHIFT, _MOST_TICKS)
    words = np.minimum(spent[calls] >> w.SPENT_SHIFT, _MOST_SPENT) << w.TICK_BITS | ticks
    arrivals, bases = words.ctypes.data + 8 * n * np.arange(nranks), np.zeros(nranks, np.int64)
    nearest = np.array([rank for context in contexts for rank in context.sources], np.int64)
    sources = np.cumsum([0, *(len(context.sources) for context in contexts)])
    result = np.zeros((nranks, n, w.FOUND_NFIELDS), np.int64)
    table = np.zeros(w.NFIELDS, np.int64)
    table[w.NCALLS], table[w.END], table[w.NRANKS] = n, nranks, nranks
    table[w.IN_FLIGHT], table[w.LEAST] = contexts[0].lane > 0, _LEAST_NS
    for field, array in (
        (w.ARRIVALS, arrivals),
        (w.BASES, bases),
        (w.KINDS, KINDS),
        (w.SOURCES, sources),
        (w.NEAREST, nearest),
        (w.RECORDS, records),
        (w.FOUND, result),
    ):
        table[field] = array.ctypes.data
    compare(table.ctypes.data)
    hosts = trace.host_of()
    numbers = {name: number for number, name in enumerate(dict.fromkeys(hosts.values()))}
    world = np.array([context.rank for context in contexts])
    host = np.array([numbers[hosts[rank]] for rank in world.tolist()])
    error = 1000 * np.array([trace.clock_error_us(rank) for rank in world.tolist()])
    owner = result[:, :, w.OWNER]
    unsure = (host[owner] != host[:, None]) & (result[:, :, w.WAITED] <= error[owner] + error[:, None])
    result[unsure] = 0
    result[:, :, w.OWNER] = world[owner]
    waits[calls] = result
