"""Schedules made of schedules: a flat algorithm as part of a larger one, among some ranks and on some chunks.

`Node` writes the parts that ranks of a node run among themselves: each sends to all others, since they share memory.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step, Writer, cell, cells_of
from hpcoll.schedules.placement import members
from hpcoll.schedules.row import schedule

_COPY, _SCRATCH = Op.COPY, Buffer.SCRATCH  # looking up members of an enum is slow

Where = Callable[[int], Chunk]  # index of a chunk of the whole schedule -> the memory that has it


def always(chunk: Chunk) -> Where:
    """Return the place of a single chunk."""
    return lambda index: chunk


def compose(
    w: Writer,
    key: str,
    ranks: Sequence[int],
    chunks: Sequence[Sequence[int]],
    source: Where,
    target: Where,
    *,
    root: int = 0,
    channel: int = 0,
) -> None:
    """Write this rank's part of a flat algorithm.

    Args:
        w: Writer of the steps, which go into its current channel.
        key: Catalogue key of the flat algorithm.
        ranks: Ranks that take part, this one among them; ``ranks[i]`` is the flat algorithm's rank i.
        chunks: For each chunk of the flat algorithm its chunks of the whole schedule, equal on all of ``ranks``.
        source: Place of the flat algorithm's INPUT on this rank. A run that is contiguous here must be so on all of ``ranks``, because it
            travels as one message.
        target: Place of its OUTPUT, alike; equal to ``source`` only for algorithms that can run in place.
        root: Index in ``ranks`` of the flat algorithm's root.
        channel: Channel of the flat algorithm that is written.
    """
    if len(ranks) == 1:
        for index in (index for part in chunks for index in part if source(index) != target(index)):
            w.copy(source(index), target(index))
        return
    flat = _flat(key, len(ranks), ranks.index(w.rank), root, len(chunks))
    assert flat.nchunks == len(chunks), (key, flat.nchunks, len(chunks))
    steps = flat.channels[channel] if channel < len(flat.channels) else ()
    memory = _memory(w, flat, steps, chunks, (source, target))
    for step in steps:
        operands = [memory(run) for run in step.runs]
        for lo, hi in pieces(operands):
            runs = [operand[lo] if hi == lo + 1 else operand[lo]._replace(n=hi - lo) for operand in operands]
            dst, srcs = (runs[0], tuple(runs[1:])) if step.dst else (None, tuple(runs))
            if step.op is not _COPY or dst != srcs[0]:
                w.step(
                    Step(step.op, ranks[step.peer] if step.peer >= 0 else -1, dst, srcs, step.received_first)
                )


@lru_cache(maxsize=8)  # for the next channel, and for the next owner of the node
def _flat(key: str, nranks: int, rank: int, root: int, nchunks: int) -> Schedule:
    return schedule(CATALOGUE[key], nranks, rank, root, nchunks)


def cells(run: Chunk) -> list[Chunk]:
    """Return the chunks of a run one by one."""
    return [cell(run, i) for i in range(run.n)]


def joined(chunks: Mapping[int, Chunk]) -> Chunk:
    """Return consecutive chunks as a run."""
    return next(iter(chunks.values()))._replace(n=len(chunks))


def _memory(
    w: Writer,
    flat: Schedule,
    steps: Sequence[Step],
    chunks: Sequence[Sequence[int]],
    places: tuple[Where, Where],
) -> Callable[[Chunk], list[Chunk]]:
    """Return the function that gives the chunks of the whole schedule which a run of the flat one has."""
    meaning = COLLECTIVES[flat.collective]
    extents = meaning.input_extent, meaning.output_extent
    runs = [run for step in steps for run in step.runs if run.buffer is _SCRATCH]
    used = sorted({i for run in runs for _, i in cells_of(run)})  # in this channel
    scratch = {i: cells(w.scratch(*chunks[flat.scratch[i]])) for i in used}  # type: ignore[call-overload]

    def memory(run: Chunk) -> list[Chunk]:
        buffer, first, n = run
        found: list[Chunk] = []
        for i in range(first, first + n):
            if buffer is _SCRATCH:
                found += scratch[i]
            else:
                part: int = extents[buffer](flat.rank, i)  # type: ignore[assignment]
                found += map(places[buffer], chunks[part])
        return found

    return memory


def pieces(operands: Sequence[Sequence[Chunk]]) -> list[tuple[int, int]]:
    """Return the ranges in which the chunks of every operand are contiguous in memory."""
    n = len(operands[0])
    if n == 1:
        return [(0, 1)]
    cuts = [
        i
        for i in range(1, n)
        if any(chunks[i] != (chunks[i - 1][0], chunks[i - 1][1] + 1, 1) for chunks in operands)
    ]
    return list(pairwise([0, *cuts, n]))


class Node:
    """The ranks of a writer's node, and the division of work between them.

    Each of the first ``nstripes`` ranks is the **owner** of a stripe, a part of the chunks. It exchanges the stripe with the owners of the
    same stripe on other nodes.

    Attributes:
        all: Ranks of each node.
        mates: Ranks of this node, ascending; with ``rooted`` the root comes first.
        local: Index of this rank in ``mates``.
        nstripes: Number of stripes: ranks of the smallest node, unless given.
        owner: This rank owns a stripe.
        stripe: Owners of this rank's stripe, one per node; empty for a rank that owns none.
        root: Index of the root's node.
    """

    def __init__(self, w: Writer, *, rooted: bool = False, nstripes: int | None = None) -> None:
        self.all = [list(ranks) for ranks in members(w.nodes)]
        self.root = w.nodes[w.root]
        if rooted:
            self.all[self.root].sort(key=lambda rank: rank != w.root)
        self.w, self.mates = w, self.all[w.nodes[w.rank]]
        self.local = self.mates.index(w.rank)
        self.nstripes = nstripes or min(map(len, self.all))
        self.owner = self.local < self.nstripes
        self.stripe = [ranks[self.local] for ranks in self.all] if self.owner else []

    def owners(self) -> list[int]:
        """Return the owners on this node."""
        return self.mates[: self.nstripes]

    def others(self, ranks: Sequence[int]) -> list[int]:
        """Return ``ranks`` without this rank, from the next one on, so that no two ranks begin with the same peer."""
        start = self.mates.index(self.w.rank)
        return [rank for rank in (*self.mates[start + 1 :], *self.mates[:start]) if rank in ranks]

    def owner_of(self, rank: int) -> int:
        """Return the owner on this node of the stripe that has the block of a rank of this node."""
        return self.mates[self.mates.index(rank) % self.nstripes]

    def stripe_mates(self) -> list[int]:
        """Return the other ranks of this node whose blocks are in this owner's stripe."""
        return self.mates[self.local + self.nstripes :: self.nstripes] if self.owner else []

    def blocks(self, stripe: int) -> list[list[int]]:
        """Return the blocks, by rank, of a stripe, for each node; none where no rank owns it."""
        return [ranks[stripe :: self.nstripes] if stripe < self.nstripes else [] for ranks in self.all]

    def stripe_blocks(self, rank: int) -> list[int]:
        """Return the blocks of the stripe that a rank of this node owns."""
        return [block for blocks in self.blocks(self.mates.index(rank)) for block in blocks]

    def packed(self, rank: int) -> dict[int, Chunk]:
        """Allocate consecutive scratch cells for the blocks of the stripe that a rank of this node owns."""
        blocks = self.stripe_blocks(rank)
        return dict(zip(blocks, cells(self.w.scratch(*blocks))))

    def exchange(
        self,
        sent: Callable[[int], Sequence[Chunk]],
        received: Callable[[int], int],
        receive: Callable[[int, int], None],
    ) -> None:
        """Write an exchange of several messages with every other rank of the node: the first with each, then the second, ...

        Few messages wait to be used in that order. ``sent`` returns the chunks that a rank is sent, ``received`` the number of messages
        from a rank, and ``receive`` writes the receive of a rank's message with a number.
        """
        peers = self.others(self.mates)
        to, come = (
            [(peer, sent(peer)) for peer in peers],
            [(peer, received(peer)) for peer in reversed(peers)],
        )
        for turn in range(max([0, *(len(chunks) for _, chunks in to), *(n for _, n in come)])):
            for peer, chunks in to:
                if turn < len(chunks):
                    self.w.send(peer, chunks[turn])
            for peer, n in come:
                if turn < n:
                    receive(peer, turn)

    def fold(self, stripe_of: Callable[[int], Chunk], into: Callable[[Chunk], Chunk]) -> Chunk | None:
        """Write the reduction of each stripe over the ranks of the node at its owner, and return its place there; None elsewhere.

        ``stripe_of`` returns the chunks of a stripe, as a run of INPUT, and ``into`` the place for the result of such a run.
        """
        w = self.w
        for peer in self.others(self.owners()):
            w.send(peer, stripe_of(self.mates.index(peer)))
        if not self.owner:
            return None
        own = stripe_of(self.local)
        if len(self.mates) == 1:
            return own
        contributions = {w.rank: own}
        for peer in reversed(self.others(self.mates)):
            contributions[peer] = w.scratch(*range(own.index, own.index + own.n))
            w.recv(peer, contributions[peer])
        result = into(own)
        w.reduce(*(contributions[peer] for peer in sorted(self.mates)), dst=result)
        return result

    def spread(self, stripe_of: Callable[[int], Chunk], but: int = -1) -> None:
        """Write the broadcast of every stripe from its owner to the ranks of the node, except ``but``, which has them all."""
        if self.owner:
            for peer in self.others(self.mates):
                if peer != but:
                    self.w.send(peer, stripe_of(self.local))
        if self.w.rank != but:
            for peer in reversed(self.others(self.owners())):
                self.w.recv(peer, stripe_of(self.mates.index(peer)))
