"""Allgather by one rank of each GPU: it reads everybody's block and writes the output of all that share its GPU.

4 ranks on one GPU, a..d their blocks:

    start          rank 0 reads         and writes
    0: a . . .     a b c d              0: a b c d
    1: . b . .                          1: a b c d
    2: . . c .                          2: a b c d
    3: . . . d                          3: a b c d

Source: ours, as in `hpcoll.schedules.builders.allreduce_gpu_leaders`.
"""

from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.placement import members


def allgather_gpu_leaders(w: Writer) -> None:
    """Two rounds; with several GPUs a rank copies its own block itself, because leaders of others read it from there."""
    gpus, p, r = members(w.nodes), w.nranks, w.rank
    leaders, mine = [ranks[0] for ranks in gpus], gpus[w.nodes[r]]
    if r == mine[0] or len(gpus) > 1:
        w.copy(inputs(0), outputs(r))
    for leader in leaders:
        if leader != r:
            w.send(leader, inputs(0))
    if r == mine[0]:
        for t in range(1, p):
            w.recv((r - t) % p, outputs((r - t) % p))
    for peer in mine[1:] if r == mine[0] else (r,):
        for run in [(0, p)] if len(gpus) == 1 else [(0, peer), (peer + 1, p - peer - 1)]:
            if run[1] and r == mine[0]:
                w.send(peer, outputs(*run), put=True)
            elif run[1]:
                w.recv(mine[0], outputs(*run), put=True)
