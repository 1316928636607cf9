"""Direct broadcast: the root sends the message to every other rank.

round 0:  0 -> 1, 2, 3
"""

from hpcoll.schedules.ir import Writer, outputs


def bcast_direct(w: Writer) -> None:
    """Write one round; the root sends p-1 times m."""
    if w.rank == w.root:
        for vrank in range(1, w.nranks):
            w.send(w.peer(vrank), outputs(0), put=True)
    else:
        w.recv(w.root, outputs(0), put=True)
