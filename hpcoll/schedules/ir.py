"""The language of schedules: one rank's part of a collective, as data, and the partition of messages. Knows no MPI, memory or time.

A schedule is one rank's part of a collective for one segment of the message. Each channel is a list of steps in order. Sends do not block
their channel, receives do. ``(buffer, index, n)`` names ``n`` consecutive chunks. INPUT is read-only; in an in-place call some chunks of
INPUT are chunks of OUTPUT (`hpcoll.schedules.collectives`). Builders allocate the cells of SCRATCH, each as large as the chunk whose extent
it has.
"""

from collections.abc import Hashable
from enum import IntEnum
from operator import index as integer
from typing import Any, NamedTuple

from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.sizes import least
from hpcoll.base.text import counted, quoted
from hpcoll.schedules.collectives import COLLECTIVES, Collective, meaning
from hpcoll.schedules.graph import Graph
from hpcoll.schedules.placement import Nodes

RING_SLOTS = 4  # messages from one rank to another on its node, per channel, that may wait to be used before the sender waits


class Buffer(IntEnum):
    """The buffer of a chunk."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


class Chunk(NamedTuple):
    """``n`` consecutive chunks of a buffer, from ``index`` on."""

    buffer: Buffer
    index: int  # type: ignore[assignment]  # hides tuple.index
    n: int = 1

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        last = f"..{self.index + self.n - 1}" if self.n > 1 else ""
        return f"{self.buffer.name.lower()}[{self.index}{last}]"


class Op(IntEnum):
    """The operation of a step."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3
    REDUCE = 4
    AFTER = 5


_INPUT, _OUTPUT, _SCRATCH = (
    Buffer  # looking up members of an enum is slow, and so is a named tuple's own constructor
)
_SEND, _RECV, _RECV_REDUCE, _COPY, _REDUCE, _AFTER = Op
_NONE = (-1, 0)  # a step's ``after``, except in AFTER
_new = tuple.__new__


class Step(NamedTuple):
    """An operation of one rank.

    Attributes:
        op: The operation.
        peer: The other rank of a transfer; -1 for local steps.
        dst: Chunks that are written; None for SEND and AFTER.
        srcs: Chunks that are read. SEND and COPY: one run. RECV and AFTER: none. RECV_REDUCE: one, for ``dst = src op received``. REDUCE:
            two or more, folded as the canonical expression (`hpcoll.base.canonical`).
        received_first: RECV_REDUCE computes ``dst = received op src`` (the peer's ranks are the lower ones).
        put: Set on SEND and its RECV: the sender writes the receiver's memory where it can, once the receiver's call has begun. Before that
            step the receiver's channel names these chunks only in sends to this peer (in place they are INPUT, too).
        after: AFTER waits until this rank has run so many steps of another channel: ``(channel, steps)``.
    """

    op: Op
    peer: int
    dst: Chunk | None
    srcs: tuple[Chunk, ...]
    received_first: bool = False
    put: bool = False
    after: tuple[int, int] = (-1, 0)

    @property
    def runs(self) -> tuple[Chunk, ...]:
        """The runs of chunks that it touches, the one that it writes first."""
        return self.srcs if self.dst is None else (self.dst, *self.srcs)

    def __str__(self) -> str:
        name = self.op.name.lower()
        if self.op == Op.AFTER:
            return f"after({self.after[1]} steps of channel {self.after[0]})"
        args = [f"peer {self.peer}"] if self.peer >= 0 else []
        args += [", ".join(str(src) for src in self.srcs)] if self.srcs else []
        return f"{name}({', '.join(args)}{' -> ' + str(self.dst) if self.dst else ''})"


class Schedule(NamedTuple):
    """The part of one rank in a collective.

    Attributes:
        collective: Name of the collective.
        algorithm: Name of the algorithm.
        nranks: Number of ranks.
        rank: The rank whose part it is.
        root: Rank of the root; 0 for collectives without one.
        nchunks: Chunks of a segment of a vector collective; of all ranks' blocks for block collectives, a multiple of ``nranks``; the
            graph's degree for neighbourhood ones.
        channels: Steps of each channel. Where channels share a chunk that one of them writes, AFTER steps or messages order them.
        scratch: Extent of each cell of SCRATCH, named as in `hpcoll.schedules.collectives`.
        graph: Graph of a neighbourhood collective, else None.
        links: The link of each channel's messages; empty: a link for each channel. Messages from one rank to another on one link are
            received in the order in which they are sent.
    """

    collective: str
    algorithm: str
    nranks: int
    rank: int
    root: int
    nchunks: int
    channels: tuple[tuple[Step, ...], ...]
    scratch: tuple[Hashable, ...] = ()
    graph: Graph | None = None
    links: tuple[int, ...] = ()

    @property
    def meaning(self) -> Collective:
        """The definition of its collective: on its graph, with as many chunks to a block as it has."""
        blocks = COLLECTIVES[self.collective].blocks and self.graph is None
        return meaning(self.collective, self.graph, self.nchunks // self.nranks if blocks else 1)

    def __repr__(self) -> str:
        return f"{self.collective}/{self.algorithm}(nranks={self.nranks}, rank={self.rank}, root={self.root})"


class Writer:
    """Takes down the steps that a builder writes for one rank.

    Attributes:
        nranks: Number of ranks; ``rank``, ``root``, ``nchunks``: as in `Schedule`.
        vrank: The rank after rotating the root to 0.
        nodes: Placement: the number of each rank's node (`hpcoll.schedules.placement`).
        graph: As in `Schedule`.
        channels: The steps so far, per channel.
        extents: Extents of the scratch cells so far.
    """

    def __init__(
        self, nranks: int, rank: int, root: int, nchunks: int, nodes: Nodes = (), graph: Graph | None = None
    ) -> None:
        self.nranks, self.rank, self.root, self.nchunks, self.nodes, self.graph = (
            nranks,
            rank,
            root,
            nchunks,
            nodes,
            graph,
        )
        self.vrank = (rank - root) % nranks
        self.channels: list[list[Step]] = [[]]
        self.extents: list[Hashable] = []
        self._steps = self.channels[0]

    def __repr__(self) -> str:
        sizes = counted(self.nchunks, "chunk"), counted(sum(map(len, self.channels)), "step")
        return (
            f"<hpcoll.Writer: rank {self.rank} of {self.nranks}, root {self.root}, {', '.join(sizes)} so far>"
        )

    def channel(self, index: int) -> None:
        """Append the following steps to channel ``index``."""
        while len(self.channels) <= index:
            self.channels.append([])
        self._steps = self.channels[index]

    def step(self, step: Step) -> None:
        """Append a step as it is."""
        self._steps.append(step)

    def scratch(self, *extents: Hashable) -> Chunk:
        """Allocate consecutive cells of SCRATCH, one for each extent: the index of the chunk, or block, whose size it has.

        ``w.scratch(0, 0)`` are two cells, each as large as chunk 0.
        """
        self.extents.extend(extents)
        return _new(Chunk, (_SCRATCH, len(self.extents) - len(extents), len(extents)))

    def send(self, peer: int, src: Chunk, *, put: bool = False) -> None:
        """Append a SEND of ``src`` to ``peer``, which does not block the channel."""
        if type(src) is not Chunk or type(peer) is not int:
            peer = _checked("send(peer, src)", src, peer=peer)
        self._steps.append(_new(Step, (_SEND, peer, None, (src,), False, put, _NONE)))

    def recv(self, peer: int, dst: Chunk, *, put: bool = False) -> None:
        """Append a RECV into ``dst`` from ``peer``."""
        if type(dst) is not Chunk or type(peer) is not int:
            peer = _checked("recv(peer, dst)", dst, peer=peer)
        self._steps.append(_new(Step, (_RECV, peer, dst, (), False, put, _NONE)))

    def recv_reduce(
        self, peer: int, src: Chunk, dst: Chunk | None = None, *, received_first: bool = False
    ) -> None:
        """Append a RECV_REDUCE: ``dst = src op received``, or ``received op src``; ``dst`` defaults to ``src``."""
        if type(src) is not Chunk or type(peer) is not int or type(dst) is not Chunk:
            dst = src if dst is None else dst
            peer = _checked("recv_reduce(peer, src, dst)", src, dst, peer=peer)
        if dst[0] is _INPUT:
            raise ArgumentTypeError(
                f"recv_reduce(peer, src, dst) has its source first, as copy has, and cannot write {dst}"
            )
        self._steps.append(_new(Step, (_RECV_REDUCE, peer, dst, (src,), received_first, False, _NONE)))

    def copy(self, src: Chunk, dst: Chunk) -> None:
        """Append a local ``dst = src``."""
        if type(src) is not Chunk or type(dst) is not Chunk:
            _checked("copy(src, dst)", src, dst)
        self._steps.append(_new(Step, (_COPY, -1, dst, (src,), False, False, _NONE)))

    def reduce(self, *srcs: Chunk, dst: Chunk | None = None) -> None:
        """Append a local ``dst = srcs[0] op srcs[1] op ...``, the canonical expression (`hpcoll.base.canonical`) of the sources."""
        if dst is None:
            raise ArgumentTypeError("reduce(*srcs, dst=...) has its sources first, and names its destination")
        for src in (*srcs, dst):
            if type(src) is not Chunk:
                _checked("reduce(*srcs, dst=...)", src)
        self._steps.append(_new(Step, (_REDUCE, -1, dst, srcs, False, False, _NONE)))

    def after(self, channel: int, steps: int) -> None:
        """Append an AFTER: the following steps of the channel wait until this rank has run so many steps of another channel."""
        self._steps.append(_new(Step, (_AFTER, -1, None, (), False, False, (channel, steps))))

    def peer(self, vrank: int) -> int:
        """Return the rank of a vrank, taken modulo nranks."""
        return (vrank + self.root) % self.nranks


def _checked(name: str, *runs: Any, peer: Any = 0) -> int:
    """Return a peer as an integer; ArgumentTypeError: it is none, or some chunks are none."""
    for run in runs:
        if type(run) is not Chunk:
            what = f"{run.__name__} without an index" if run in (inputs, outputs) else quoted(run)
            raise ArgumentTypeError(
                f"{name} needs chunks such as inputs(0), outputs(2) or those of w.scratch(0), got {what}"
            )
    try:
        return integer(peer)
    except TypeError:
        raise ArgumentTypeError(
            f"{name} needs the rank of its peer, an integer, got {quoted(peer)}"
        ) from None


def inputs(index: int, n: int = 1) -> Chunk:
    """Return ``n`` chunks of INPUT."""
    return _new(Chunk, (_INPUT, index, n))


def outputs(index: int, n: int = 1) -> Chunk:
    """Return ``n`` chunks of OUTPUT."""
    return _new(Chunk, (_OUTPUT, index, n))


def cell(run: Chunk, index: int, n: int = 1) -> Chunk:
    """Return ``n`` chunks of a run, from its ``index``-th on."""
    return _new(Chunk, (run.buffer, run.index + index, n))


def cells_of(run: Chunk) -> list[tuple[Buffer, int]]:
    """Return the chunks of a run one by one, as buffer and index."""
    return [(run.buffer, index) for index in range(run.index, run.index + run.n)]


def chunk_bounds(count: Any, nchunks: int, index: int) -> tuple[Any, Any]:
    """Return the element range of one chunk of a message.

    The chunks tile ``[0, count)`` in order; the first ``count % nchunks`` are one element longer than the others.

    Args:
        count: Length of the message, in elements; ``>= 0``.
        nchunks: Number of chunks, ``>= 1``.
        index: Number of the chunk, ``0 <= index < nchunks``.

    Returns:
        ``(lo, hi)``: displacements, in elements, of the first element and of the one behind the last.

    Raises:
        ArgumentError: ``count`` is negative or ``index`` is outside its range.

    >>> [chunk_bounds(10, 4, i) for i in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    if count < 0 or not 0 <= index < nchunks:
        raise ArgumentError(
            f"chunk needs count >= 0 and 0 <= index < {nchunks}, got count {count}, index {index}"
        )
    quotient, remainder = divmod(count, nchunks)
    return index * quotient + least(index, remainder), (index + 1) * quotient + least(index + 1, remainder)


def segment_count(count: int, segment: int) -> int:
    """Return the number of segments of at most ``segment`` elements in a message of ``count``; at least 1.

    >>> segment_count(10, 4), segment_count(0, 4), segment_count(8, 4)
    (3, 1, 2)
    """
    return max(1, -(-count // max(1, segment)))


def cyclic_runs(start: int, length: int, modulus: int) -> list[tuple[int, int]]:
    """Return a cyclic range of indices as at most two runs ``(first, length)``; none for no length.

    >>> cyclic_runs(5, 4, 7), cyclic_runs(2, 3, 7), cyclic_runs(3, 0, 7)
    ([(5, 2), (0, 2)], [(2, 3)], [])
    """
    start %= modulus
    head = min(length, modulus - start)
    return [run for run in ((start, head), (0, length - head)) if run[1] > 0]
