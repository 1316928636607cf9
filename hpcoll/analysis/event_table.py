"""The event table: the steps of schedules as rows of integers, each send with its receive, for `hpcoll.analysis.event_loop`.

A channel's rows are contiguous and end with an END row. Where all ranks run the same steps relative to themselves, the first few ranks
stand for all: a message to ``rank + d`` is received as one from ``rank - d`` is. Their steps tell that, never an algorithm's name.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.ir import Chunk, Op, Schedule, Step
from hpcoll.schedules.placement import Nodes, members

# Columns of a row. OTHER: row of a send's receive, else -1. AMOUNT: chunks moved, or read and folded. GUARD: last send of the channel that
# must have left before this step overwrites its chunk, or -1; of a send 0 where there is such a step. LEVEL: distance of a message: NEAR,
# BETWEEN_NODES that ranks share, or BETWEEN_DOMAINS of a node. LINK: number of its shared link.
OP, OTHER, CHANNEL_OF, RANK, AMOUNT, GUARD, LEVEL, LINK = range(8)
NCOLUMNS = 8
NEAR, BETWEEN_NODES, BETWEEN_DOMAINS = range(3)  # in the order of `hpcoll.analysis.cost.Levels`
# as in `Op`, of steps that move or fold chunks; then the end of a channel
SEND, RECV, RECV_REDUCE, COPY, REDUCE, END = range(6)
_new = tuple.__new__  # a named tuple's own constructor is slow
_ENDS = 3  # groups of ranks at either end that `alike` compares, besides some between


@dataclass(frozen=True)
class EventTable:
    """The steps of ranks ``0 .. nbuilt - 1``, which stand for all."""

    nranks: int
    nbuilt: int  # ranks with rows: all, or those whose steps the others repeat
    nchannels: int  # of every rank, some perhaps empty
    nchunks: int  # as in `hpcoll.schedules.ir.Schedule`
    rows: np.ndarray  # int32 (nrows, NCOLUMNS)
    first: np.ndarray  # int32 (nbuilt * nchannels,): first row of program ``rank * nchannels + channel``
    peers: np.ndarray  # int32 (nrows,): the other rank of a transfer, else -1
    nlinks: int = 1  # links that ranks share: those of nodes, then those of domains

    @property
    def nmessages(self) -> int:
        """The number of messages that the table's ranks send."""
        return int(np.count_nonzero(self.rows[:, OP] == SEND))

    def error(self, row: int, text: str) -> ScheduleError:
        """Return the error of a row."""
        rank, op = int(self.rows[row, RANK]), Op(int(self.rows[row, OP])).name.lower()
        step = int(row - self.first[rank * self.nchannels + self.rows[row, CHANNEL_OF]])
        return ScheduleError(text, rank=rank, step=step, op=f"{op}(peer {self.peers[row]})")


class EventRow(NamedTuple):
    """A row before it is placed in the table: ``guard`` counts from the channel's first row."""

    op: int
    peer: int
    amount: int
    guard: int


class _Sent:
    """The rows of a channel that sent each chunk last."""

    def __init__(self) -> None:
        self.single: dict[tuple[int, int], int] = {}
        self.runs: list[tuple[Chunk, int]] = []

    def add(self, chunk: Chunk, row: int) -> None:
        if chunk.n == 1:
            self.single[chunk.buffer, chunk.index] = row
        else:
            self.runs.append((chunk, row))

    def last(self, run: Chunk) -> int:
        """Return the last row that sent any chunk of a run, or -1."""
        buffer, lo, n = run
        if n == 1:
            latest = self.single.get((buffer, lo), -1)
        elif n < len(self.single):
            latest = max(self.single.get((buffer, index), -1) for index in range(lo, lo + n))
        else:
            latest = max(
                (row for (b, index), row in self.single.items() if b == buffer and lo <= index < lo + n),
                default=-1,
            )
        for (b, first, length), row in reversed(self.runs):
            if row <= latest:
                break
            if b == buffer and first < lo + n and lo < first + length:
                return row
        return latest


def rows_of(steps: Sequence[Step], nchunks: int, *, joined: bool) -> list[EventRow]:
    """Return the rows of a channel of a schedule with ``nchunks`` chunks, END included.

    ``joined``: join two messages that are one run across the last chunk (or that of a stripe), and leave out copies that need not wait.
    Ranks that differ only in where their runs wrap then look alike.
    """
    rows: list[EventRow] = []
    sent, last, before = _Sent(), -1, None
    for step in steps:
        op, peer, dst, srcs, _, _, _ = step
        row = len(rows)
        if dst is None:
            chunk, guard, amount, last = srcs[0], -1, srcs[0].n, row
        else:
            chunk, guard, amount = dst, sent.last(dst), dst.n
            if op == REDUCE:
                amount *= len(srcs) - 1
        if joined and op == COPY and guard < 0:
            continue
        if joined and before and peer >= 0 and _wraps(before, step, chunk, nchunks):
            row, last = row - 1, last if dst else row - 1
            old = rows.pop()
            amount, guard = amount + old.amount, max(guard, old.guard)
        if dst is None:
            sent.add(chunk, row)
        rows.append(_new(EventRow, (op, peer, amount, guard)))
        before = step
    rows.append(EventRow(END, -1, 0, last))
    return rows


def _wraps(before: Step, step: Step, chunk: Chunk, nchunks: int) -> bool:
    """Say whether a transfer continues the one before it across the last of all chunks, or of equal parts of them."""
    if before.op != step.op or before.peer != step.peer or before.srcs[1:] or step.srcs[1:]:
        return False
    run = before.dst or before.srcs[0]
    part = run.index + run.n - chunk.index
    return (
        run.buffer == chunk.buffer
        and part >= run.n + chunk.n
        and nchunks % part == 0
        and chunk.index % part == 0
    )


def build(schedules: Iterable[Schedule], nranks: int, *, joined: bool) -> EventTable:
    """Return the table of the first ranks: of all, or of as many as stand for all; ``joined`` as in `rows_of`.

    The schedules may come from a generator and are not kept. Their number divides ``nranks``. ScheduleError: a message has no receive, or a
    receive no message.
    """
    columns, owners, lengths, nchunks, nbuilt = array("i"), [], [], 1, 0
    for schedule in schedules:
        nchunks, nbuilt = schedule.nchunks, nbuilt + 1
        for channel, steps in enumerate(schedule.channels):
            its_rows = rows_of(steps, nchunks, joined=joined)
            owners.append((schedule.rank, channel))
            lengths.append(len(its_rows))
            for row in its_rows:
                columns.extend(row)
    columns.extend((END, -1, 0, -1))  # the only row of a channel that a rank does not have
    nchannels = max(channel for _, channel in owners) + 1
    written = np.array(columns, np.int32).reshape(-1, len(EventRow._fields))
    starts = np.cumsum([0, *lengths])[:-1]
    programs = np.array([rank * nchannels + channel for rank, channel in owners])
    first = np.full(nbuilt * nchannels, len(written) - 1, np.int32)
    first[programs] = starts
    rows = np.zeros((len(written), NCOLUMNS), np.int32)
    rows[:, OP], rows[:, AMOUNT], rows[:, OTHER] = written[:, 0], written[:, 2], -1
    rows[:-1, RANK], rows[:-1, CHANNEL_OF] = (
        np.repeat(part, lengths) for part in divmod(programs, nchannels)
    )
    rows[:, GUARD] = written[:, 3] + np.where(written[:, 3] < 0, 0, np.append(np.repeat(starts, lengths), 0))
    rows[rows[rows[:, GUARD] >= 0, GUARD], GUARD] = 0
    table = EventTable(nranks, nbuilt, nchannels, nchunks, rows, first, written[:, 1].copy())
    _match(table)
    return table


def _match(table: EventTable) -> None:
    """Fill in OTHER: the k-th send of a rank to another on a channel meets the k-th receive there.

    A message's key has its receiver among the built ranks, the distance of its sender, and the channel.
    """
    rows = table.rows
    sends, receives = (np.flatnonzero(np.isin(rows[:, OP], ops)) for ops in ([SEND], [RECV, RECV_REDUCE]))
    keys = []
    for at, sign in ((sends, -1), (receives, 1)):
        rank, peer = rows[at, RANK].astype(np.int64), table.peers[at].astype(np.int64)
        receiver = peer % table.nbuilt if sign < 0 else rank
        keys.append(
            (receiver * table.nranks + sign * (peer - rank) % table.nranks) * table.nchannels
            + rows[at, CHANNEL_OF]
        )
    orders = [np.argsort(key, kind="stable") for key in keys]
    (sends, sent), (receives, received) = (
        (at[order], key[order]) for at, key, order in zip((sends, receives), keys, orders)
    )
    if not np.array_equal(sent, received):
        raise _lone(table, (sends, _numbered(sent)), (receives, _numbered(received)))
    rows[sends, OTHER] = receives
    odd = np.flatnonzero(rows[sends, AMOUNT] != rows[receives, AMOUNT])
    if len(odd):
        got, wanted = rows[sends[odd[0]], AMOUNT], rows[receives[odd[0]], AMOUNT]
        raise table.error(receives[odd[0]], f"waits for {wanted} chunks, its sender sends {got}")


def _numbered(keys: np.ndarray) -> np.ndarray:
    """Return ascending keys with a number added that differs between equal ones."""
    return keys * (len(keys) + 1) + np.arange(len(keys)) - np.searchsorted(keys, keys)


def _lone(
    table: EventTable, sends: tuple[np.ndarray, np.ndarray], receives: tuple[np.ndarray, np.ndarray]
) -> ScheduleError:
    """Return the error that names the first receive without a send, or else the first send without a receive."""
    waiting = receives[0][~np.isin(receives[1], sends[1])]
    if len(waiting):
        return table.error(waiting.min(), "waits for a message that nobody sends")
    return table.error(
        sends[0][~np.isin(sends[1], receives[1])].min(), "sends a message that nobody receives"
    )


def period(nodes: Nodes) -> int:
    """Return the least number of ranks after which all ranks may look alike on these nodes, or domains; else their number.

    It is 1 where every rank has a node of its own or all share one, and the ranks per node where all nodes have as many, by blocks. For
    nodes with domains, take the larger of both.

    >>> period((0, 1, 2)), period((0, 0, 0)), period((0, 0, 1, 1)), period((0, 1, 0, 1)), period((0, 0, 1))
    (1, 1, 2, 4, 3)
    """
    sizes = [len(ranks) for ranks in members(nodes)]
    if len(sizes) == 1 or max(sizes) == 1:
        return 1
    even = min(sizes) == max(sizes) and list(nodes) == sorted(nodes)
    return sizes[0] if even else len(nodes)


def alike(schedule: Callable[[int], Schedule], nranks: int, every: int, *, joined: bool) -> bool:
    """Say whether all ranks repeat the steps of the first ``every``, which divides their number, judging by a few of them.

    ``joined`` as in `rows_of`.
    """
    count = nranks // every
    looked_at = sorted(
        {*range(1, _ENDS), *range(count - _ENDS, count), count // 3, count // 2, 2 * count // 3}
        & set(range(1, count))
    )
    for rank in range(every):
        # a third of the others each: long schedules take time
        steps, stride = (
            _relative(schedule(rank), joined),
            1 if rank == 0 else 3,
        )
        if any(
            _relative(schedule(rank + every * turn), joined) != steps
            for turn in looked_at[rank % stride :: stride]
        ):
            return False
    return True


def _relative(schedule: Schedule, joined: bool) -> list[list[tuple[int, ...]]]:
    """Return the rows of a schedule's channels, with peers as distances."""
    rows = [rows_of(steps, schedule.nchunks, joined=joined) for steps in schedule.channels]
    rank, nranks = schedule.rank, schedule.nranks
    return [
        [(op, (peer - rank) % nranks if peer >= 0 else -1, *rest) for op, peer, *rest in part]
        for part in rows
    ]


def placed(table: EventTable, nodes: Nodes, domains: Nodes) -> EventTable:
    """Return a table of all ranks, or of as many as `period` returns, on nodes and cache domains, with LEVEL and LINK.

    Where no two ranks share a node, all messages are NEAR.
    """
    rows = table.rows.copy()
    ranks, peers = rows[:, RANK], np.where(table.peers < 0, rows[:, RANK], table.peers)
    rows[:, LEVEL] = levels_of(nodes, domains, ranks, peers)
    rows[:, LINK] = links_of(nodes, domains, rows[:, LEVEL], ranks)
    return replace(table, rows=rows, nlinks=len(set(nodes)) + len(set(domains)))


def levels_of(nodes: Nodes, domains: Nodes, ranks: np.ndarray, peers: np.ndarray) -> np.ndarray:
    """Return the LEVEL of messages between pairs of ranks."""
    node, domain = np.array(nodes), np.array(domains)
    if len(set(nodes)) == len(nodes):
        return np.full(len(ranks), NEAR)
    within = np.where(domain[ranks] == domain[peers], NEAR, BETWEEN_DOMAINS)
    return np.where(node[ranks] == node[peers], within, BETWEEN_NODES)


def links_of(nodes: Nodes, domains: Nodes, levels: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the LINK of ranks' messages: links of nodes come first; NEAR messages take any."""
    return np.where(
        levels == BETWEEN_DOMAINS, len(set(nodes)) + np.array(domains)[ranks], np.array(nodes)[ranks]
    )
