"""Rows from timed hops: which item goes from which rank to which other in each step, as a search finds them.

A collective without reduction moves items forwards, from the rank that has one to those that want it. A reduction is that backwards: an
item's contributions go towards the rank of its result along the ways on which it could come from there. An allreduce goes backwards, then
forwards.

In a step ranks send first, then receive; where one sends more messages to another than there are slots, both do so by turns. So a rank that
waits for a free slot waits for one that is not as far, and somebody can always go on.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from hpcoll.schedules.collectives import COLLECTIVES, meaning
from hpcoll.schedules.composition import pieces
from hpcoll.schedules.ir import RING_SLOTS, Chunk, Writer, inputs, outputs
from hpcoll.schedules.row import Algorithm

SERVED = ("allgather", "allreduce", "alltoall", "bcast", "gather", "reduce", "reduce_scatter", "scatter")


class Demand(NamedTuple):
    """An item, the rank that has it, and the others that want it; backwards: the rank of the result, and those that contribute."""

    item: Hashable
    source: int
    targets: frozenset[int]


class Hop(NamedTuple):
    """An item that goes from a rank to another in a step; backwards: its partial result."""

    step: int
    item: Hashable
    sender: int
    receiver: int


class Task:
    """A collective of a number of ranks, of whose blocks each has some chunks; a vector is one block, an allreduce's one per rank.

    Attributes:
        collective: Its name, one of `SERVED`.
        nranks: Number of ranks, ``>= 2``.
        root: Rank of the root; 0 for collectives without one.
        chunks: Chunks of each block.
        parts: Chunks of each block of a block collective, else 1.
        meaning: Its definition; ``nchunks``: as in `hpcoll.schedules.ir.Schedule`.
        backwards: For each part of it, one after the other: it reduces.
    """

    def __init__(self, collective: str, nranks: int, root: int, chunks: int) -> None:
        self.collective, self.nranks, self.root, self.chunks = collective, nranks, root, chunks
        self.parts = chunks if COLLECTIVES[collective].blocks else 1
        self.meaning = meaning(collective, None, self.parts)
        self.nchunks = nranks * chunks if self.meaning.blocks or collective == "allreduce" else chunks
        self.backwards = (True, False) if collective == "allreduce" else (self.meaning.reduces,)

    @cached_property
    def inputs(self) -> list[dict[Hashable, Chunk]]:
        """The chunk of INPUT with each item, of each rank."""
        m, who = self.meaning, (self.nranks, self.root, self.nchunks)
        return [
            {m.input_item(rank, i): inputs(i) for i in range(m.ninputs(rank, *who))}
            for rank in range(self.nranks)
        ]

    @cached_property
    def outputs(self) -> list[dict[Hashable, Chunk]]:
        """The chunk of OUTPUT that must hold each item, of each rank."""
        m, who = self.meaning, (self.nranks, self.root, self.nchunks)
        return [
            {m.output_item(rank, i): outputs(i) for i in range(m.noutputs(rank, *who))}
            for rank in range(self.nranks)
        ]

    @cached_property
    def extents(self) -> dict[Hashable, Hashable]:
        """The extent of each item."""
        found = self.inputs
        return {
            item: self.meaning.input_extent(rank, chunk.index)
            for rank in range(self.nranks)
            for item, chunk in found[rank].items()
        }

    @cached_property
    def demands(self) -> list[Demand]:
        """The demands, the same for all parts."""
        ranks = range(self.nranks)
        holders = self.outputs if self.meaning.reduces else self.inputs
        wanting = self.inputs if self.meaning.reduces else self.outputs
        wanted = []
        for item in self.extents:
            holding = [rank for rank in ranks if item in holders[rank]]
            source = holding[0] if len(holding) == 1 else self.extents[item] // self.chunks  # type: ignore[operator]  # an allreduce's
            wanted.append(
                Demand(item, source, frozenset(rank for rank in ranks if item in wanting[rank]) - {source})
            )
        return [demand for demand in wanted if demand.targets]


_Link = tuple[int, int]  # sender, receiver


class _Pen:
    """Takes down the steps of all ranks; ``holds``: the chunk with each item that a rank has now."""

    def __init__(self, task: Task) -> None:
        self.task, ranks = task, range(task.nranks)
        self.writers = [Writer(task.nranks, rank, task.root, task.nchunks) for rank in ranks]
        self.holds = [dict(held) for held in task.inputs]

    def copies(self) -> None:
        """Copy what a rank has and wants itself."""
        for writer, has, wants in zip(self.writers, self.task.inputs, self.task.outputs):
            both = [(has[item], wants[item]) for item in has if item in wants]
            for first, last in pieces(list(zip(*both))) if both else ():
                writer.copy(*(chunk._replace(n=last - first) for chunk in both[first]))

    def step(self, hops: Sequence[Hop], backwards: bool) -> None:
        """Write the messages of a step."""
        items: dict[_Link, list[Hashable]] = defaultdict(list)
        for hop in sorted(hops, key=lambda earlier: self.holds[earlier.sender][earlier.item]):
            items[hop.sender, hop.receiver].append(hop.item)
        links = sorted(items, key=lambda link: (link[1] - link[0]) % self.task.nranks)
        targets: dict[tuple[int, Hashable], Chunk] = {}
        for link in links:
            for key in ((link[1], item) for item in items[link]):
                if key not in targets:
                    targets[key] = self._target(*key, backwards)
        while any(items.values()):
            turns = [link for _ in range(RING_SLOTS) for link in links]
            messages = [
                (*link, *self._message(link, items[link], targets, backwards))
                for link in turns
                if items[link]
            ]
            for sender, receiver, source, _, _ in messages:
                self.writers[sender].send(receiver, source)
            for sender, receiver, _, target, old in messages:
                writer = self.writers[receiver]
                writer.recv_reduce(sender, old, target) if backwards else writer.recv(sender, target)

    def _message(
        self,
        link: _Link,
        items: list[Hashable],
        targets: Mapping[tuple[int, Hashable], Chunk],
        backwards: bool,
    ) -> tuple[Chunk, Chunk, Chunk]:
        """Take the items of the next message; return what is sent, what is written and, backwards, what is combined with it."""
        sender, receiver = link
        source, target = (
            [self.holds[sender][item] for item in items],
            [targets[receiver, item] for item in items],
        )
        old = [self.holds[receiver][item] for item in items] if backwards else source
        _, n = pieces([source, target, old])[0]
        self.holds[receiver].update(zip(items[:n], target))
        del items[:n]
        return source[0]._replace(n=n), target[0]._replace(n=n), old[0]._replace(n=n)

    def _target(self, rank: int, item: Hashable, backwards: bool) -> Chunk:
        """Return where a rank receives an item; backwards: where it was before, if that is no INPUT."""
        held = self.holds[rank].get(item)
        if backwards and held and held != self.task.inputs[rank].get(item):
            return held
        return self.task.outputs[rank].get(item) or self.writers[rank].scratch(self.task.extents[item])


def row(task: Task, parts: Sequence[Sequence[Hop]], name: str, summary: str, source: str) -> Algorithm:
    """Return a row of the catalogue's kind for a task, from the hops of each of its parts; its costs are not known yet."""
    pen = _Pen(task)
    if not task.meaning.reduces and not task.meaning.always_in_place:
        pen.copies()
    for backwards, hops in zip(task.backwards, parts, strict=True):
        for step in sorted({hop.step for hop in hops}):
            pen.step([hop for hop in hops if hop.step == step], backwards)

    def build(writer: Writer) -> None:
        writer.extents += pen.writers[writer.rank].extents
        writer.channels[0] += pen.writers[writer.rank].channels[0]

    algorithm = Algorithm(
        task.collective, name, summary, source, "0", "0", "0", chunks=str(task.nchunks), parts=task.parts
    )
    return algorithm._replace(serves=(task.nranks,), builder=build)
