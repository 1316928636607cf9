"""Hierarchical barrier: ranks of a node report to their leader, the leaders run a barrier, and each releases its node.

    2 nodes of 3 ranks:    1, 2 -> 0    4, 5 -> 3        0 <-> 3        0 -> 1, 2    3 -> 4, 5

Source: classic (two-level barrier), with the dissemination barrier of Hensgen, Finkel and Manber between the leaders.
"""

from hpcoll.schedules.composition import Node, always, compose
from hpcoll.schedules.ir import Writer, inputs, outputs


def barrier_hierarchical(w: Writer) -> None:
    """Write 2 rounds on the node and ceil(log2 h) between the nodes, of one chunk, which has no bytes."""
    node = Node(w, nstripes=1)
    folded = node.fold(lambda stripe: inputs(0), into=lambda run: outputs(0))
    if folded is not None:
        compose(w, "barrier/dissemination", node.stripe, [[0]], always(folded), outputs)
    node.spread(lambda stripe: outputs(0))
