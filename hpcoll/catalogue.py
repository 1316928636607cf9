"""Every algorithm hpcoll has: one row each, with what it costs and where it comes from. Floor 3.

Costs are formulas, written once as text and evaluated where a number is needed: ``p`` ranks, ``q`` = ceil(log2 p),
``f`` = the largest power of two <= p, ``n`` chunks of the message. Bytes are fractions of m, the bytes of the whole
message (for block collectives: of all ranks' blocks together).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from hpcoll.collectives import COLLECTIVES
from hpcoll.errors import ArgumentError
from hpcoll.ir import Buffer, Chunk, Schedule, Writer
from hpcoll.schedules.allgather_circulant import allgather_circulant
from hpcoll.schedules.allgather_direct import allgather_direct
from hpcoll.schedules.allgather_ring import allgather_ring
from hpcoll.schedules.allreduce_circulant import allreduce_circulant
from hpcoll.schedules.allreduce_direct import allreduce_direct
from hpcoll.schedules.allreduce_double_tree import allreduce_double_tree
from hpcoll.schedules.allreduce_rabenseifner import allreduce_rabenseifner
from hpcoll.schedules.allreduce_recursive_doubling import allreduce_recursive_doubling
from hpcoll.schedules.allreduce_ring import allreduce_ring
from hpcoll.schedules.allreduce_tree import allreduce_tree
from hpcoll.schedules.allreduce_two_shot import allreduce_two_shot
from hpcoll.schedules.alltoall_bruck import alltoall_bruck
from hpcoll.schedules.alltoall_direct import alltoall_direct
from hpcoll.schedules.alltoall_pairwise import alltoall_pairwise
from hpcoll.schedules.barrier_dissemination import barrier_dissemination
from hpcoll.schedules.bcast_binomial import bcast_binomial
from hpcoll.schedules.bcast_chain import bcast_chain
from hpcoll.schedules.bcast_circulant import bcast_circulant
from hpcoll.schedules.bcast_direct import bcast_direct
from hpcoll.schedules.bcast_double_tree import bcast_double_tree
from hpcoll.schedules.bcast_tree import bcast_tree
from hpcoll.schedules.exscan_recursive_doubling import exscan_recursive_doubling
from hpcoll.schedules.gather_binomial import gather_binomial
from hpcoll.schedules.gather_direct import gather_direct
from hpcoll.schedules.reduce_binomial import reduce_binomial
from hpcoll.schedules.reduce_chain import reduce_chain
from hpcoll.schedules.reduce_circulant import reduce_circulant
from hpcoll.schedules.reduce_direct import reduce_direct
from hpcoll.schedules.reduce_double_tree import reduce_double_tree
from hpcoll.schedules.reduce_scatter_circulant import reduce_scatter_circulant
from hpcoll.schedules.reduce_scatter_direct import reduce_scatter_direct
from hpcoll.schedules.reduce_scatter_ring import reduce_scatter_ring
from hpcoll.schedules.reduce_tree import reduce_tree
from hpcoll.schedules.scan_recursive_doubling import scan_recursive_doubling
from hpcoll.schedules.scatter_binomial import scatter_binomial
from hpcoll.schedules.scatter_direct import scatter_direct


@dataclass(frozen=True)
class Algorithm:
    """One row of the catalogue.

    Attributes:
        collective, name: The key ``"collective/name"``.
        build: Writes one rank's steps for nranks >= 2.
        summary: One line: what it is and when it is good.
        source: Where the construction comes from.
        rounds: Longest chain of dependent messages in one run of the schedule.
        messages: Messages that the busiest rank sends or receives one after another, where that is more than ``rounds``.
        serial: Bytes sent one after another along that chain, one message at a time per rank, as a fraction of m.
        sent: Bytes that the busiest rank sends, as a fraction of m.
        chunks: Chunks per segment of a vector collective (block collectives always have p).
        ordered: Keeps rank order: fit for operators that are not commutative.
        reproducible: All ranks get the same bits.
        uniform: Serves only equal blocks, hence no v form.
        pipelined: Profits from cutting the message into segments that are in flight together.
        chunked: Takes any number of chunks; the pipeline is inside the schedule and a segment is one chunk.
    """

    collective: str
    name: str
    build: Callable[[Writer], None]
    summary: str
    source: str
    rounds: str
    serial: str
    sent: str
    chunks: str = "1"
    messages: str = "0"
    ordered: bool = False
    reproducible: bool = True
    uniform: bool = False
    pipelined: bool = False
    chunked: bool = False

    @property
    def key(self) -> str:
        """The catalogue key, ``"allreduce/ring"``."""
        return f"{self.collective}/{self.name}"

    def cost(self, field: str, nranks: int, nchunks: int = 1) -> float:
        """Value of one of the formulas ``rounds``, ``messages``, ``serial``, ``sent``, ``chunks`` for ``nranks >= 2``."""
        return _evaluate(getattr(self, field), nranks, nchunks)


@lru_cache(maxsize=4096)
def _evaluate(formula: str, p: int, n: int) -> float:
    names = {"p": p, "q": math.ceil(math.log2(p)), "f": 1 << p.bit_length() - 1, "n": n, "log2": math.log2, "ceil": math.ceil, "max": max}
    return float(eval(formula, {"__builtins__": {}}, names))  # noqa: S307 (formulas of this file only)


CATALOGUE: dict[str, Algorithm] = {
    row.key: row
    for row in (
        Algorithm(
            "allreduce", "ring", allreduce_ring,
            "least volume, p-1 neighbour messages per phase: large messages, few ranks",
            "Patarasuk and Yuan, J. Parallel Distrib. Comput. 2009",
            rounds="2*(p-1)", serial="2*(p-1)/p", sent="2*(p-1)/p", chunks="p", pipelined=True,
        ),
        Algorithm(
            "allreduce", "circulant", allreduce_circulant,
            "the ring's volume in 2q rounds, for any number of ranks: medium and large messages",
            "Traeff, arXiv 2407.18004",
            rounds="2*q", serial="2*(p-1)/p", sent="2*(p-1)/p", chunks="p", pipelined=True,
        ),
        Algorithm(
            "allreduce", "rabenseifner", allreduce_rabenseifner,
            "the ring's volume in 2 log2 p rounds, largest parts to the nearest rank: powers of two",
            "Rabenseifner, ICCS 2004; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="2*log2(f)+2*(p>f)", serial="2*(f-1)/f+2*(p>f)", sent="2*(f-1)/f+(p>f)", chunks="f", ordered=True, pipelined=True,
        ),
        Algorithm(
            "allreduce", "recursive_doubling", allreduce_recursive_doubling,
            "fewest rounds, whole message each time: small messages",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="log2(f)+2*(p>f)", serial="log2(f)+2*(p>f)", sent="log2(f)+(p>f)", ordered=True,
        ),
        Algorithm(
            "allreduce", "tree", allreduce_tree,
            "reduce, then broadcast over a binary tree: operators that are not commutative, uneven arrival",
            "classic",
            rounds="2*log2(f)", serial="4*log2(p+1)-4", sent="1+(p>2)+(p>5)", ordered=True, pipelined=True,
        ),
        Algorithm(
            "allreduce", "double_tree", allreduce_double_tree,
            "two complementary trees, half the message each: many ranks, medium and large messages in segments",
            "Sanders, Speck and Traeff, Parallel Computing 2009; NCCL 2.4",
            rounds="2*q", serial="2*q-1/2", sent="2-max(0,4-p)/2", chunks="2", ordered=True, pipelined=True,
        ),
        Algorithm(
            "allreduce", "direct", allreduce_direct,
            "everything to everybody at once: smallest messages, few ranks, or latency that is wire rather than CPU",
            "classic (one-shot)",
            rounds="1", messages="p-1", serial="p-1", sent="p-1", ordered=True,
        ),
        Algorithm(
            "allreduce", "two_shot", allreduce_two_shot,
            "least volume in two rounds of p-1 messages: few ranks, or latency that is wire rather than CPU",
            "classic (direct reduce-scatter, direct allgather)",
            rounds="2", messages="2*(p-1)", serial="2*(p-1)/p", sent="2*(p-1)/p", chunks="p", ordered=True, pipelined=True,
        ),
        Algorithm(
            "bcast", "binomial", bcast_binomial,
            "fewest rounds, whole message each time: small messages",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="log2(f)", serial="q", sent="q", pipelined=True,
        ),
        Algorithm(
            "bcast", "tree", bcast_tree,
            "a flat 4-nomial tree, half as deep as the binomial one: small messages where latency is wire rather than CPU",
            "classic; k-nomial trees as in MPICH",
            rounds="ceil(log2(3*p-1)/2)-1", serial="3*ceil(q/2)-4+ceil(p/4**(ceil(q/2)-1))", sent="3*ceil(q/2)-4+ceil(p/4**(ceil(q/2)-1))",
            pipelined=True,
        ),
        Algorithm(
            "bcast", "chain", bcast_chain,
            "a line of ranks, every link carries the message once: very large messages in segments, few ranks",
            "classic (linear pipeline)",
            rounds="p-1", serial="p-1", sent="1", pipelined=True,
        ),
        Algorithm(
            "bcast", "double_tree", bcast_double_tree,
            "two complementary binary trees, half the message each: large messages in segments, many ranks",
            "Sanders, Speck and Traeff, Parallel Computing 2009",
            rounds="q", serial="q", sent="1", chunks="2", pipelined=True,
        ),
        Algorithm(
            "bcast", "circulant", bcast_circulant,
            "n blocks in n-1+q rounds, the fewest possible on one port: medium and large messages, any number of ranks",
            "Traeff, arXiv 2312.11236 and 2407.18004",
            rounds="n-1+q", serial="(n-1+q)/n", sent="(n-1+q)/n", chunked=True,
        ),
        Algorithm(
            "bcast", "direct", bcast_direct,
            "the root sends to everybody: smallest messages, few ranks",
            "classic (linear)",
            rounds="1", messages="p-1", serial="p-1", sent="p-1",
        ),
        Algorithm(
            "reduce", "binomial", reduce_binomial,
            "fewest rounds, whole message each time: small messages",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="log2(f)", serial="q", sent="1", pipelined=True,
        ),
        Algorithm(
            "reduce", "tree", reduce_tree,
            "an in-order binary tree below any root: operators that are not commutative",
            "classic; in-order numbering as in Sanders, Speck and Traeff, Parallel Computing 2009",
            rounds="q", serial="2*log2(p)-1", sent="1", ordered=True, pipelined=True,
        ),
        Algorithm(
            "reduce", "chain", reduce_chain,
            "a line of ranks, every link carries the message once: very large messages in segments, few ranks",
            "classic (linear pipeline)",
            rounds="p-1", serial="p-1", sent="1", pipelined=True,
        ),
        Algorithm(
            "reduce", "double_tree", reduce_double_tree,
            "two complementary binary trees, half the message each: large messages in segments, many ranks",
            "Sanders, Speck and Traeff, Parallel Computing 2009",
            rounds="q", serial="q", sent="1", chunks="2", pipelined=True,
        ),
        Algorithm(
            "reduce", "circulant", reduce_circulant,
            "n blocks in n-1+q rounds, the fewest possible on one port: medium and large messages, any number of ranks",
            "Traeff, arXiv 2312.11236 and 2407.18004",
            rounds="n-1+q", serial="(n-1+q)/n", sent="1", chunked=True,
        ),
        Algorithm(
            "reduce", "direct", reduce_direct,
            "everybody sends to the root, which folds once: few ranks, operators that are not commutative",
            "classic (linear)",
            rounds="1", messages="p-1", serial="p-1", sent="1", ordered=True,
        ),
        Algorithm(
            "scan", "recursive_doubling", scan_recursive_doubling,
            "fewest rounds, whole message each time",
            "Hillis and Steele, Communications of the ACM 1986",
            rounds="log2(f)", serial="q", sent="q", ordered=True,
        ),
        Algorithm(
            "exscan", "recursive_doubling", exscan_recursive_doubling,
            "fewest rounds, whole message each time",
            "Hillis and Steele, Communications of the ACM 1986",
            rounds="log2(f)", serial="q", sent="q", ordered=True,
        ),
        Algorithm(
            "allgather", "ring", allgather_ring,
            "least volume, p-1 neighbour messages: large blocks, few ranks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="p-1", serial="(p-1)/p", sent="(p-1)/p",
        ),
        Algorithm(
            "allgather", "circulant", allgather_circulant,
            "fewest rounds and least volume for any number of ranks",
            "Traeff, arXiv 2407.18004",
            rounds="q", serial="(p-1)/p", sent="(p-1)/p",
        ),
        Algorithm(
            "allgather", "direct", allgather_direct,
            "all blocks at once: few ranks, or latency that is wire rather than CPU",
            "classic",
            rounds="1", messages="p-1", serial="(p-1)/p", sent="(p-1)/p",
        ),
        Algorithm(
            "reduce_scatter", "ring", reduce_scatter_ring,
            "least volume, p-1 neighbour messages: large blocks, few ranks",
            "Patarasuk and Yuan, J. Parallel Distrib. Comput. 2009",
            rounds="p-1", serial="(p-1)/p", sent="(p-1)/p", pipelined=True,
        ),
        Algorithm(
            "reduce_scatter", "circulant", reduce_scatter_circulant,
            "fewest rounds and least volume for any number of ranks",
            "Traeff, arXiv 2407.18004",
            rounds="q", serial="(p-1)/p", sent="(p-1)/p", pipelined=True,
        ),
        Algorithm(
            "reduce_scatter", "direct", reduce_scatter_direct,
            "all blocks at once, one reduction of p inputs in rank order: few ranks, any operator",
            "classic",
            rounds="1", messages="p-1", serial="(p-1)/p", sent="(p-1)/p", ordered=True, pipelined=True,
        ),
        Algorithm(
            "gather", "binomial", gather_binomial,
            "fewest messages at the root: small blocks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="log2(f)", serial="(p-1)/p", sent="max(p-2**(q-1), 2**(q-2))/p",
        ),
        Algorithm(
            "gather", "direct", gather_direct,
            "every block moves once: large blocks",
            "classic",
            rounds="1", messages="p-1", serial="(p-1)/p", sent="1/p",
        ),
        Algorithm(
            "scatter", "binomial", scatter_binomial,
            "fewest messages at the root: small blocks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="log2(f)", serial="(p-1)/p", sent="(p-1)/p",
        ),
        Algorithm(
            "scatter", "direct", scatter_direct,
            "every block moves once: large blocks",
            "classic",
            rounds="1", messages="p-1", serial="(p-1)/p", sent="(p-1)/p",
        ),
        Algorithm(
            "alltoall", "pairwise", alltoall_pairwise,
            "every block moves once, one peer at a time: large blocks",
            "classic; Thakur, Rabenseifner and Gropp, IJHPCA 2005",
            rounds="p-1", serial="(p-1)/p", sent="(p-1)/p",
        ),
        Algorithm(
            "alltoall", "bruck", alltoall_bruck,
            "fewest rounds, blocks travel up to q times: small blocks, many ranks",
            "Bruck et al., IEEE TPDS 1997",
            rounds="q", serial="log2(p)/2", sent="log2(p)/2", uniform=True,
        ),
        Algorithm(
            "alltoall", "direct", alltoall_direct,
            "all blocks at once: few ranks, or blocks of very different sizes",
            "classic",
            rounds="1", messages="p-1", serial="(p-1)/p", sent="(p-1)/p",
        ),
        Algorithm(
            "barrier", "dissemination", barrier_dissemination,
            "fewest rounds for any number of ranks",
            "Hensgen, Finkel and Manber, Int. J. Parallel Program. 1988",
            rounds="q", serial="q", sent="q",
        ),
    )
}  # fmt: skip


def algorithms(collective: str) -> tuple[str, ...]:
    """Names of a collective's algorithms, in catalogue order.

    Raises:
        ArgumentError: unknown collective.
    """
    if collective not in COLLECTIVES:
        raise ArgumentError(f"collective must be one of {', '.join(sorted(COLLECTIVES))}, got {collective!r}")
    return tuple(row.name for row in CATALOGUE.values() if row.collective == collective)


def find(collective: str, algorithm: str) -> Algorithm:
    """A row of the catalogue.

    Raises:
        ArgumentError: unknown collective, or an algorithm that this collective does not have.
    """
    names = algorithms(collective)
    if algorithm not in names:
        raise ArgumentError(f"{collective} algorithm must be one of {', '.join(names)}, got {algorithm!r}")
    return CATALOGUE[f"{collective}/{algorithm}"]


def schedule(row: Algorithm, nranks: int, rank: int, root: int = 0, nchunks: int = 1) -> Schedule:
    """One rank's schedule.

    Args:
        row: Catalogue row.
        nranks, rank, root: ``0 <= rank, root < nranks``; ``root`` is 0 for collectives without one.
        nchunks: Chunks of the message, ``>= 1``; only rows with ``chunked`` heed it.
    """
    collective = COLLECTIVES[row.collective]
    if nranks < 2 or collective.blocks:
        nchunks = nranks
    elif not row.chunked:
        nchunks = int(row.cost("chunks", nranks))
    writer = Writer(nranks, rank, root, nchunks)
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
