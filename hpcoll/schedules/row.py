"""A row of the catalogue, and the schedules that its builder writes."""

import importlib
import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

from hpcoll.base.collector import uncollected
from hpcoll.base.errors import ArgumentTypeError, HpcollError, ScheduleError
from hpcoll.base.text import LINE, printable, text_of
from hpcoll.schedules import ir
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.derived import Costs, derived
from hpcoll.schedules.graph import Graph, ring
from hpcoll.schedules.ir import Buffer, Chunk, Schedule, Writer
from hpcoll.schedules.patterns.bundles import GraphTraffic, graph_traffic
from hpcoll.schedules.placement import Nodes, are_aligned, members

_DEEP = 5  # innermost calls of an exception, among which its place is looked for
DERIVED = Costs._fields  # costs of a row that are derived from its schedules where it has an empty text


class OnGpu(NamedTuple):
    """Costs of a row where all ranks map each other's GPU memory, as far as its other formulas do not give them."""

    moved: str = ""  # bytes that a rank's kernels and copies read and write; "": thrice `critical` of a reduction, twice of others
    turns: int = 0  # times that ranks work one after another, waiting for each other; 0: `rounds`
    launches: int = 0  # kernels and copies of the busiest rank; 0: `messages`
    one_works: bool = False  # one rank of each GPU does all the work; else all that share it do


_AS_ELSEWHERE = OnGpu()


class Algorithm(NamedTuple):
    """A row of the catalogue: an algorithm, its costs and its restrictions.

    Costs are formulas, as text, of ``p`` ranks, ``q`` = ceil(log2 p), ``f`` = the largest power of two <= p, and ``n`` chunks. Those of
    hierarchical rows, and ``sharers``, also know ``h`` nodes, ``r`` = ceil(log2 h), ``g`` = the largest power of two <= h, ``l`` and ``c``
    ranks of the smallest and the largest node, ``t`` ranks per stripe, ``k`` blocks that a rank of an alltoall forwards for others of
    its node, and ``aligned``: 1 where nodes are subtrees of the canonical expression, else 0.
    Those of neighbourhood collectives know `hpcoll.schedules.patterns.bundles.GraphTraffic`.
    Bytes are fractions of m, the bytes of the whole message (for block collectives: of all ranks' blocks together; for neighbourhood
    collectives: of ``d`` blocks). Where a row that was registered has none, an empty text stands for costs that are derived from its
    schedules (`hpcoll.schedules.derived`).

    Attributes:
        collective: Collective that it implements; the key is ``"collective/name"``.
        name: Name of the algorithm.
        summary: What it is and when it is good, in a line.
        source: Where the construction comes from.
        rounds: Longest chain of dependent messages in one run of the schedule.
        critical: Bytes that move along that chain, one message of a rank at a time, or are copied there.
        sent: Bytes that the busiest rank sends.
        received: Bytes that the busiest rank receives, where that is more than any rank sends.
        largest: Bytes of the longest message; of a hierarchical row between nodes.
        chunks: Chunks per segment of a vector collective (block collectives always have p).
        messages: Messages that the busiest rank sends or receives one after another, where that is more than ``rounds``.
        staged: Upper bound of the bytes that a rank stages in shared memory; a message that several ranks read counts once.
        shared: ``critical`` in shared memory, where that is less: a message that several ranks read is staged once, and all ranks work at
            once. Staging and copying moves a message's bytes 4 times through memory, staging and combining 5 times.
        ordered: Keeps rank order, as operators that are not commutative need.
        reproducible: All ranks get the same bits.
        canonical: Formula, above 0 where every result is the canonical expression of its ranks' contributions, whatever the root; empty:
            nowhere (`hpcoll.base.canonical`).
        uniform: Serves only equal blocks, so no v form.
        pipelined: Is faster with the message cut into segments that are in flight together.
        chunked: Takes any number of chunks; the pipeline is inside the schedule, and a segment is one chunk.
        one_fold: Combines all contributions to an element in one reduction, and rounds once whatever the element type.
        neighbours: Exchanges messages with rank - 1 and rank + 1 only.
        hierarchical: Depends on which ranks share a node.
        chosen: Placements on which the model may choose it: any, nodes of several ranks, a node each, or none. Measurements may on all.
        sharers: Ranks of a node that send to other nodes at once, on average over the bytes, where ranks are in order on nodes; empty: as
            if peers were anywhere.
        per_gpu: One rank of each GPU works for all that share it, in their mapped memory; the GPUs are the formulas' nodes.
        on_gpu: Costs in GPU memory that all ranks map.
        stripes: Ranks of a node that exchange messages with other nodes at once.
        inner: Rows that cost what a hierarchical one does on a node.
        outer: Row that a hierarchical one runs between nodes.
        graph: Graph of a neighbourhood collective, for which schedules and costs are; None: a ring.
        parts: Chunks of each block of a block collective.
        serves: The numbers of ranks that it serves; empty: any.
        roots: The roots that it serves; empty: any.
        least: Bytes of the shortest message for which it is chosen unasked.
        most: Bytes of the longest one; 0: any.
        builder: The function that writes one rank's steps; None: the one of `hpcoll.schedules.builders` that is named after the key.
    """

    collective: str
    name: str
    summary: str
    source: str
    rounds: str
    critical: str
    sent: str
    received: str = "0"
    largest: str = "1"
    chunks: str = "1"
    messages: str = "0"
    staged: str = "max(2,q)"
    shared: str = ""
    ordered: bool = False
    reproducible: bool = True
    canonical: str = ""
    uniform: bool = False
    pipelined: bool = False
    chunked: bool = False
    one_fold: bool = False
    neighbours: bool = False
    hierarchical: bool = False
    chosen: str = "any"
    sharers: str = ""
    per_gpu: bool = False
    on_gpu: OnGpu = _AS_ELSEWHERE
    stripes: str = "1"
    inner: tuple[str, ...] = ()
    outer: str = ""
    graph: Graph | None = None
    parts: int = 1
    serves: tuple[int, ...] = ()
    roots: tuple[int, ...] = ()
    least: int = 0
    most: int = 0
    builder: Callable[[Writer], None] | None = None

    def __repr__(self) -> str:
        return f"<hpcoll algorithm {self.key}{': ' * bool(self.summary)}{self.summary}>"

    @property
    def key(self) -> str:
        """The catalogue key, ``"allreduce/ring"``."""
        return f"{self.collective}/{self.name}"

    @property
    def placed(self) -> bool:
        """Schedules depend on which ranks share a node or a GPU."""
        return self.hierarchical or self.per_gpu

    @property
    def build(self) -> Callable[[Writer], None]:
        """The builder, which writes one rank's steps for nranks >= 2; a function and module of the package are named after the key."""
        if self.builder is not None:
            return self.builder
        return _builder(f"{self.collective}_{self.name}")

    def is_canonical(self, nranks: int, nodes: Nodes = ()) -> bool:
        """Say whether every result on so many ranks is the canonical expression of its ranks' contributions, in rank order."""
        return nranks == 1 or (
            self.canonical != "" and self.evaluate(self.canonical, nranks, nodes=nodes) > 0
        )

    def cost(self, field: str, nranks: int, nchunks: int = 1, nodes: Nodes = ()) -> float:
        """Return the value of a cost field, such as ``"rounds"`` or ``"sent"``, for ``nranks >= 2``."""
        formula: str = getattr(self, field)
        if formula:
            return float(formula) if formula.isdecimal() else self.evaluate(formula, nranks, nchunks, nodes)
        number: float = getattr(derived(schedule, self, nranks, nchunks, nodes if self.placed else ()), field)
        return number

    def evaluate(self, formula: str, nranks: int, nchunks: int = 1, nodes: Nodes = ()) -> float:
        """Return the value of a formula."""
        traffic = None
        if COLLECTIVES[self.collective].neighbours:
            once = self.collective == "neighbor_allgather"
            traffic = graph_traffic(
                self.graph or ring(nranks), nodes or tuple(range(nranks)), once, self.hierarchical
            )
        return _evaluate(formula, nranks, nchunks, nodes if self.placed or self.sharers else (), traffic)


@cache
def _builder(name: str) -> Callable[[Writer], None]:
    builder: Callable[[Writer], None] = getattr(
        importlib.import_module(f"hpcoll.schedules.builders.{name}"), name
    )
    return builder


_FUNCTIONS = {"log2": math.log2, "ceil": math.ceil, "max": max}


@lru_cache(maxsize=4096)
def _evaluate(formula: str, p: int, n: int, nodes: Nodes, on_graph: GraphTraffic | None) -> float:
    sizes = [len(ranks) for ranks in members(nodes)] if nodes else [1] * p
    names = {"p": p, "q": math.ceil(math.log2(p)), "f": 1 << p.bit_length() - 1, "n": n} | _FUNCTIONS
    names |= on_graph._asdict() if on_graph else {}
    h, stripes = len(sizes), min(sizes)
    names |= {
        "h": h,
        "r": math.ceil(math.log2(h)),
        "g": 1 << h.bit_length() - 1,
        "l": stripes,
        "c": max(sizes),
    }
    names["t"] = sum(-(-size // stripes) for size in sizes)
    names["aligned"] = are_aligned(nodes) if nodes else True
    names["k"] = max((own - 1) * (sum(-(-size // own) for size in sizes) - 1) for own in set(sizes))
    return float(eval(formula, {"__builtins__": {}}, names))  # noqa: S307 (formulas of this file only)


@uncollected
def schedule(
    row: Algorithm, nranks: int, rank: int, root: int = 0, nchunks: int = 1, nodes: Nodes = ()
) -> Schedule:
    """Write one rank's schedule of an algorithm.

    Args:
        row: Row of the catalogue.
        nranks: Number of ranks, ``>= 1``.
        rank: The rank, ``0 <= rank < nranks``.
        root: Rank of the root; 0 for collectives without one.
        nchunks: Chunks of the message, ``>= 1``; rows that are not ``chunked`` ignore it.
        nodes: Number of each rank's node, as in `hpcoll.schedules.placement`; empty: a node for each rank. Rows that are not ``placed``
            ignore it.

    Returns:
        The schedule; builders write it anew with every call.

    Raises:
        ScheduleError: The builder of a row that was registered raised an exception, or the row serves other numbers of ranks or roots.
    """
    collective = COLLECTIVES[row.collective]
    check_served(row, nranks, root)
    graph = (row.graph or ring(nranks)) if collective.neighbours else None
    if graph:
        nchunks = graph.degree
    elif nranks < 2 or collective.blocks:
        nchunks = nranks * row.parts
    elif not row.chunked:
        nchunks = int(row.cost("chunks", nranks, nodes=nodes))
    writer = Writer(nranks, rank, root, nchunks, nodes or tuple(range(nranks)), graph)
    if nranks > 1 or graph:
        _build(row, writer)
    else:
        _alone(writer, row.collective)
    channels = tuple(tuple(steps) for steps in writer.channels)
    return Schedule(
        row.collective, row.name, nranks, rank, root, nchunks, channels, tuple(writer.extents), graph
    )


def unserved(row: Algorithm, nranks: int) -> str:
    """Return the reason why a row cannot serve so many ranks; the empty string if it can."""
    return (
        ""
        if not row.serves or nranks in row.serves
        else f"it is for {' or '.join(map(str, row.serves))} ranks"
    )


def check_served(row: Algorithm, nranks: int, root: int) -> None:
    """Refuse numbers of ranks and roots that a row does not serve."""
    reason = unserved(row, nranks)
    if row.roots and root not in row.roots:
        reason = f"it is for root {' or '.join(map(str, row.roots))}"
    if reason:
        raise ScheduleError(f"{row.key} cannot run on {nranks} ranks with root {root}: {reason}")


def _build(row: Algorithm, writer: Writer) -> None:
    """Run a builder; an exception of one that was registered is a `ScheduleError` with its place."""
    try:
        row.build(writer)
    except Exception as error:
        if row.builder is None or (
            isinstance(error, HpcollError) and not isinstance(error, ArgumentTypeError)
        ):
            raise
        what = f"{row.key} on {writer.nranks} ranks: its builder raised {exception_in_words(error)}"
        raise ScheduleError(printable(what, LINE), rank=writer.rank) from error


def exception_in_words(error: BaseException) -> str:
    """Return kind, place and text of an exception; the place is a line that calls the writer, not one of the writer."""
    import traceback

    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__, limit=-_DEEP)
        if frame.filename != ir.__file__
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {text_of(error)}"


def _alone(writer: Writer, name: str) -> None:
    """Write the schedule of a collective of one rank: a copy, where OUTPUT is wanted and not INPUT itself."""
    if COLLECTIVES[name].wanted(0, 0, 1, 0) and not COLLECTIVES[name].always_in_place:
        writer.copy(Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0))
