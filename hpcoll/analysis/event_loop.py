"""Discrete-event LogGP simulation of an event table: plain loops over arrays, which are compiled as they are and allocate nothing.

A rank has a send port, a receive port and a processor, which work at the same time. A node has a link out and a link in, which its ranks
share, and so has a cache domain. A lone message of ``b`` bytes arrives ``alpha + beta b`` after it was sent, and ``handshake`` later if
longer than ``eager``. With ``overhead = alpha`` this is Hockney's model.

    a message on a node                 keeps both ports busy for ``overhead + beta b``
    between nodes that several          keeps both ports busy for ``overhead``, and both links for ``beta b``;
    ranks share                         it joins both queues at once and moves when it is first in both
    between domains of a node           keeps both ports busy for ``overhead + beta b``, because the cores move it; it waits while more
                                        than ``streams`` ranks keep a link busy with earlier messages

Sends queue for the send port and block no lane; receives block their lane. A step that overwrites a chunk waits until the port has taken
the chunk's messages. Events happen in order of time and, at one time, in the order in which they were caused.

Ranks may come to the call at different times. Short messages wait for a rank that has not come, longer ones with their senders.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcoll.analysis import event_table as t
from hpcoll.analysis.cost import Levels, Network
from hpcoll.analysis.event_table import EventTable
from hpcoll.base.errors import ArgumentError

ALPHA, OVERHEAD, BETA, GAMMA, EAGER, HANDSHAKE, STREAMS = range(7)  # columns of `costs`
# of `clocks`: ports; end of all sends, of all receives; processor. OUT and IN of `links`, too
OUT, IN, LEFT, TAKEN, PROCESSOR = range(5)
# of `active`: current row of a lane; number of the lane, -1 for none; set while it waits for a message
ROW, LANE, WAITS = range(3)
TIME, ORDER, WHAT = range(3)  # of `heap`
COMES, LEAVES = range(2)  # of `calls`
# bytes of the longest message, whatever ``eager`` is, that moves to a rank before it has come
BUFFERED = 64 << 10


class Simulation(NamedTuple):
    """The arrays of a simulation; times in seconds.

    WHAT of an event is ``~i`` for an active lane that goes on, or ``segment * nrows + row`` for the message to a row that arrives. With
    all rows of all segments added, it is a row whose message can go, because its receiver has come.
    """

    rows: np.ndarray  # as in `EventTable`, like `first` and `nchannels`
    first: np.ndarray
    costs: np.ndarray  # float64 (3, 7), by LEVEL; EAGER in bytes
    clocks: np.ndarray  # float64 (ranks, 5): time until which ports and processor of each rank are busy
    links: np.ndarray  # float64 (links, 2): time until which each is busy
    calls: np.ndarray  # float64 (ranks, 2): when each rank comes to the call, and when it leaves it
    # float64 (segments, rows): arrival of a receive's message, or the end of a send; 0: not yet
    times: np.ndarray
    spans: np.ndarray  # float64 (rows, 4): begin and end of each row's work at a port, and at the processor; (0, 4): not recorded
    active: np.ndarray  # int64 (ranks * window, 3): the lanes in flight
    heap: np.ndarray  # float64 (events, 3): a binary heap of the events to come
    chunk: float  # bytes
    nchannels: int
    window: int  # lanes that a rank has in flight


def prepare(
    table: EventTable,
    levels: Levels,
    nbytes: float,
    segments: int,
    window: int,
    *,
    spans: bool = False,
    comes: Sequence[float] = (),
) -> Simulation:
    """Return the arrays of a new simulation; ArgumentError where the costs are impossible.

    ``nbytes`` are those of a segment; for block collectives of all ranks' blocks together. ``spans``: record when each row of a single
    segment keeps a port or the processor busy. ``comes``: seconds at which the built ranks come; at 0, where there are none.
    """
    nrows, window = len(table.rows), min(window, segments * table.nchannels)
    ranks, lanes = np.divmod(np.arange(table.nbuilt * window), window)
    rows = table.first[ranks * table.nchannels + lanes % table.nchannels]
    calls = np.zeros((table.nbuilt, 2))
    calls[: len(comes), COMES] = comes
    return Simulation(
        table.rows,
        table.first,
        np.array([_costs(level, nbytes) for level in (*levels[:2], levels.across())]),
        np.zeros((table.nbuilt, 5)),
        np.zeros((table.nlinks, 2)),
        calls,
        np.zeros((segments, nrows)),
        np.zeros((nrows * spans, 4)),
        np.stack((rows, lanes, np.zeros_like(lanes)), axis=1),
        np.zeros((len(lanes) + segments * table.nmessages, 3)),
        nbytes / table.nchunks,
        table.nchannels,
        window,
    )


def _costs(level: Network, nbytes: float) -> list[float]:
    least = min(level.beta, level.gamma, level.handshake)
    if not 0 <= level.overhead <= level.alpha or least < 0 or min(level.spill, level.streams) < 1:
        raise ArgumentError(
            f"network needs 0 <= overhead <= alpha, spill and streams >= 1 and nothing below 0, got {level}"
        )
    spill = level.spill if nbytes > level.cache else 1.0
    return [
        level.alpha,
        level.overhead,
        level.beta * spill,
        level.gamma * spill,
        float(level.eager),
        level.handshake,
        float(level.streams),
    ]


def simulate(s: Simulation) -> float:
    """Run the simulation; return the seconds until the last event ends, or -1 where a lane waits for ever."""
    rows, first, costs, clocks, links, calls, times, spans, active, heap, chunk, nchannels, window = s
    nevents, order, nrows, waiting = 0, 0, len(rows), len(rows) * len(times)
    for i in range(len(active)):
        nevents, order = push(heap, nevents, calls[i // window, COMES], order, ~i)
    while nevents:
        now, what = heap[0, TIME], int(heap[0, WHAT])
        nevents = pop(heap, nevents)
        i = ~what
        if what >= waiting:
            nevents, order = send(
                rows, costs, clocks, links, times, spans, heap, nevents, order, what - waiting, chunk, now
            )
            continue
        if what >= 0:
            segment, row = what // nrows, what % nrows
            rank, lane = rows[row, t.RANK], segment * nchannels + rows[row, t.CHANNEL_OF]
            start, now = occupy(
                costs,
                clocks,
                links,
                rank,
                rows[row, t.LINK],
                rows[row, t.LEVEL],
                IN,
                rows[row, t.AMOUNT] * chunk,
                now,
            )
            times[segment, row] = now
            record(spans, row, 0, start, now)
            i = rank * window + lane % window
            if not (active[i, WAITS] and active[i, ROW] == row and active[i, LANE] == lane):
                continue
            active[i, WAITS] = 0
            if nevents and heap[0, TIME] <= now:
                nevents, order = push(heap, nevents, now, order, ~i)
                continue
        rank, row, lane = i // window, active[i, ROW], active[i, LANE]
        while lane >= 0:  # until another event comes first, a message is missing, or the last lane has ended
            op, guard, level, nbytes = (
                rows[row, t.OP],
                rows[row, t.GUARD],
                rows[row, t.LEVEL],
                rows[row, t.AMOUNT] * chunk,
            )
            segment = lane // nchannels
            if op == t.SEND:
                comes = calls[rows[rows[row, t.OTHER], t.RANK], COMES]
                if comes > now and nbytes > min(costs[level, EAGER], BUFFERED):
                    # or later, if the port is busy
                    times[segment, row] = comes + costs[level, OVERHEAD] + costs[level, BETA] * nbytes
                    nevents, order = push(heap, nevents, comes, order, waiting + segment * nrows + row)
                else:
                    nevents, order = send(
                        rows,
                        costs,
                        clocks,
                        links,
                        times,
                        spans,
                        heap,
                        nevents,
                        order,
                        segment * nrows + row,
                        chunk,
                        now,
                    )
                row += 1
                continue
            ready = times[segment, guard] if guard >= 0 else 0.0
            if op in (t.RECV, t.RECV_REDUCE):
                if times[segment, row] == 0.0:
                    active[i, WAITS] = 1
                    break
                ready = max(ready, times[segment, row])
            if ready <= now and op == t.END:
                calls[rank, LEAVES] = max(calls[rank, LEAVES], now)
                lane = lane + window if lane + window < len(times) * nchannels else -1
                row = first[rank * nchannels + lane % nchannels]
                continue
            if ready <= now:
                ready = execute(costs, clocks, spans, rank, row, op, level, nbytes, now)
                row += 1
            if ready > now and nevents and heap[0, TIME] <= ready:
                nevents, order = push(heap, nevents, ready, order, ~i)
                break
            now = ready
        active[i, ROW], active[i, LANE] = row, lane
    end = 0.0
    for i in range(len(active)):
        if active[i, LANE] >= 0:
            return -1.0
        end = max(end, calls[i // window, LEAVES])
        for clock in range(PROCESSOR + 1):
            end = max(end, clocks[i // window, clock])
    return end


def send(
    rows: np.ndarray,
    costs: np.ndarray,
    clocks: np.ndarray,
    links: np.ndarray,
    times: np.ndarray,
    spans: np.ndarray,
    heap: np.ndarray,
    nevents: int,
    order: int,
    message: int,
    chunk: float,
    now: float,
) -> tuple[int, int]:
    """Send the message ``segment * nrows + row``; return as `push` does, which gets its arrival."""
    segment, row = divmod(message, len(rows))
    rank, level, nbytes = rows[row, t.RANK], rows[row, t.LEVEL], rows[row, t.AMOUNT] * chunk
    start, end = occupy(costs, clocks, links, rank, rows[row, t.LINK], level, OUT, nbytes, now)
    record(spans, row, 0, start, end)
    if rows[row, t.GUARD] >= 0:
        times[segment, row] = clocks[rank, LEFT]
    return push(
        heap,
        nevents,
        first_byte(costs, level, nbytes, start),
        order,
        segment * len(rows) + rows[row, t.OTHER],
    )


def push(heap: np.ndarray, nevents: int, time: float, order: int, what: int) -> tuple[int, int]:
    """Push an event onto a heap of ``nevents``; return the new number of events, and the order of the next one."""
    at = nevents
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent, TIME] < time or (heap[parent, TIME] == time and heap[parent, ORDER] < order):
            break
        heap[at, TIME], heap[at, ORDER], heap[at, WHAT] = (
            heap[parent, TIME],
            heap[parent, ORDER],
            heap[parent, WHAT],
        )
        at = parent
    heap[at, TIME], heap[at, ORDER], heap[at, WHAT] = time, order, what
    return nevents + 1, order + 1


def pop(heap: np.ndarray, nevents: int) -> int:
    """Pop the first event off a heap of ``nevents``; return the new number of events."""
    left, at = nevents - 1, 0
    time, order, what = heap[left, TIME], heap[left, ORDER], heap[left, WHAT]
    while 2 * at + 1 < left:
        child = 2 * at + 1
        if child + 1 < left and (
            heap[child + 1, TIME] < heap[child, TIME]
            or (heap[child + 1, TIME] == heap[child, TIME] and heap[child + 1, ORDER] < heap[child, ORDER])
        ):
            child += 1
        if time < heap[child, TIME] or (time == heap[child, TIME] and order < heap[child, ORDER]):
            break
        heap[at, TIME], heap[at, ORDER], heap[at, WHAT] = (
            heap[child, TIME],
            heap[child, ORDER],
            heap[child, WHAT],
        )
        at = child
    heap[at, TIME], heap[at, ORDER], heap[at, WHAT] = time, order, what
    return left


def occupy(
    costs: np.ndarray,
    clocks: np.ndarray,
    links: np.ndarray,
    rank: int,
    link: int,
    level: int,
    side: int,
    nbytes: float,
    now: float,
) -> tuple[float, float]:
    """Move a message through a port, and through a shared link if it takes one; return begin and end."""
    overhead, transfer = costs[level, OVERHEAD], costs[level, BETA] * nbytes
    start = max(now, clocks[rank, side])
    if level == t.BETWEEN_NODES:
        clocks[rank, side] = start + overhead
        start = max(start, links[link, side])
        links[link, side] = start + transfer
    elif level == t.BETWEEN_DOMAINS:
        free = max(now, links[link, side])
        start = max(start, free)
        links[link, side] = free + transfer / costs[level, STREAMS]
    end = start + overhead + transfer
    if level != t.BETWEEN_NODES:
        clocks[rank, side] = end
    clocks[rank, LEFT + side] = max(end, clocks[rank, LEFT + side])
    return start, end


def first_byte(costs: np.ndarray, level: int, nbytes: float, start: float) -> float:
    """Return the arrival of the first byte of a message that starts to move at ``start``."""
    return (
        start
        + costs[level, ALPHA]
        - costs[level, OVERHEAD]
        + (costs[level, HANDSHAKE] if nbytes > costs[level, EAGER] else 0.0)
    )


def execute(
    costs: np.ndarray,
    clocks: np.ndarray,
    spans: np.ndarray,
    rank: int,
    row: int,
    op: int,
    level: int,
    nbytes: float,
    now: float,
) -> float:
    """Run a ready row's local work; return its end."""
    if op not in (t.RECV_REDUCE, t.REDUCE):
        record(spans, row, 2, now, now)
        return now
    start = max(now, clocks[rank, PROCESSOR])
    clocks[rank, PROCESSOR] = start + costs[level, GAMMA] * nbytes
    record(spans, row, 2, start, clocks[rank, PROCESSOR])
    return clocks[rank, PROCESSOR]


def record(spans: np.ndarray, row: int, column: int, start: float, end: float) -> None:
    """Record when a row kept a port (column 0) or the processor (column 2) busy, if spans are recorded."""
    if len(spans):
        spans[row, column], spans[row, column + 1] = start, end
