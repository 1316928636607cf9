"""Two-shot allreduce: rank r receives every rank's chunk r, folds them in rank order and sends the result to all.

4 ranks, a..d their contributions:

    start          shot 1 and fold         shot 2
    0: a a a a     abcd .  .  .            abcd abcd abcd abcd
    1: b b b b     .  abcd .  .            the same
    2: c c c c     .  .  abcd .
    3: d d d d     .  .  .  abcd

Source: direct reduce-scatter and allgather; two-shot kernels of vLLM and TensorRT-LLM.
"""

from hpcoll.schedules.builders.reduce_direct import fold
from hpcoll.schedules.ir import Writer, inputs, outputs


def allreduce_two_shot(w: Writer) -> None:
    """Write two rounds of p-1 messages of m/p: the least volume, in two latencies."""
    combine_at(w, list(range(w.nranks)))


def combine_at(w: Writer, owners: list[int]) -> None:
    """Write an allreduce in which owner i receives chunk i of all ranks, folds it in rank order and sends the result to all."""
    p, r = w.nranks, w.rank
    chunk_of = {owner: chunk for chunk, owner in enumerate(owners)}
    others = [(r + t) % p for t in range(1, p)]
    for peer in others:
        if peer in chunk_of:
            w.send(peer, inputs(chunk_of[peer]))
    if r in chunk_of:
        mine = chunk_of[r]
        fold(w, reversed(others), inputs(mine), outputs(mine))
        for peer in others:
            w.send(peer, outputs(mine), put=True)
    for peer in reversed(others):
        if peer in chunk_of:
            w.recv(peer, outputs(chunk_of[peer]), put=True)
