"""The serializer of objects: `mpi4py.MPI.pickle`, as the program has set it.

Its default, `pickle` with protocol 5 or above, is called here directly, with large buffers out of band. `gc` tells what the object was
given, which has no other way to say so.
"""

import pickle
from collections.abc import Callable
from gc import get_referents
from typing import Any, NamedTuple

from mpi4py import MPI

OUT_OF_BAND = 5  # the first protocol that has it
_THEIRS = MPI.Pickle
_PARTS = 3  # functions and protocol, in this order


class Serializer(NamedTuple):
    """The functions with which objects travel.

    Attributes:
        dumps: Returns an object's bytes.
        loads: Returns the object of some bytes.
        protocol: Protocol for `pickle`, which takes buffers out of band; else None.
    """

    dumps: Callable[[Any], Any]
    loads: Callable[[Any], Any]
    protocol: int | None = None


def current() -> Serializer:
    """Return the serializer of now."""
    theirs: Any = MPI.pickle
    given = get_referents(theirs) if type(theirs) is _THEIRS else []
    if len(given) < _PARTS or given[:2] != [pickle.dumps, pickle.loads]:
        return Serializer(theirs.dumps, theirs.loads)
    protocol = theirs.PROTOCOL
    if protocol is None or 0 <= protocol < OUT_OF_BAND:
        return Serializer(theirs.dumps, theirs.loads)
    return Serializer(pickle.dumps, pickle.loads, protocol)
