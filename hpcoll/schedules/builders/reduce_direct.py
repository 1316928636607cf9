"""Direct reduce: every rank sends its contribution to the root, which folds all in rank order.

round 0:  1, 2, 3 -> 0        then rank 0: a op b op c op d
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def reduce_direct(w: Writer) -> None:
    """Write one round; the root receives p-1 times m and folds in one pass. Keeps rank order for every root."""
    if w.rank != w.root:
        w.send(w.root, inputs(0))
        return
    contributions = {w.root: inputs(0)}
    for vrank in range(1, w.nranks):
        peer = w.peer(vrank)
        contributions[peer] = w.scratch(0)
        w.recv(peer, contributions[peer])
    w.reduce(*(contributions[rank] for rank in range(w.nranks)), dst=outputs(0))
