"""The structure of a schedule - rings, trees, rounds - for drawings. Knows no terminal and no picture format.

The messages themselves show the structure. Per channel and phase (messages that are reduced, messages that are not), the edges from sender
to receiver are a ring, a tree over all ranks, or else a list of rounds. In a round every message takes one unit of time.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from hpcoll.analysis.timeline import ROUNDS, Timeline, simulate
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import MAX_BUILT, MAX_CHUNKS
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm, schedule

MAX_STEPS = 1 << 20  # of all ranks

Edge = tuple[int, int]  # sender, receiver


@dataclass(frozen=True)
class Tree:
    """A tree over all ranks."""

    root: int
    children: tuple[tuple[int, ...], ...]  # children of each rank
    up: str  # "reduced" or "sent" where data goes towards the root, else ""
    down: str  # "sent" where data goes away from the root, else ""

    @property
    def caption(self) -> str:
        """The tree in words."""
        kind = "chain" if self.is_chain() else "tree"
        ways = [f"{self.up} towards rank {self.root}"] * bool(self.up) + [
            f"sent from rank {self.root}"
        ] * bool(self.down)
        return f"{kind}, {', then '.join(ways)}"

    def is_chain(self) -> bool:
        """Say whether no rank has two children."""
        return all(len(children) <= 1 for children in self.children)

    def preorder(self) -> list[tuple[int, int]]:
        """Return all ranks with their depths, parents first."""
        visited, stack = [], [(self.root, 0)]
        while stack:
            rank, depth = stack.pop()
            visited.append((rank, depth))
            stack.extend((child, depth + 1) for child in reversed(self.children[rank]))
        return visited


@dataclass(frozen=True)
class Ring:
    """A ring: every rank sends to the next one in ``order``, the last to the first."""

    order: tuple[int, ...]
    caption = "ring"


@dataclass(frozen=True)
class Rounds:
    """The edges of each round: ``(first round, last round, edges)``, rounds counted from 1."""

    rounds: tuple[tuple[int, int, tuple[Edge, ...]], ...]
    caption = "who sends to whom, by rounds"


Shape = Tree | Ring | Rounds


@dataclass(frozen=True)
class Drawing:
    """The parts of an algorithm's drawing."""

    row: Algorithm
    schedules: tuple[Schedule, ...]  # of all ranks
    shapes: tuple[tuple[int, Shape], ...]  # with the channel of each
    timeline: Timeline  # in rounds
    nodes: Nodes = ()  # where the schedules look at them; of gpu_leaders, GPUs
    graph: str = ""  # of a neighbourhood collective, in words

    @property
    def nchannels(self) -> int:
        """The largest number of channels of a rank."""
        return max(len(s.channels) for s in self.schedules)


def channel_name(channel: int) -> str:
    """Return ``A``, ``B``, ...; numbers beyond ``Z``."""
    return chr(ord("A") + channel) if channel < 26 else str(channel)


def chunk_name(schedule: Schedule, chunk: Chunk) -> str:
    """Name a run of chunks by place in the message (``c0``, ``c2-5``) or block; ``s0``: scratch.

    The block ``c3.1`` of an alltoall is from rank 3 to rank 1, that of an exchange with neighbours is block 1 of rank 3. Where blocks have
    several chunks, the last number says which.
    """
    collective = schedule.meaning
    if chunk.buffer == Buffer.SCRATCH:
        first, last = str(chunk.index), str(chunk.index + chunk.n - 1)
    else:
        item = collective.input_item if chunk.buffer == Buffer.INPUT else collective.output_item
        items = (item(schedule.rank, index) for index in (chunk.index, chunk.index + chunk.n - 1))
        first, last = map(_item_name, items)
    return ("s" if chunk.buffer == Buffer.SCRATCH else "c") + (first if chunk.n == 1 else f"{first}-{last}")


def _item_name(item: Hashable) -> str:
    return ".".join(map(_item_name, item)) if isinstance(item, tuple) else str(item)


def example(drawing: Drawing) -> str:
    """Explain a name of a block or chunk that has several numbers."""
    if COLLECTIVES[drawing.row.collective].neighbours:
        return "c0.1: block 1 of rank 0"
    if drawing.row.parts == 1:
        return "c0.1: block from 0 to 1"
    return (
        "c0.1.2: chunk 2 of the block from 0 to 1"
        if drawing.row.collective == "alltoall"
        else "c0.1: chunk 1 of block 0"
    )


def draw(
    row: Algorithm, nranks: int, root: int = 0, nchunks: int = 1, nodes: Nodes = (), graph: str = ""
) -> Drawing:
    """Build and simulate the schedules of all ranks, and find their structure; arguments as in `hpcoll.schedules.row.schedule`.

    ``graph`` names the row's graph. ArgumentError: a number is outside its range, or there are more than `MAX_STEPS` steps.
    """
    if not 1 <= nranks <= MAX_BUILT or not 0 <= root < nranks or not 1 <= nchunks <= MAX_CHUNKS:
        expected = f"1 to {MAX_BUILT} ranks, 0 <= root < nranks and 1 to {MAX_CHUNKS} chunks"
        raise ArgumentError(f"{row.key} needs {expected}, got {nranks}, {root}, {nchunks}")
    if root and not COLLECTIVES[row.collective].rooted:
        raise ArgumentError(f"{row.collective} has no root, got root {root}")
    steps = (
        max(
            sum(map(len, schedule(row, nranks, rank, root, nchunks, nodes).channels))
            for rank in {root, nranks // 2}
        )
        * nranks
    )
    if steps > MAX_STEPS:
        raise ArgumentError(
            f"{row.key} has some {steps:,} steps with {nranks} ranks, more than {MAX_STEPS:,}, which is too much to draw"
        )
    schedules = tuple(schedule(row, nranks, rank, root, nchunks, nodes) for rank in range(nranks))
    timeline = simulate(schedules, 0, ROUNDS)
    return Drawing(row, schedules, tuple(_shapes(timeline, nranks)), timeline, nodes, graph)


def _shapes(timeline: Timeline, nranks: int) -> Iterable[tuple[int, Shape]]:
    messages: dict[int, dict[Op, list[tuple[int, Edge]]]] = defaultdict(lambda: defaultdict(list))
    for rank, events in enumerate(timeline.events):
        for event in events:
            if event.op in (Op.RECV, Op.RECV_REDUCE):
                messages[event.channel][event.op].append((round(event.start) + 1, (event.peer, rank)))
    for channel in sorted(messages):
        phases = sorted(messages[channel].items(), key=lambda phase: min(phase[1]))
        shapes = [_shape(op, [edge for _, edge in edges], nranks) for op, edges in phases]
        if None in shapes:
            yield channel, _rounds([message for _, edges in phases for message in edges])
        else:
            yield from ((channel, shape) for shape in _merge([shape for shape in shapes if shape]))


def _shape(op: Op, edges: Sequence[Edge], nranks: int) -> Shape | None:
    """Return the ring or tree of a phase's edges, if they are one. A chain is a tree both ways: reduced upwards, else downwards."""
    unique = sorted(set(edges))
    verb = "reduced" if op == Op.RECV_REDUCE else "sent"
    if len(unique) == nranks:
        return _ring(dict(unique), nranks)
    down, up = _tree(unique, nranks), _tree([(receiver, sender) for sender, receiver in unique], nranks)
    if up and not (down and op == Op.RECV):
        return Tree(*up, up=verb, down="")
    return Tree(*down, up="", down=verb) if down else None


def _ring(right: dict[int, int], nranks: int) -> Ring | None:
    order = [0]
    while len(order) < nranks and order[-1] in right and right[order[-1]] != 0:
        order.append(right[order[-1]])
    return Ring(tuple(order)) if len(order) == nranks and right.get(order[-1]) == 0 else None


def _tree(edges: Sequence[Edge], nranks: int) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
    """Return root and children if the edges parent -> child are a tree over all ranks; children in the order of their vranks."""
    parents = {child: parent for parent, child in edges}
    if not len(edges) == len(parents) == nranks - 1:
        return None
    root = next(rank for rank in range(nranks) if rank not in parents)
    children: list[list[int]] = [[] for _ in range(nranks)]
    for parent, child in edges:
        children[parent].append(child)
    tree = Tree(
        root, tuple(tuple(sorted(c, key=lambda child: (child - root) % nranks)) for c in children), "", ""
    )
    return (root, tree.children) if len(tree.preorder()) == nranks else None


def _merge(shapes: list[Shape]) -> list[Shape]:
    """Merge two phases along the same ring or tree."""
    if len(shapes) != 2:
        return shapes
    first, second = shapes
    if (
        isinstance(first, Tree)
        and isinstance(second, Tree)
        and first.up
        and second.down
        and first.children == second.children
    ):
        return [Tree(first.root, first.children, first.up, second.down)]
    return [first] if first == second else shapes


def _rounds(messages: Iterable[tuple[int, Edge]]) -> Rounds:
    edges: dict[int, set[Edge]] = defaultdict(set)
    for number, edge in messages:
        edges[number].add(edge)
    merged: list[tuple[int, int, tuple[Edge, ...]]] = []
    for number in sorted(edges):
        now = tuple(sorted(edges[number]))
        if merged and merged[-1][1:] == (number - 1, now):
            merged[-1] = (merged[-1][0], number, now)
        else:
            merged.append((number, number, now))
    return Rounds(tuple(merged))
