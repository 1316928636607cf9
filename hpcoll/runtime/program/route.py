"""Routes: the ways of messages to and from a peer, and the items that the steps of a schedule become by them.

A schedule says who sends what to whom. A **route** says how: which items a send and a receive are. `lower` asks the route to each peer and
knows no transport. A new one is a subclass in `transports/` or `gpu/` and a row in the table of routes there (`host_routes`, `gpu_routes`).
Operations of its own have codes in `Code` and a compiled function that `compiled.interpreter._execute` finds.

Two consecutive receive-and-reduce steps into one chunk become one reduction, empty chunks are dropped, and a reduction reads a
message that is only carried to it where it lies. Both ends of a message decide alike, because they see equal sizes.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import ClassVar

import numpy as np

from hpcoll.analysis.cost import Levels, Network
from hpcoll.base.sizes import Multiples
from hpcoll.runtime.program.chunks import Pieces
from hpcoll.runtime.program.items import BATCH, LANDING_SLOTS, Items
from hpcoll.runtime.program.opcodes import Code
from hpcoll.schedules.ir import Buffer, Chunk, Op, Step, outputs

_INPUT, _, _SCRATCH = Buffer  # looking up members of an enum is slow
_SEND, _RECV, _COPY = Op.SEND, Op.RECV, Op.COPY


class Route(ABC):
    """The way of messages to and from a peer, by its rank in the communicator or its local rank.

    Messages to a peer are used in the order in which they were sent.
    """

    name: ClassVar[str]  # for the ledger
    text: ClassVar[str]  # for the log
    # `land` gives a message where the sender or the library left it: it needs no memory here
    uses_in_place: ClassVar[bool]
    batches: ClassVar[bool] = False  # it posts and awaits messages, so that many alike ones may be a `Batch`
    puts: bool = False  # the sender of a put writes the receiver's memory; else it is a message like any other. Both ends know

    def __init__(self, peer: int) -> None:
        self.peer = peer

    @classmethod
    def cost(cls, levels: Levels) -> Network:
        """Return the cost model's constants for its messages: those between nodes, unless it stays on one."""
        return levels.network

    @abstractmethod
    def send(self, items: Items, pieces: Pieces) -> None:
        """Send pieces as one message."""

    @abstractmethod
    def receive(self, items: Items, pieces: Pieces) -> None:
        """Receive a message into pieces."""

    @abstractmethod
    def land(self, items: Items, pieces: Pieces) -> Pieces:
        """Receive a message of the sizes of pieces, to be reduced; return where it is until `Items.acknowledge`."""

    def destination(self, items: Items, pieces: Pieces) -> Pieces:
        """Return the receiver's memory for a put of these sizes, until `Items.acknowledge`."""
        raise NotImplementedError

    def receive_put(self, items: Items, pieces: Pieces) -> None:
        """Receive a put into pieces."""
        raise NotImplementedError


def in_words(routes: Mapping[int, Route], peers: Iterable[int], levels: Levels) -> str:
    """Return the number of peers and the cost by the model of each route, for the log."""
    counts = Counter(type(routes[peer]) for peer in peers)
    costs = {kind: kind.cost(levels) for kind in counts}
    return (
        "; ".join(
            f"{n} {kind.text} ({1e6 * costs[kind].alpha:.3g} us, {1e-9 / costs[kind].beta:.3g} GB/s)"
            for kind, n in counts.items()
        )
        or "one rank"
    )


class Routes(dict[int, Route]):
    """The route to each peer, by its rank; ``table``: routes, the best first, and the numbers of the peers that each one reaches."""

    def __init__(self, *table: tuple[Callable[[int], Route], Mapping[int, int] | None]) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, peer: int) -> Route:
        for route, peers in self._table:
            if peers is None:
                self[peer] = route(peer)
            elif peer in peers:
                self[peer] = route(peers[peer])
            else:
                continue
            return self[peer]
        raise KeyError(peer)


def add_steps(
    items: Items, steps: Sequence[Step], routes: Mapping[int, Route], carried: Collection[Chunk]
) -> None:
    """Write the items of a lane, of which ``carried`` are the `carried_cells`."""
    groups = list(_fused(steps))
    items.nlandings = max([LANDING_SLOTS, *(len(group) for group in groups)])
    messages: dict[Chunk, Pieces] = {}  # scratch cells that stand for a message
    handed: set[int] = set()  # puts that the reduction before them makes
    batches, done = _batches(items, groups, routes, carried), 0
    for i, group in enumerate(groups):
        if i < done:
            continue
        if i in batches:
            done = i + batches[i]
            _add_batch(items, [group[0] for group in groups[i:done]], routes, carried, messages)
            continue
        step = group[0]
        if step.op == Op.RECV_REDUCE:
            _receive_reduce(items, group, routes)
            continue
        whole = [items.whole(run) for run in step.runs] if step.dst not in carried and not messages else [[]]
        operands = whole if all(whole) else [messages.pop(run, []) or items.chunks(run) for run in step.runs]
        if not operands[0] or i in handed:
            continue
        puts = step.put and routes[step.peer].puts
        if step.op in (Op.COPY, Op.REDUCE):
            behind = _puts_behind(groups, i, routes) if step.op == Op.REDUCE else []
            further = [routes[groups[index][0].peer].destination(items, operands[0]) for index in behind]
            handed.update(behind)
            items.operate(Code[step.op.name], operands, further)
            items.acknowledge()
        elif step.op == Op.SEND and puts:
            items.copy(routes[step.peer].destination(items, operands[0]), operands[0])
            items.acknowledge()
        elif step.op == Op.SEND:
            routes[step.peer].send(items, operands[0])
        elif puts:
            routes[step.peer].receive_put(items, operands[0])
        elif step.dst is not None and step.dst in carried:
            messages[step.dst] = routes[step.peer].land(items, operands[0])
        else:
            routes[step.peer].receive(items, operands[0])
    items.end()


def _batches(
    items: Items, groups: Sequence[Sequence[Step]], routes: Mapping[int, Route], carried: Collection[Chunk]
) -> dict[int, int]:
    """Return the length of each long run of steps that are alike, each on single blocks of its own, by the first one's place."""
    if not items.batches:
        return {}
    sent = Counter(group[0].srcs[0] for group in groups if group[0].op is _SEND)
    sent.update(outputs(index) for index in items.aliases.values())  # by their other names

    def likeness(group: Sequence[Step]) -> Hashable:
        """Return what steps of a batch have in common; None: the step is in none."""
        op, peer, dst, srcs, *_ = group[0]
        source, n = -1, 1
        if op is _SEND or op is _COPY:
            source, index, n = srcs[0]
            if source is _INPUT and items.aliases and items.aliases.keys() & range(index, index + n):
                return None
        if op is _COPY and dst is not None:
            return (dst[0], source) if (n == 1 or items.gaps) and dst[0] is not source else None
        if op is _SEND and n == sent[srcs[0]] == 1 and routes[peer].batches and not items.is_mapped(source):
            return op, source
        if op is _RECV and dst is not None and dst[2] == 1 and routes[peer].batches:
            return op, dst[0], dst in carried
        return None

    found, at = {}, 0
    for alike, run in groupby(groups, likeness):
        batch = list(run)
        if alike and (len(batch) >= BATCH or sum(group[0].runs[0].n for group in batch) >= BATCH):
            found[at] = len(batch)
        at += len(batch)
    return found


def _add_batch(
    items: Items,
    steps: Sequence[Step],
    routes: Mapping[int, Route],
    carried: Collection[Chunk],
    messages: dict[Chunk, Pieces],
) -> None:
    """Write steps that are alike."""
    op = steps[0].op
    targets = [step.dst for step in steps if step.dst is not None]
    sources = [step.srcs[0] for step in steps if step.srcs]
    if op is _COPY:
        items.copy_blocks(items.blocks(targets), items.blocks(sources))
        return
    peers = Multiples(np.array([routes[step.peer].peer for step in steps]))
    if op is _SEND:
        items.post_blocks(peers, items.blocks(sources))
    elif targets[0] in carried:
        messages.update(zip(targets, items.await_blocks(peers), strict=True))
    else:
        items.receive_blocks(peers, items.blocks(targets))


def _puts_behind(groups: Sequence[Sequence[Step]], i: int, routes: Mapping[int, Route]) -> list[int]:
    """Return the groups right behind a reduction that put its result into peers' memory, where its kernel can write it."""
    puts: list[int] = []
    for k in range(i + 1, len(groups)):
        step = groups[k][0]
        if not (
            step.op == Op.SEND and step.put and step.srcs == (groups[i][0].dst,) and routes[step.peer].puts
        ):
            break
        puts.append(k)
    return puts


def _receive_reduce(items: Items, group: Sequence[Step], routes: Mapping[int, Route]) -> None:
    assert group[0].dst is not None
    runs = group[0].dst, group[0].srcs[0]
    whole = [items.whole(run) for run in runs]
    destination, *operands = whole if all(whole) else [items.chunks(run) for run in runs]
    if not destination:
        return
    for step in group:
        landed = routes[step.peer].land(items, destination)
        operands = [landed, *operands] if step.received_first else [*operands, landed]
    items.operate(Code.REDUCE, [destination, *operands])
    items.acknowledge()


def carried_cells(steps: Sequence[Step], routes: Mapping[int, Route]) -> set[Chunk]:
    """Return scratch cells that only carry a message from its receive to the reduction right behind a run of receives.

    The reduction reads such messages where they lie. All of a run or none: a peer's messages are used in order.
    """
    carried: set[Chunk] = set()
    runs = np.array(
        [(index, index + n) for step in steps for buffer, index, n in step.runs if buffer is _SCRATCH],
        int,
    ).reshape(-1, 2)
    begun, ended = np.bincount(runs[:, 0], minlength=1), np.bincount(runs[:, 1], minlength=1)
    begun = np.pad(begun, (0, len(ended) - len(begun)))
    twice = np.cumsum(begun - ended) == 2  # which cells two steps use
    others = [0, *np.cumsum(~twice).tolist()]  # how many cells before each are no such ones
    for end, reduction in enumerate(steps):
        if reduction.op != Op.REDUCE:
            continue
        first = end
        while first and steps[first - 1].op == Op.RECV:
            first -= 1
        cells = [step.dst for step in steps[first:end] if step.dst and routes[step.peer].uses_in_place]
        if all(
            run.buffer == Buffer.SCRATCH
            and run in reduction.srcs
            and others[run.index] == others[run.index + run.n]
            for run in cells
        ):
            carried.update(cells)
    return carried


def _fused(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield steps, with two consecutive receive-and-reduce steps into one chunk together.

    They fold left to right, and so does a reduction of three inputs. One of four does not (`hpcoll.base.canonical`).
    """
    group: list[Step] = []
    for step in steps:
        one = len(group) == 1 and step.op == Op.RECV_REDUCE == group[0].op
        joins = one and step.dst == group[0].dst == step.srcs[0] and not step.received_first
        if group and not joins:
            yield group
            group = []
        group.append(step)
    if group:
        yield group
