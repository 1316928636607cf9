"""Hierarchical allreduce: every rank of a node takes part in an allreduce of a stripe of the message between the nodes.

2 nodes of 2 ranks, a..d their contributions, 2 stripes:

    start         folded on the node    between the nodes    spread on the node
    0: a  a       ab .                  abcd .               abcd abcd
    1: b  b       .  ab                 .    abcd            the same
    2: c  c       cd .                  abcd .
    3: d  d       .  cd                 .    abcd

A node sends and receives 2(h-1)/h m, the least possible, and all its ranks take part. On larger nodes than the smallest, the
ranks beyond the stripes only send their message and receive the result.

Source: Traeff and Hunold, arXiv 1910.13373 (full-lane collectives), with two-shot on the node and circulant allreduce between.
"""

from hpcoll.schedules.composition import Node, compose
from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs


def allreduce_hierarchical(w: Writer) -> None:
    """Write 2 rounds on the node and 2 ceil(log2 h) between the nodes. Commutative operators."""
    in_stripes(w, "allreduce/circulant")


def in_stripes(w: Writer, between: str) -> None:
    """Write an allreduce whose stripes are folded on the node, combined between the nodes by a flat row of ``h`` chunks, and spread."""
    node = Node(w)
    size = w.nchunks // node.nstripes
    folded = node.fold(lambda stripe: inputs(stripe * size, size), into=lambda run: outputs(run.index, run.n))
    if folded is not None:
        chunks = [[folded.index + i] for i in range(size)]
        compose(w, between, node.stripe, chunks, lambda index: Chunk(folded.buffer, index), outputs)
    node.spread(lambda stripe: outputs(stripe * size, size))
