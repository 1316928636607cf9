"""All-to-all by one rank of each GPU: it gathers the blocks for each rank that shares its GPU, and writes them where they are wanted.

4 ranks on 2 GPUs, 0 and 1 on the first: rank 0 reads what all have for 0 and for 1, and writes the latter to rank 1; rank 2 serves 2 and 3.

Source: ours, as in `hpcoll.schedules.builders.allreduce_gpu_leaders`.
"""

from hpcoll.schedules.ir import Writer, cell, inputs, outputs
from hpcoll.schedules.placement import members


def alltoall_gpu_leaders(w: Writer) -> None:
    """Two rounds, in a channel per target: its owner gets all blocks for it."""
    gpus, p, r = members(w.nodes), w.nranks, w.rank
    for target in range(p):
        owner = gpus[w.nodes[target]][0]
        w.channel(target)
        if r != owner:
            w.send(owner, inputs(target))
            if r == target:
                w.recv(owner, outputs(0, p), put=True)
            continue
        blocks = outputs(0, p) if r == target else w.scratch(*((source, target) for source in range(p)))
        w.copy(inputs(target), cell(blocks, r))
        for t in range(1, p):
            w.recv((r - t) % p, cell(blocks, (r - t) % p))
        if r != target:
            w.send(target, blocks, put=True)
