"""Chain broadcast: the message runs down a line of ranks; segments follow one another.

    4 ranks, root 1:    1 -> 2 -> 3 -> 0          segment 0    round 0  1  2
                                                  segment 1           1  2  3    (of the whole message's rounds)

Source: classic (linear pipeline).
"""

from hpcoll.schedules.ir import Writer, outputs


def bcast_chain(w: Writer) -> None:
    """p-1 rounds of m; nobody sends more than m, so many segments reach the full bandwidth of a link."""
    if w.vrank > 0:
        w.recv(w.peer(w.vrank - 1), outputs(0))
    if w.vrank < w.nranks - 1:
        w.send(w.peer(w.vrank + 1), outputs(0))
