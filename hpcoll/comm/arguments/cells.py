"""Calls on Python objects, described as calls of cells (`hpcoll.comm.objects.cells`)."""

import numpy as np

from hpcoll.comm.arguments.call import Call
from hpcoll.runtime.program.fields import CELL_HEAD_NBYTES

_MOST_NBYTES, _LEAST_NBYTES = 128 << 10, 128  # of a cell
_RECEIVED_NBYTES = 1 << 20  # of the cells of all ranks
_STAGED_NBYTES = 128 << 10  # of those that a rank sends, which must fit a staging slot
_SENT_TO_EACH = ("scatter", "alltoall")
# methods for objects
OBJECTS = (
    "bcast",
    "scatter",
    "gather",
    "allgather",
    "alltoall",
    "reduce",
    "allreduce",
    "scan",
    "exscan",
)
REDUCTIONS = ("reduce", "allreduce", "scan", "exscan")
GATHERED_RANKS = 4  # most that gather all objects of a reduction, however long these are
_COLLECTIVES = {"allreduce": "allgather", "scan": "allgather", "exscan": "allgather"}  # by which they travel
_BYTE = np.dtype(np.uint8)


def cell_nbytes(method: str, nranks: int) -> int:
    """Return the bytes of a cell, alike on all ranks: to copy what it holds takes less time than a second message, in which nothing is."""
    most = (
        (_STAGED_NBYTES if method in _SENT_TO_EACH else _RECEIVED_NBYTES)
        // nranks
        // CELL_HEAD_NBYTES
        * CELL_HEAD_NBYTES
    )
    return max(_LEAST_NBYTES, min(_MOST_NBYTES, most))


def collective_of(method: str, nranks: int = 1) -> str:
    """Return the collective by which a method's cells travel; where a `reduce` goes up a tree, all ranks must know."""
    if method == "reduce":
        return "gather" if nranks <= GATHERED_RANKS else "allgather"
    return _COLLECTIVES.get(method, method)


def call_of_cells(method: str, root: int, rank: int, nranks: int, send: int = 0, recv: int = 0) -> Call:
    """Describe a call on objects as one of cells, at addresses."""
    collective, is_root = collective_of(method, nranks), rank == root
    sent = {"bcast": 0, "scatter": nranks * is_root, "alltoall": nranks}.get(collective, 1)
    received = {"bcast": 1, "scatter": 1, "gather": nranks * is_root}.get(collective, nranks)
    return Call(
        collective,
        send,
        recv,
        cell_nbytes(method, nranks),
        _BYTE,
        root=root,
        in_place=collective == "bcast",
        native=False,
        as_given=False,
        element="object",
        objects=method,
        cells=(sent, received),
    )
