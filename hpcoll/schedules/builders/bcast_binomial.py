"""Binomial broadcast: whoever has the message hands it to the root of the largest subtree that has not.

    round   0          1             2
            0 -> 4     0 -> 2        0 -> 1
                       4 -> 6        2 -> 3   4 -> 5   6 -> 7
"""

from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns import binomial


def bcast_binomial(w: Writer) -> None:
    """q rounds of m; the root sends it q times."""
    if w.vrank:
        w.recv(w.peer(binomial.parent(w.vrank)), outputs(0))
    for child in binomial.children(w.vrank, w.nranks):
        w.send(w.peer(child), outputs(0))
