"""Allreduce of node leaders: one rank of each node combines for all of them.

2 nodes of 2 ranks, a..d their contributions:

    start    folded at the leader    between the leaders    spread
    0: a     ab                      abcd                   abcd
    1: b     .                       .                      abcd
    2: c     cd                      abcd                   abcd
    3: d     .                       .                      abcd

Source: classic (two-level allreduce), with recursive doubling between the leaders.
"""

from hpcoll.schedules.composition import Node, compose
from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs


def allreduce_leaders(w: Writer) -> None:
    """Write 2 rounds on the node and log2 h between the nodes, whole message each time. Commutative operators."""
    node = Node(w, nstripes=1)
    folded = node.fold(lambda stripe: inputs(0), into=lambda run: outputs(0))
    if folded is not None:
        compose(
            w,
            "allreduce/recursive_doubling",
            node.stripe,
            [[0]],
            lambda index: Chunk(folded.buffer, index),
            outputs,
        )
    node.spread(lambda stripe: outputs(0))
