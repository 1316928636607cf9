"""Direct allgather: every rank sends its block to every other, nearest rank on the right first.

rank 0 of 4 sends a to 1, 2, 3 and receives from 3, 2, 1: no two ranks begin with the same one.
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def allgather_direct(w: Writer) -> None:
    """Write one round of p-1 messages."""
    p, r = w.nranks, w.rank
    w.copy(inputs(0), outputs(r))
    for t in range(1, p):
        w.send((r + t) % p, inputs(0))
    for t in range(1, p):
        w.recv((r - t) % p, outputs((r - t) % p))
