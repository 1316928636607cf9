"""Direct scatter: the root sends every rank its block.

root 1 of 4 sends to 2, 3, 0, each block straight from its place
"""

from hpcoll.schedules.ir import Writer, inputs, outputs


def scatter_direct(w: Writer) -> None:
    """Write one round; the root sends p-1 messages."""
    if w.vrank:
        w.recv(w.root, outputs(0), put=True)
        return
    for v in range(1, w.nranks):
        w.send(w.peer(v), inputs(w.peer(v)), put=True)
    w.copy(inputs(w.rank), outputs(0))
