"""An algorithm as the catalogue describes it, and its schedules."""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Chunk, Schedule, Writer
from hpcoll.schedules.placement import Nodes, members


class OnGpu(NamedTuple):
    """What a row does where all ranks map each other's GPU memory, and its other formulas do not tell.

    Attributes:
        moved: Bytes that a rank's kernels and copies read and write, as a fraction of m; "": three times ``critical`` where the collective
            reduces, else twice.
        turns: Times that ranks work one after another, waiting for each other; 0: ``rounds``.
        launches: Kernels and copies of the busiest rank; 0: ``messages``.
        one_works: One rank of each GPU does it all; else all that share it.
    """

    moved: str = ""
    turns: int = 0
    launches: int = 0
    one_works: bool = False


_AS_ELSEWHERE = OnGpu()


@dataclass(frozen=True)
class Algorithm:
    """One row of the catalogue.

    Attributes:
        collective, name: The key ``"collective/name"``.
        summary: One line: what it is and when it is good.
        source: Where the construction comes from.
        rounds: Longest chain of dependent messages in one run of the schedule.
        messages: Messages that the busiest rank sends or receives one after another, where that is more than ``rounds``.
        critical: Bytes sent one after another along that chain, one message at a time per rank, or copied, as a fraction of m.
        sent: Bytes that the busiest rank sends, as a fraction of m.
        received: Bytes that the busiest rank receives, as a fraction of m, where that is more than any rank sends.
        largest: Bytes of the longest message, of a hierarchical row between nodes, as a fraction of m.
        chunks: Chunks per segment of a vector collective (block collectives always have p).
        staged: Bytes that any rank hands out, what several ranks get counted once, as a fraction of m: an upper bound.
        shared: ``critical`` in shared memory, where that is less because what several ranks get is handed out once, and all ranks work at
            once: a message that is staged and copied moves 4 times its bytes through memory, one that is staged and combined 5 times.
        ordered: Keeps rank order: fit for operators that are not commutative.
        reproducible: All ranks get the same bits.
        uniform: Serves only equal blocks, hence no v form.
        pipelined: Profits from cutting the message into segments that are in flight together.
        one_fold: All contributions to an element are combined in one reduction, hence rounded once whatever the element type.
        neighbours: Ranks exchange messages with rank - 1 and rank + 1 only.
        hierarchical: Looks at which ranks share a node. Formulas know ``h`` nodes, ``r`` = ceil(log2 h), ``g`` = the largest power of two
            <= h, ``l`` and ``c`` ranks of the smallest and the largest node, ``t`` ranks per stripe, and ``k`` blocks that a rank of an
            alltoall passes on for others of its node.
        per_gpu: One rank of each GPU works for all that share it, in memory that it maps. Formulas know the GPUs as nodes.
        on_gpu: What it does in GPU memory that all ranks map.
        stripes: Ranks of a node that exchange messages with other nodes at once.
        inner, outer: Rows that a hierarchical one is like on a node, and that it is made of between nodes.
        chunked: Takes any number of chunks; the pipeline is inside the schedule and a segment is one chunk.
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
    uniform: bool = False
    pipelined: bool = False
    chunked: bool = False
    one_fold: bool = False
    neighbours: bool = False
    hierarchical: bool = False
    per_gpu: bool = False
    on_gpu: OnGpu = _AS_ELSEWHERE
    stripes: str = "1"
    inner: tuple[str, ...] = ()
    outer: str = ""

    @property
    def key(self) -> str:
        """The catalogue key, ``"allreduce/ring"``."""
        return f"{self.collective}/{self.name}"

    @property
    def placed(self) -> bool:
        """Whether its schedule depends on which ranks share a node, or a GPU."""
        return self.hierarchical or self.per_gpu

    @property
    def build(self) -> Callable[[Writer], None]:
        """The builder, which writes one rank's steps for nranks >= 2: function and module are named after the key."""
        name = f"{self.collective}_{self.name}"
        builder: Callable[[Writer], None] = getattr(importlib.import_module(f"hpcoll.schedules.builders.{name}"), name)
        return builder

    def cost(self, field: str, nranks: int, nchunks: int = 1, nodes: Nodes = ()) -> float:
        """Value of one of the formulas ``rounds``, ``messages``, ``critical``, ``sent``, ``staged``, ``chunks`` for ``nranks >= 2``."""
        return self.evaluate(getattr(self, field), nranks, nchunks, nodes)

    def evaluate(self, formula: str, nranks: int, nchunks: int = 1, nodes: Nodes = ()) -> float:
        """Value of a formula."""
        return _evaluate(formula, nranks, nchunks, nodes if self.placed else ())


@lru_cache(maxsize=4096)
def _evaluate(formula: str, p: int, n: int, nodes: Nodes) -> float:
    sizes = [len(ranks) for ranks in members(nodes)] if nodes else [1] * p
    names = {"p": p, "q": math.ceil(math.log2(p)), "f": 1 << p.bit_length() - 1, "n": n, "log2": math.log2, "ceil": math.ceil, "max": max}
    h, stripes = len(sizes), min(sizes)
    names |= {"h": h, "r": math.ceil(math.log2(h)), "g": 1 << h.bit_length() - 1, "l": stripes, "c": max(sizes)}
    names["t"] = sum(-(-size // stripes) for size in sizes)
    names["k"] = max((own - 1) * (sum(-(-size // own) for size in sizes) - 1) for own in set(sizes))
    return float(eval(formula, {"__builtins__": {}}, names))  # noqa: S307 (formulas of this file only)


def schedule(row: Algorithm, nranks: int, rank: int, root: int = 0, nchunks: int = 1, nodes: Nodes = ()) -> Schedule:
    """One rank's schedule.

    Args:
        row: Catalogue row.
        nranks, rank, root: ``0 <= rank, root < nranks``; ``root`` is 0 for collectives without one.
        nchunks: Chunks of the message, ``>= 1``; only rows with ``chunked`` heed it.
        nodes: Placement, as in `schedules.placement`; only rows with ``placed`` heed it. Empty: every rank has a node of its own.
    """
    collective = COLLECTIVES[row.collective]
    if nranks < 2 or collective.blocks:
        nchunks = nranks
    elif not row.chunked:
        nchunks = int(row.cost("chunks", nranks, nodes=nodes))
    writer = Writer(nranks, rank, root, nchunks, nodes or tuple(range(nranks)))
    if nranks > 1:
        row.build(writer)
    else:
        _alone(writer, row.collective)
    channels = tuple(tuple(steps) for steps in writer.channels)
    return Schedule(row.collective, row.name, nranks, rank, root, nchunks, channels, tuple(writer.extents))


def _alone(writer: Writer, name: str) -> None:
    """What any collective of one rank is: its own contribution, copied to where it is wanted."""
    if COLLECTIVES[name].wanted(0, 0, 1, 0) and not COLLECTIVES[name].always_in_place:
        writer.copy(Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0))
