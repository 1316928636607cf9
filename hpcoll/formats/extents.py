"""Extents of scratch cells, found from what programs move through them: their formats have chunks of one size, and no extents."""

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence

from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule


def with_extents(schedules: Sequence[Schedule], meaning: Collective) -> tuple[tuple[Schedule, ...], bool]:
    """Return the schedules with an extent for each cell of SCRATCH, and whether all chunks must be of one size.

    Chunks that a step moves into others have the extents of these. They must be of one size where a cell would have two extents.
    """
    cells = _Classes()
    under_way: dict[tuple[int, int, int], deque[Chunk]] = defaultdict(deque)  # what is sent from rank to rank on a link, in order
    arriving: dict[tuple[int, int, int], deque[Chunk]] = defaultdict(deque)
    for s in schedules:
        for channel, steps in enumerate(s.channels):
            link = s.links[channel] if s.links else channel
            for step in steps:
                if step.op is Op.SEND:
                    under_way[s.rank, step.peer, link].append(step.srcs[0])
                elif step.dst:
                    for src in step.srcs:
                        cells.join(s.rank, src, s.rank, step.dst)
                    if step.op <= Op.RECV_REDUCE:
                        arriving[step.peer, s.rank, link].append(step.dst)
    for (sender, receiver, link), sent in under_way.items():
        for src, dst in zip(sent, arriving[sender, receiver, link]):
            cells.join(sender, src, receiver, dst)
    named, uniform = _named(cells, schedules, meaning)
    found = tuple(
        s._replace(scratch=tuple(named.get(cells.root((s.rank, Buffer.SCRATCH, index)), 0) for index in range(len(s.scratch))))
        for s in schedules
    )  # fmt: skip
    return found, uniform


def _named(cells: "_Classes", schedules: Sequence[Schedule], meaning: Collective) -> tuple[dict["_Node", Hashable], bool]:
    """Return the extent of each class of cells, and whether one has several."""
    named: dict[_Node, Hashable] = {}
    uniform = False
    for s in schedules:
        who = (s.rank, s.nranks, s.root, s.nchunks)
        windows = (
            (Buffer.INPUT, meaning.ninputs(*who), meaning.input_extent),
            (Buffer.OUTPUT, meaning.noutputs(*who), meaning.output_extent),
        )
        for buffer, n, extent in windows:
            for index in range(n):
                own = extent(s.rank, index)
                uniform |= named.setdefault(cells.root((s.rank, buffer, index)), own) != own
    return named, uniform


_Node = tuple[int, int, int]  # rank, buffer, index


class _Classes:
    """Classes of cells that hold chunks of one size."""

    def __init__(self) -> None:
        self._parents: dict[_Node, _Node] = {}

    def root(self, cell: _Node) -> _Node:
        """Return the cell that stands for the class of a cell."""
        parents = self._parents
        while (parent := parents.get(cell, cell)) != cell:
            parents[cell] = cell = parents.get(parent, parent)
        return cell

    def join(self, one: int, src: Chunk, other: int, dst: Chunk) -> None:
        """Make one class of the classes of two runs' cells, pair by pair."""
        for a, b in zip(range(src.index, src.index + src.n), range(dst.index, dst.index + dst.n)):
            first, second = self.root((one, src.buffer, a)), self.root((other, dst.buffer, b))
            if first != second:
                self._parents[first] = second
