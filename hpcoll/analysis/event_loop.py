"""Plays a tape of steps on a network, message by message. Plain loops over arrays, which Numba compiles as they are.

The model is that of `analysis.timeline`, with nodes. A rank has a send port, a receive port and a processor; a node has a link out and a
link in, which its ranks share:

    a message on a node                 keeps both ports busy for ``overhead + beta b``
    a message between nodes that        keeps both ports busy for ``overhead``, and both links for ``beta b``;
    several ranks share                 it joins the queues at once and moves when it is first in both

Its first byte reaches the receiver ``alpha - overhead`` after it was sent, ``handshake`` later above ``eager``. What happens next is kept
in a heap; a lane goes on at once where nothing else happens before. Of messages that reach a rank at one time, the one for the earlier
step comes first.

Arguments, of all functions:

    rows, first     as in `hpcoll.analysis.event_table.Tape`
    costs           float64 (2, 6): of messages that are not far, and of those that are; seconds, and bytes for EAGER
    clocks          float64 (ranks, 5); links: float64 (nodes, 2)
    times           float64 (segments, rows): when a receive's message was there, or what a send sent had left; 0: not yet
    places          int64 (ranks * window, 3)
    keys, whats     float64, int64: the heap, by time; what happens is ``2 * place``, or ``2 * (segment * rows + row) + 1``
    chunk           bytes of a chunk
"""

import numpy as np

from hpcoll.analysis.event_table import AMOUNT, CHANNEL_OF, END, FAR, GUARD, NODE, OP, OTHER, RANK, RECV, RECV_REDUCE, REDUCE, SEND

ALPHA, OVERHEAD, BETA, GAMMA, EAGER, HANDSHAKE = range(6)  # of `costs`
SEND_PORT, RECV_PORT, PROCESSOR, LEFT, LAST = range(5)  # of a rank: free from then on; when all it sent has left; its last act
OUT, IN = range(2)  # of a node's link
ROW, LANE, WAITS = range(3)  # of a place: where its lane is, which one that is, and whether it waits for a message


def push(keys: np.ndarray, whats: np.ndarray, n: int, time: float, what: int) -> None:
    """Put what happens at some time into a heap of ``n``."""
    while n > 0:
        above = (n - 1) >> 2
        if keys[above] < time or (keys[above] == time and whats[above] < what):
            break
        keys[n], whats[n] = keys[above], whats[above]
        n = above
    keys[n], whats[n] = time, what


def pop(keys: np.ndarray, whats: np.ndarray, n: int) -> None:
    """Take what happens first out of a heap, which leaves ``n``."""
    time, last, i = keys[n], whats[n], 0
    while 4 * i + 1 < n:
        least = 4 * i + 1
        for below in range(least + 1, min(least + 4, n)):
            if keys[below] < keys[least] or (keys[below] == keys[least] and whats[below] < whats[least]):
                least = below
        if time < keys[least] or (time == keys[least] and last < whats[least]):
            break
        keys[i], whats[i] = keys[least], whats[least]
        i = least
    keys[i], whats[i] = time, last


def send(rows: np.ndarray, costs: np.ndarray, clocks: np.ndarray, links: np.ndarray, row: int, nbytes: float, now: float) -> float:
    """A message leaves: when its first byte reaches the receiver; LEFT says when all that the rank sent has left."""
    rank, node, far = rows[row, RANK], rows[row, NODE], rows[row, FAR]
    overhead, transfer = costs[far, OVERHEAD], costs[far, BETA] * nbytes
    start = max(now, clocks[rank, SEND_PORT])
    if far:
        clocks[rank, SEND_PORT] = start + overhead
        start = max(start, links[node, OUT])
        links[node, OUT] = start + transfer
    else:
        clocks[rank, SEND_PORT] = start + overhead + transfer
    clocks[rank, LEFT] = max(start + overhead + transfer, clocks[rank, LEFT])
    return start + costs[far, ALPHA] - overhead + (costs[far, HANDSHAKE] if nbytes > costs[far, EAGER] else 0.0)


def land(rows: np.ndarray, costs: np.ndarray, clocks: np.ndarray, links: np.ndarray, row: int, nbytes: float, now: float) -> float:
    """A message whose first byte is there is taken in: when its last byte is."""
    rank, node, far = rows[row, RANK], rows[row, NODE], rows[row, FAR]
    overhead, transfer = costs[far, OVERHEAD], costs[far, BETA] * nbytes
    start = max(now, clocks[rank, RECV_PORT])
    if far:
        clocks[rank, RECV_PORT] = start + overhead
        start = max(start, links[node, IN])
        links[node, IN] = start + transfer
    else:
        clocks[rank, RECV_PORT] = start + overhead + transfer
    end = start + overhead + transfer
    clocks[rank, LAST] = max(end, clocks[rank, LAST])
    return end


def play(
    rows: np.ndarray, first: np.ndarray, costs: np.ndarray, clocks: np.ndarray, links: np.ndarray, times: np.ndarray,
    places: np.ndarray, keys: np.ndarray, whats: np.ndarray, chunk: float, channels: int, window: int,
) -> float:  # fmt: skip
    """Play to the end: when the last thing ends, in seconds; -1 where a lane waits for ever.

    Args:
        channels: Of the schedule.
        window: Lanes that a rank has in flight.
    """
    nrows, nlanes, n = rows.shape[0], times.shape[0] * channels, 0
    for place in range(places.shape[0]):
        lane = place % window
        places[place, LANE], places[place, ROW] = lane, first[place // window * channels + lane % channels]
        push(keys, whats, n, 0.0, 2 * place)
        n += 1
    while n:
        now, what = keys[0], whats[0]
        n -= 1
        pop(keys, whats, n)
        place = what >> 1
        if what & 1:
            segment, row = place // nrows, place % nrows
            end = land(rows, costs, clocks, links, row, rows[row, AMOUNT] * chunk, now)
            times[segment, row] = end
            lane = segment * channels + rows[row, CHANNEL_OF]
            place = rows[row, RANK] * window + lane % window
            if not (places[place, WAITS] and places[place, ROW] == row and places[place, LANE] == lane):
                continue
            places[place, WAITS], now = 0, end
            if n and keys[0] <= now:
                push(keys, whats, n, now, 2 * place)
                n += 1
                continue
        rank = place // window
        row, lane = places[place, ROW], places[place, LANE]
        segment = lane // channels
        while True:
            op, guard = rows[row, OP], rows[row, GUARD]
            if op == SEND:
                arrives = send(rows, costs, clocks, links, row, rows[row, AMOUNT] * chunk, now)
                if guard >= 0:
                    times[segment, row] = clocks[rank, LEFT]
                push(keys, whats, n, arrives, 2 * (segment * nrows + rows[row, OTHER]) + 1)
                n += 1
                row += 1
                continue
            ready = times[segment, guard] if guard >= 0 else 0.0
            if op in (RECV, RECV_REDUCE):
                if times[segment, row] == 0.0:
                    places[place, WAITS] = 1
                    break
                ready = max(ready, times[segment, row])
            if ready <= now:
                if op == END:
                    lane += window
                    if lane >= nlanes:
                        lane = -1
                        break
                    segment, row = lane // channels, first[rank * channels + lane % channels]
                    continue
                ready = now
                if op in (RECV_REDUCE, REDUCE):
                    ready = max(now, clocks[rank, PROCESSOR]) + costs[rows[row, FAR], GAMMA] * rows[row, AMOUNT] * chunk
                    clocks[rank, PROCESSOR] = ready
                    clocks[rank, LAST] = max(ready, clocks[rank, LAST])
                row += 1
            if ready > now and n and keys[0] <= ready:
                push(keys, whats, n, ready, 2 * place)
                n += 1
                break
            now = max(now, ready)
        places[place, ROW], places[place, LANE] = row, lane
    if places[:, LANE].max() >= 0:
        return -1.0
    return max(clocks[:, LEFT].max(), clocks[:, LAST].max())


def play_in_step(
    rows: np.ndarray, distances: np.ndarray, costs: np.ndarray, nodes: np.ndarray, chunk: float, shared: bool
) -> float:
    """Play ranks that all run the same steps relative to themselves: every rank by itself, one step of all after the other.

    Args:
        rows: Of rank 0, with one channel.
        distances: int64 ``(nrows,)``: how far behind a transfer's peer is in rank order.
        nodes: int64 ``(nranks,)``: node of each rank.
        shared: Whether messages between nodes use links that ranks share.
    """
    nranks, nrows = nodes.shape[0], rows.shape[0]
    sends, receives, processors, gone, lanes = np.zeros(nranks), np.zeros(nranks), np.zeros(nranks), np.zeros(nranks), np.zeros(nranks)
    links, arrivals, arrived = np.zeros((nranks, 2)), np.zeros((8, nranks)), np.zeros(nranks)
    under_way, held = np.full(nrows, -1, np.int64), np.zeros(8, np.int64)  # row -> its message's arrivals, which are in use
    left, kept, nkept = np.zeros((8, nranks)), np.full(nrows, -1, np.int64), 0
    for row in range(nrows):
        op, nbytes, guard = rows[row, OP], rows[row, AMOUNT] * chunk, rows[row, GUARD]
        near = costs[0, OVERHEAD] + costs[0, BETA] * nbytes
        transfer, distance, buffer = costs[1, BETA] * nbytes, distances[row], 0
        if op == SEND:
            while buffer < held.shape[0] and held[buffer]:
                buffer += 1
            if buffer == held.shape[0]:
                arrivals, held = np.concatenate((arrivals, arrivals)), np.concatenate((held, np.zeros_like(held)))
            held[buffer], under_way[rows[row, OTHER]] = 1, buffer
            if guard >= 0:
                if nkept == left.shape[0]:
                    left = np.concatenate((left, left))
                kept[row], nkept = nkept, nkept + 1
            reach = costs[:, ALPHA] - costs[:, OVERHEAD] + np.where(nbytes > costs[:, EAGER], costs[:, HANDSHAKE], 0.0)
            for rank in range(nranks):
                start, peer = max(lanes[rank], sends[rank]), (rank + distance) % nranks if shared else 0
                if shared and nodes[rank] != nodes[peer]:
                    sends[rank] = start + costs[1, OVERHEAD]
                    start = max(start, links[nodes[rank], OUT])
                    links[nodes[rank], OUT] = start + transfer
                    gone[rank] = max(gone[rank], start + costs[1, OVERHEAD] + transfer)
                    arrivals[buffer, rank] = start + reach[1]
                else:
                    sends[rank] = start + near
                    gone[rank] = max(gone[rank], sends[rank])
                    arrivals[buffer, rank] = start + reach[0]
            if guard >= 0:
                left[kept[row]] = gone
            continue
        if guard >= 0:
            for rank in range(nranks):
                lanes[rank] = max(lanes[rank], left[kept[guard], rank])
        if op in (RECV, RECV_REDUCE):
            buffer = under_way[row]
            held[buffer] = 0
            arrived[: nranks - distance] = arrivals[buffer, distance:]
            arrived[nranks - distance :] = arrivals[buffer, :distance]
            for rank in range(nranks):
                start, peer = max(arrived[rank], receives[rank]), (rank + distance) % nranks if shared else 0
                if shared and nodes[rank] != nodes[peer]:
                    receives[rank] = start + costs[1, OVERHEAD]
                    start = max(start, links[nodes[rank], IN])
                    links[nodes[rank], IN] = start + transfer
                    lanes[rank] = max(lanes[rank], start + costs[1, OVERHEAD] + transfer)
                else:
                    receives[rank] = start + near
                    lanes[rank] = max(lanes[rank], receives[rank])
        if op in (RECV_REDUCE, REDUCE):
            for rank in range(nranks):
                far = 1 if shared and op == RECV_REDUCE and nodes[rank] != nodes[(rank + distance) % nranks] else 0
                lanes[rank] = processors[rank] = max(processors[rank], lanes[rank]) + costs[far, GAMMA] * nbytes
    return max(lanes.max(), gone.max())
