"""Rabenseifner's allreduce: recursive halving scatters the reduction, recursive doubling gathers the results.

4 ranks, 4 chunks, a..d the contributions; the largest parts go to the nearest rank:

    start          halve with r^1      halve with r^2      double with r^2      double with r^1
    0: a a a a     ab ab .  .          abcd .  .  .        abcd abcd . .        abcd abcd abcd abcd
    1: b b b b     .  .  ab ab         .  .  abcd .        . . abcd abcd        the same
    2: c c c c     cd cd .  .          .  abcd .  .        abcd abcd . .
    3: d d d d     .  .  cd cd         .  .  .  abcd       . . abcd abcd
"""

from hpcoll.schedules.ir import Writer, inputs, outputs
from hpcoll.schedules.patterns import hypercube


def allreduce_rabenseifner(w: Writer) -> None:
    """Write 2 log2 p rounds, 2(p-1)/p m sent for a power of two; else two rounds and up to m sent more. Keeps rank order."""
    place = hypercube.place(w.rank, w.nranks)
    lo, n, have = 0, w.nchunks, inputs
    if place.host is not None:
        w.send(place.host, inputs(lo, n))
        w.recv(place.host, outputs(lo, n))
        return
    if place.guest is not None:
        w.recv_reduce(place.guest, inputs(lo, n), outputs(lo, n), received_first=True)
        have = outputs
    for k, peer in enumerate(place.peers):
        n //= 2
        keep, give = (lo + n, lo) if place.vertex >> k & 1 else (lo, lo + n)
        w.send(peer, have(give, n))
        w.recv_reduce(peer, have(keep, n), outputs(keep, n), received_first=peer < w.rank)
        lo, have = keep, outputs
    for peer in reversed(place.peers):
        w.send(peer, outputs(lo, n))
        w.recv(peer, outputs(lo ^ n, n))
        lo, n = min(lo, lo ^ n), 2 * n
    if place.guest is not None:
        w.send(place.guest, outputs(lo, n))
