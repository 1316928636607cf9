"""Ring allreduce: a reduce-scatter round the ring, then an allgather round the ring.

State of 4 ranks, chunk by chunk (a..d are the ranks' contributions):

    start           after reduce-scatter      after allgather
    0: a a a a      0: abcd . . .             abcd abcd abcd abcd
    1: b b b b      1: . abcd . .             the same
    2: c c c c      2: . . abcd .             the same
    3: d d d d      3: . . . abcd             the same
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def allreduce_ring(w: Writer) -> None:
    """Write 2(p-1) rounds of m/p: 2(p-1)/p m sent per rank, the least possible. Commutative operators."""
    p, r = w.nranks, w.rank
    left, right = (r - 1) % p, (r + 1) % p
    for t in range(p - 1):
        sent, combined = (r - t - 1) % p, (r - t - 2) % p
        w.send(right, outputs(sent) if t else inputs(sent))
        w.recv_reduce(left, inputs(combined), outputs(combined))
    for t in range(p - 1):
        w.send(right, outputs((r - t) % p))
        w.recv(left, outputs((r - t - 1) % p))
