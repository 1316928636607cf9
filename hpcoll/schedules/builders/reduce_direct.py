"""Direct reduce: every rank sends its contribution to the root, which folds all in rank order.

round 0:  1, 2, 3 -> 0        then rank 0: a op b op c op d
"""

from collections.abc import Iterable

from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs


def reduce_direct(w: Writer) -> None:
    """Write one round; the root receives p-1 times m and folds in one pass. Keeps rank order for every root."""
    if w.rank != w.root:
        w.send(w.root, inputs(0))
        return
    fold(w, map(w.peer, range(1, w.nranks)), inputs(0), outputs(0))


def fold(w: Writer, peers: Iterable[int], own: Chunk, into: Chunk) -> None:
    """Write the receives of other ranks' contributions to a chunk, and the fold of all in rank order."""
    contributions = {w.rank: own}
    for peer in peers:
        contributions[peer] = w.scratch(own.index)
        w.recv(peer, contributions[peer])
    w.reduce(*(contributions[rank] for rank in sorted(contributions)), dst=into)
