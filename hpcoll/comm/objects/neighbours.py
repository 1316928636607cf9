"""Objects to and from the neighbours of a communicator with a topology: the bytes of all pickles first, then these."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.objects.cells import loaded, pickled

_NONE = -1  # in place of the bytes of an object that cannot be pickled


def exchanged(
    comm: Any, method: str, make: Callable[[], Sequence[Any]], nsent: int, timeout: Any
) -> list[Any]:
    """Return an object from each neighbour, None for those behind an open edge; collective among neighbours.

    Args:
        comm: Communicator with a topology.
        method: "neighbor_allgather" or "neighbor_alltoall".
        make: Returns the objects that are sent.
        nsent: Their number.
        timeout: As in `hpcoll.comm.methods.blocking.Blocking.Bcast`.

    Raises:
        ArgumentError: A neighbour has no object to send; that one raises the error itself.
    """
    problem = None
    pickles = [b""] * nsent
    try:
        pickles = [pickled(obj) for obj in make()]
    except Exception as error:
        problem = error
    ours = np.array([_NONE if problem else len(pickle) for pickle in pickles], np.int64)
    theirs = np.zeros(comm.indegree, np.int64)
    form = method.capitalize()
    sends_all = method == "neighbor_alltoall"
    getattr(comm, form)(ours, theirs, timeout=timeout)
    data = np.frombuffer(b"".join(pickles), np.uint8)
    places = _places(theirs)
    received = np.empty(sum(places[0]), np.uint8)
    sent = [data, *_places(ours), MPI.BYTE] if sends_all else [data, MPI.BYTE]
    getattr(comm, f"{form}v")(sent, [received, *places, MPI.BYTE], timeout=timeout)
    if problem is not None:
        raise problem
    if (theirs == _NONE).any():
        raise ArgumentError(
            f"rank {comm.rank}: {method}: neighbour {int(theirs.argmin())} has no object to send"
        )
    return [loaded(received[at : at + n].data, ()) if n else None for n, at in zip(*places)]


def _places(nbytes: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the bytes and the displacements of blocks, one behind the other."""
    counts = np.maximum(nbytes, 0).tolist()
    return counts, list(accumulate(counts[:-1], initial=0))[: len(counts)]
