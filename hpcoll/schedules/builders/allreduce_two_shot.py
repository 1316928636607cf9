"""Two-shot allreduce: rank r gets everybody's chunk r, folds them in rank order and hands out the result.

4 ranks, a..d their contributions:

    start          shot 1 and fold         shot 2
    0: a a a a     abcd .  .  .            abcd abcd abcd abcd
    1: b b b b     .  abcd .  .            the same
    2: c c c c     .  .  abcd .
    3: d d d d     .  .  .  abcd

Source: direct reduce-scatter and allgather; two-shot kernels of vLLM and TensorRT-LLM.
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def allreduce_two_shot(w: Writer) -> None:
    """Two rounds of p-1 messages of m/p: least possible volume in two latencies."""
    p, r = w.nranks, w.rank
    contributions = {r: inputs(r)}
    for t in range(1, p):
        w.send((r + t) % p, inputs((r + t) % p))
    for t in range(1, p):
        peer = (r - t) % p
        contributions[peer] = w.scratch(r)
        w.recv(peer, contributions[peer])
    w.reduce(outputs(r), *(contributions[rank] for rank in range(p)))
    for t in range(1, p):
        w.send((r + t) % p, outputs(r))
    for t in range(1, p):
        w.recv((r - t) % p, outputs((r - t) % p))
