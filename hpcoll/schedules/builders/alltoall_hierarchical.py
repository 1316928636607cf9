"""Hierarchical alltoall: blocks of a node for one rank elsewhere are collected and leave the node as one message.

2 nodes of 2 ranks; blocks as source>destination:

    on the node: 0 collects what goes to 2, 1 what goes to 3        between the nodes
    0:  0>2 1>2                                                     to 2, as one message
    1:  0>3 1>3                                                     to 3, as one message

A rank receives one message from every other node, not one from every rank: fewer by the factor of a node's ranks.

Source: Bruck et al., IEEE TPDS 1997, section on hierarchies; node-aware alltoall of Collom, Li and Bienz, 2023.
"""

from hpcoll.schedules.composition import Node, pieces
from hpcoll.schedules.ir import Writer, cell, inputs, outputs


def alltoall_hierarchical(w: Writer) -> None:
    """Write one round on the node and one between the nodes, of p/c messages. Equal blocks only."""
    node = Node(w)
    here = w.nodes[w.rank]
    away = [
        [rank for k, ranks in enumerate(node.all) if k != here for rank in ranks[i :: len(node.mates)]]
        for i in range(len(node.mates))
    ]
    w.copy(inputs(w.rank), outputs(w.rank))
    collected = {rank: w.scratch(*[(w.rank, w.rank)] * len(node.mates)) for rank in away[node.local]}
    for rank, run in collected.items():
        w.copy(inputs(rank), cell(run, node.local))
    come = {
        peer: [outputs(peer), *(cell(run, node.mates.index(peer)) for run in collected.values())]
        for peer in node.mates
    }
    node.exchange(
        lambda peer: [inputs(rank) for rank in (peer, *away[node.mates.index(peer)])],
        lambda peer: len(come[peer]),
        lambda peer, turn: w.recv(peer, come[peer][turn]),
    )
    for rank, run in sorted(collected.items(), key=lambda item: (item[0] - w.rank) % w.nranks):
        w.send(rank, run)
    arriving = [ranks for k, ranks in enumerate(node.all) if k != here]
    for ranks in sorted(arriving, key=lambda ranks: (w.rank - ranks[0]) % w.nranks):
        source = ranks[node.mates.index(w.rank) % len(ranks)]
        landed = w.scratch(*[(w.rank, w.rank)] * len(ranks))
        w.recv(source, landed)
        for lo, hi in pieces([[outputs(rank) for rank in ranks]]):
            w.copy(cell(landed, lo, hi - lo), outputs(ranks[lo], hi - lo))
