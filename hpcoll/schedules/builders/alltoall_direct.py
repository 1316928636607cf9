"""Direct alltoall: every rank sends all its blocks at once, nearest rank on the right first.

rank 0 of 4 sends to 1, 2, 3 and receives from 3, 2, 1: no two ranks begin with the same one.
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def alltoall_direct(w: Writer) -> None:
    """Write one round of p-1 messages; each block moves once."""
    p, r = w.nranks, w.rank
    for t in range(1, p):
        w.send((r + t) % p, inputs((r + t) % p))
    w.copy(inputs(r), outputs(r))
    for t in range(1, p):
        w.recv((r - t) % p, outputs((r - t) % p))
