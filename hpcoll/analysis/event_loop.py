"""Discrete-event LogGP simulation of an event table: plain loops over arrays, which Numba compiles as they are.

A rank has a send port, a receive port and a processor, which work at the same time; a node has a link out and a link in, which its
ranks share, and so has a cache domain. A lone message of ``b`` bytes arrives ``alpha + beta b`` after it was sent, ``handshake`` later
where it is longer than ``eager``, so ``overhead = alpha`` is Hockney's model.

    a message on a node                 keeps both ports busy for ``overhead + beta b``
    a message between nodes that        keeps both ports busy for ``overhead``, and both links for ``beta b``;
    several ranks share                 it joins the queues at once and moves when it is first in both
    one between domains of a node       keeps both ports busy for ``overhead + beta b``: the cores move it themselves; it waits while more
                                        than ``streams`` ranks keep a link busy with what they sent before

Sends queue for the send port and block nobody; receives block their lane; a step that overwrites a chunk waits until the port has taken
what is sent from it. Events happen in order of time and, at one time, in the order in which they were caused.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from hpcoll.analysis.cost import Levels, Network
from hpcoll.analysis.event_table import (
    AMOUNT,
    BETWEEN_DOMAINS,
    BETWEEN_NODES,
    CHANNEL_OF,
    END,
    GUARD,
    LEVEL,
    LINK,
    OP,
    OTHER,
    RANK,
    RECV,
    RECV_REDUCE,
    REDUCE,
    SEND,
    EventTable,
)
from hpcoll.base.errors import ArgumentError

ALPHA, OVERHEAD, BETA, GAMMA, EAGER, HANDSHAKE, STREAMS = range(7)  # columns of `costs`
OUT, IN, LEFT, TAKEN, PROCESSOR = range(5)  # of `clocks`: ports; all that was sent has left, all that came is taken; OUT and IN of `links`
ROW, LANE, WAITS = range(3)  # of `active`: the row that a lane is at, which lane it is (-1: none is left), whether it waits for a message


class Simulation(NamedTuple):
    """All that a simulation reads and writes; times in seconds.

    Attributes:
        rows, first: As in `EventTable`.
        costs: float64 (3, 7), by LEVEL; EAGER in bytes.
        clocks: float64 (ranks, 5): until when each rank's ports and processor are busy.
        links: float64 (links, 2): until when each is busy.
        times: float64 (segments, rows): when a receive's message was there, or what a send sent had left; 0: not yet.
        spans: float64 (rows, 4): when each row kept a port busy, from and to, and its processor; (0, 4) where nobody wants to know.
        active: int64 (ranks * window, 3): the lanes in flight.
        chunk: Bytes of a chunk.
        nchannels: As in `EventTable`.
        window: Lanes that a rank has in flight.
    """

    rows: np.ndarray
    first: np.ndarray
    costs: np.ndarray
    clocks: np.ndarray
    links: np.ndarray
    times: np.ndarray
    spans: np.ndarray
    active: np.ndarray
    chunk: float
    nchannels: int
    window: int


def prepare(table: EventTable, levels: Levels, nbytes: float, segments: int, window: int, *, spans: bool = False) -> Simulation:
    """A simulation that has not begun.

    Args:
        table: What to simulate.
        levels: Costs of messages.
        nbytes: Of one segment, for block collectives of all ranks' blocks together.
        segments: How many follow one another, ``>= 1``; 1 with ``spans``.
        window: Lanes that a rank has in flight, ``>= 1``.
        spans: Record when each row kept a port or a processor busy.
    Raises:
        ArgumentError: the costs are impossible.
    """
    nrows, window = len(table.rows), min(window, segments * table.nchannels)
    ranks, lanes = np.divmod(np.arange(table.nbuilt * window), window)
    rows = table.first[ranks * table.nchannels + lanes % table.nchannels]
    return Simulation(
        table.rows, table.first, np.array([_costs(level, nbytes) for level in (*levels[:2], levels.across())]), np.zeros((table.nbuilt, 5)),
        np.zeros((table.nlinks, 2)), np.zeros((segments, nrows)), np.zeros((nrows * spans, 4)),
        np.stack((rows, lanes, np.zeros_like(lanes)), axis=1), nbytes / table.nchunks, table.nchannels, window,
    )  # fmt: skip


def _costs(level: Network, nbytes: float) -> list[float]:
    least = min(level.beta, level.gamma, level.handshake)
    if not 0 <= level.overhead <= level.alpha or least < 0 or min(level.spill, level.streams) < 1:
        raise ArgumentError(f"network needs 0 <= overhead <= alpha, spill and streams >= 1 and nothing below 0, got {level}")
    spill = level.spill if nbytes > level.cache else 1.0
    return [level.alpha, level.overhead, level.beta * spill, level.gamma * spill, float(level.eager), level.handshake, float(level.streams)]


def simulate(s: Simulation) -> float:
    """Seconds until the last event ends; -1 where a lane waits for ever."""
    rows, first, costs, clocks, links, times, spans, active, chunk, nchannels, window = s
    heap = [(0.0, i, ~i) for i in range(len(active))]  # time, order, and an active lane that goes on as ~i, or a message that arrives
    order, nrows = len(heap), len(rows)
    while heap:
        now, _, what = heappop(heap)
        i = ~what
        if what >= 0:
            segment, row = what // nrows, what % nrows
            rank, lane = rows[row, RANK], segment * nchannels + rows[row, CHANNEL_OF]
            start, now = occupy(costs, clocks, links, rank, rows[row, LINK], rows[row, LEVEL], IN, rows[row, AMOUNT] * chunk, now)
            times[segment, row] = now
            record(spans, row, 0, start, now)
            i = rank * window + lane % window
            if not (active[i, WAITS] and active[i, ROW] == row and active[i, LANE] == lane):
                continue
            active[i, WAITS] = 0
            if heap and heap[0][0] <= now:
                heappush(heap, (now, order, ~i))
                order += 1
                continue
        rank, row, lane = i // window, active[i, ROW], active[i, LANE]
        while lane >= 0:  # until another event comes first, a message is missing, or no lane is left
            op, guard, level, nbytes = rows[row, OP], rows[row, GUARD], rows[row, LEVEL], rows[row, AMOUNT] * chunk
            segment = lane // nchannels
            if op == SEND:
                start, end = occupy(costs, clocks, links, rank, rows[row, LINK], level, OUT, nbytes, now)
                record(spans, row, 0, start, end)
                if guard >= 0:
                    times[segment, row] = clocks[rank, LEFT]
                heappush(heap, (first_byte(costs, level, nbytes, start), order, segment * nrows + rows[row, OTHER]))
                order, row = order + 1, row + 1
                continue
            ready = times[segment, guard] if guard >= 0 else 0.0
            if op in (RECV, RECV_REDUCE):
                if times[segment, row] == 0.0:
                    active[i, WAITS] = 1
                    break
                ready = max(ready, times[segment, row])
            if ready <= now and op == END:
                lane = lane + window if lane + window < len(times) * nchannels else -1
                row = first[rank * nchannels + lane % nchannels]
                continue
            if ready <= now:
                ready = execute(costs, clocks, spans, rank, row, op, level, nbytes, now)
                row += 1
            if ready > now and heap and heap[0][0] <= ready:
                heappush(heap, (ready, order, ~i))
                order += 1
                break
            now = ready
        active[i, ROW], active[i, LANE] = row, lane
    return clocks.max() if active[:, LANE].max() < 0 else -1.0


def occupy(
    costs: np.ndarray, clocks: np.ndarray, links: np.ndarray, rank: int, link: int, level: int, side: int, nbytes: float, now: float
) -> tuple[float, float]:
    """A message moves through a port, and through a link that ranks share, if it takes one: from when to when."""
    overhead, transfer = costs[level, OVERHEAD], costs[level, BETA] * nbytes
    start = max(now, clocks[rank, side])
    if level == BETWEEN_NODES:
        clocks[rank, side] = start + overhead
        start = max(start, links[link, side])
        links[link, side] = start + transfer
    elif level == BETWEEN_DOMAINS:
        free = max(now, links[link, side])
        start = max(start, free)
        links[link, side] = free + transfer / costs[level, STREAMS]
    end = start + overhead + transfer
    if level != BETWEEN_NODES:
        clocks[rank, side] = end
    clocks[rank, LEFT + side] = max(end, clocks[rank, LEFT + side])
    return start, end


def first_byte(costs: np.ndarray, level: int, nbytes: float, start: float) -> float:
    """When the first byte of a message is there that starts to move at ``start``."""
    return start + costs[level, ALPHA] - costs[level, OVERHEAD] + (costs[level, HANDSHAKE] if nbytes > costs[level, EAGER] else 0.0)


def execute(
    costs: np.ndarray, clocks: np.ndarray, spans: np.ndarray, rank: int, row: int, op: int, level: int, nbytes: float, now: float
) -> float:
    """Local work of a row that need not wait any more: when it ends."""
    if op not in (RECV_REDUCE, REDUCE):
        record(spans, row, 2, now, now)
        return now
    start = max(now, clocks[rank, PROCESSOR])
    clocks[rank, PROCESSOR] = start + costs[level, GAMMA] * nbytes
    record(spans, row, 2, start, clocks[rank, PROCESSOR])
    return clocks[rank, PROCESSOR]


def record(spans: np.ndarray, row: int, column: int, start: float, end: float) -> None:
    """Note when a row kept a port (column 0) or a processor (2) busy, if anybody wants to know."""
    if len(spans):
        spans[row, column], spans[row, column + 1] = start, end


def simulate_in_lockstep(s: Simulation, levels: np.ndarray, links_of: np.ndarray, distances: np.ndarray) -> float:
    """Seconds of a schedule whose ranks all run the same steps relative to themselves: every rank by itself, step by step.

    Args:
        s: One segment; rows of rank 0 with one channel, clocks of all ranks, links of all nodes.
        levels, links_of: int (rows, nranks): LEVEL and LINK of each rank's message.
        distances: int (rows,): how far behind a send's peer is in rank order.
    """
    rows, costs, clocks, links, nranks = s.rows, s.costs, s.clocks, s.links, len(s.clocks)
    now, arrivals, left = np.zeros(nranks), {-1: np.zeros(0)}, {-1: np.zeros(0)}  # by rank; of the last two by row
    for row in range(len(rows)):
        op, nbytes, guard, level, link = rows[row, OP], rows[row, AMOUNT] * s.chunk, rows[row, GUARD], levels[row], links_of[row]
        if op == SEND:
            found = np.zeros(nranks)
            for rank in range(nranks):
                start, _ = occupy(costs, clocks, links, rank, link[rank], level[rank], OUT, nbytes, now[rank])
                found[rank] = first_byte(costs, level[rank], nbytes, start)
            arrivals[rows[row, OTHER]] = np.roll(found, distances[row])
            if guard >= 0:
                left[row] = clocks[:, LEFT].copy()
            continue
        if guard >= 0:
            now = np.maximum(now, left[guard])
        if op in (RECV, RECV_REDUCE):
            found = arrivals.pop(row)
            for rank in range(nranks):
                now[rank] = max(now[rank], occupy(costs, clocks, links, rank, link[rank], level[rank], IN, nbytes, found[rank])[1])
        if op in (RECV_REDUCE, REDUCE):
            for rank in range(nranks):
                now[rank] = clocks[rank, PROCESSOR] = max(now[rank], clocks[rank, PROCESSOR]) + costs[level[rank], GAMMA] * nbytes
    return max(now.max(), clocks.max())
