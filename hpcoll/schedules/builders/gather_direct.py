"""Direct gather: every rank sends its block to the root.

root 1 of 4 receives from 2, 3, 0, each straight into its place
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def gather_direct(w: Writer) -> None:
    """Write one round; the root receives p-1 messages."""
    if w.vrank:
        w.send(w.root, inputs(0))
        return
    w.copy(inputs(0), outputs(w.rank))
    for v in range(1, w.nranks):
        w.recv(w.peer(v), outputs(w.peer(v)))
