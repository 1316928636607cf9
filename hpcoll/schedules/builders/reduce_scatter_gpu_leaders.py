"""Reduce-scatter by one rank of each GPU: it folds the blocks of all that share its GPU, and writes each where it is wanted.

4 ranks on 2 GPUs, 0 and 1 on the first: rank 0 folds blocks 0 and 1 of all ranks, and writes block 1 to rank 1; rank 2 does blocks 2 and 3.

Source: ours, as in `hpcoll.schedules.builders.allreduce_gpu_leaders`.
"""

from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.placement import members


def reduce_scatter_gpu_leaders(w: Writer) -> None:
    """Two rounds, in a channel per block: its owner gets all contributions and folds them in rank order."""
    gpus, p, r = members(w.nodes), w.nranks, w.rank
    for block in range(p):
        owner = gpus[w.nodes[block]][0]
        w.channel(block)
        if r != owner:
            w.send(owner, inputs(block))
            if r == block:
                w.recv(owner, outputs(0), put=True)
            continue
        contributions = {r: inputs(block)}
        for t in range(1, p):
            peer = (r - t) % p
            contributions[peer] = w.scratch(block)
            w.recv(peer, contributions[peer])
        result = outputs(0) if r == block else w.scratch(block)
        w.reduce(result, *(contributions[rank] for rank in range(p)))
        if r != block:
            w.send(block, result, put=True)
