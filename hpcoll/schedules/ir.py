"""The language of schedules: what one rank does, as data. Knows neither MPI nor memory nor time.

A schedule is one rank's part of a collective for one segment: per channel an in-order list of steps. Sends do not
block; receives do. Chunks are named, not addressed: ``(buffer, index, n)`` is a run of ``n`` consecutive chunks.
INPUT is read-only; in an in-place call some INPUT chunks are OUTPUT chunks (see `hpcoll.schedules.collectives`).
SCRATCH cells are allocated by the builder and are as large as the chunk whose extent they borrow.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hpcoll.schedules.placement import Nodes

RING_SLOTS = 4  # messages between two ranks of a node, per channel, that may wait to be used before the next send of that channel waits


class Buffer(IntEnum):
    """Where a chunk lives."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


class Chunk(NamedTuple):
    """A run of ``n`` consecutive chunks of one buffer, starting at ``index``."""

    buffer: Buffer
    index: int  # type: ignore[assignment]  # hides tuple.index
    n: int = 1

    def __str__(self) -> str:
        last = f"..{self.index + self.n - 1}" if self.n > 1 else ""
        return f"{self.buffer.name.lower()}[{self.index}{last}]"


class Op(IntEnum):
    """Operations of a step."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3
    REDUCE = 4


class Step(NamedTuple):
    """One operation of one rank.

    Attributes:
        op: What it does.
        peer: Other end of a transfer; -1 for local steps.
        dst: Chunks written; None for a send.
        srcs: Chunks read. SEND and COPY: one. RECV: none. RECV_REDUCE: one, ``dst = src op received``.
            REDUCE: two or more, folded left to right.
        received_first: RECV_REDUCE only: ``dst = received op src`` (the peer's ranks are the lower ones).
        put: SEND and RECV, on both sides: the sender writes the receiver's memory where it can, which it is told of at the start. So until
            then the receiver's channel names those chunks in sends to this peer only (in place they are INPUT, too).
    """

    op: Op
    peer: int
    dst: Chunk | None
    srcs: tuple[Chunk, ...]
    received_first: bool = False
    put: bool = False

    def __str__(self) -> str:
        name = self.op.name.lower()
        args = [f"peer {self.peer}"] if self.peer >= 0 else []
        args += [", ".join(str(src) for src in self.srcs)] if self.srcs else []
        return f"{name}({', '.join(args)}{' -> ' + str(self.dst) if self.dst else ''})"


@dataclass(frozen=True)
class Schedule:
    """One rank's part of a collective.

    Attributes:
        collective, algorithm: The catalogue key's two halves.
        nranks, rank, root: Who; ``root`` is 0 for collectives without one.
        nchunks: Chunks that one segment of a vector collective is cut into; ``nranks`` for block collectives.
        channels: Steps per channel, in order. Channels share no chunk that either writes.
        scratch: Extent of each scratch cell, as `hpcoll.schedules.collectives` names extents.
    """

    collective: str
    algorithm: str
    nranks: int
    rank: int
    root: int
    nchunks: int
    channels: tuple[tuple[Step, ...], ...]
    scratch: tuple[Hashable, ...] = ()

    def __repr__(self) -> str:
        return f"{self.collective}/{self.algorithm}(nranks={self.nranks}, rank={self.rank}, root={self.root})"


class Writer:
    """What a builder writes its steps with; carries who it writes for.

    Attributes:
        nranks, rank, root: As in `Schedule`; ``vrank`` is the rank after rotating the root to 0.
        nchunks: As in `Schedule`.
        nodes: Placement, as in `hpcoll.schedules.placement`: the number of each rank's node.
    """

    def __init__(self, nranks: int, rank: int, root: int, nchunks: int, nodes: Nodes = ()) -> None:
        self.nranks, self.rank, self.root, self.nchunks, self.nodes = nranks, rank, root, nchunks, nodes
        self.vrank = (rank - root) % nranks
        self.channels: list[list[Step]] = [[]]
        self.extents: list[Hashable] = []
        self._steps = self.channels[0]

    def channel(self, index: int) -> None:
        """Append the following steps to channel ``index``."""
        while len(self.channels) <= index:
            self.channels.append([])
        self._steps = self.channels[index]

    def step(self, step: Step) -> None:
        """Append a step as it is."""
        self._steps.append(step)

    def scratch(self, *extents: Hashable) -> Chunk:
        """A run of fresh scratch cells, one for each extent named (a chunk index, or block index, whose size it has)."""
        self.extents.extend(extents)
        return Chunk(Buffer.SCRATCH, len(self.extents) - len(extents), len(extents))

    def send(self, peer: int, src: Chunk, *, put: bool = False) -> None:
        """Send ``src`` to ``peer``; does not block the channel."""
        self._steps.append(Step(Op.SEND, peer, None, (src,), put=put))

    def recv(self, peer: int, dst: Chunk, *, put: bool = False) -> None:
        """Receive into ``dst`` from ``peer``."""
        self._steps.append(Step(Op.RECV, peer, dst, (), put=put))

    def recv_reduce(self, peer: int, dst: Chunk, src: Chunk | None = None, *, received_first: bool = False) -> None:
        """``dst = src op received`` (or ``received op src``); ``src`` defaults to ``dst``."""
        self._steps.append(Step(Op.RECV_REDUCE, peer, dst, (src or dst,), received_first))

    def copy(self, src: Chunk, dst: Chunk) -> None:
        """``dst = src``, locally."""
        self._steps.append(Step(Op.COPY, -1, dst, (src,)))

    def reduce(self, dst: Chunk, *srcs: Chunk) -> None:
        """``dst = srcs[0] op srcs[1] op ...``, locally, folded left to right."""
        self._steps.append(Step(Op.REDUCE, -1, dst, srcs))

    def peer(self, vrank: int) -> int:
        """Rank of a vrank, taken modulo nranks."""
        return (vrank + self.root) % self.nranks


def inputs(index: int, n: int = 1) -> Chunk:
    """Run of INPUT chunks."""
    return Chunk(Buffer.INPUT, index, n)


def outputs(index: int, n: int = 1) -> Chunk:
    """Run of OUTPUT chunks."""
    return Chunk(Buffer.OUTPUT, index, n)


def cell(run: Chunk, index: int, n: int = 1) -> Chunk:
    """Sub-run of ``n`` chunks of a run, from its ``index``-th on."""
    return Chunk(run.buffer, run.index + index, n)
