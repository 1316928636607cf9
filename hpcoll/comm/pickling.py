"""Pickled communicators: predefined ones go by name, whatever object has that name in `mpi4py.MPI` by now.

mpi4py pickles them by the object too, which fails once a program has put a `hpcoll.Communicator` in the place of ``MPI.COMM_WORLD``.
"""

import copyreg
from typing import Any

from mpi4py import MPI


def name_of(comm: MPI.Comm) -> str:
    """The name of a predefined communicator.

    Raises:
        ValueError: it is none, as mpi4py says it.
    """
    reduced: Any = MPI.Intracomm(comm).__reduce__()  # a second object over the handle refers to the predefined one
    name: str = reduced[1][1].__reduce__()
    return name


def restored(kind: type[MPI.Intracomm], name: str) -> MPI.Intracomm:
    """What `name_of` named, as an object of a class: that of `mpi4py.MPI` where it has the class by now."""
    found = getattr(MPI, name)
    if type(found) is kind is not MPI.Intracomm:
        return found
    return kind() if found == MPI.COMM_NULL else kind(MPI.Intracomm(found))


def _reduced(comm: MPI.Intracomm) -> Any:
    name = name_of(comm)
    return name if getattr(MPI, name) is comm else (restored, (MPI.Intracomm, name))


def is_constant(comm: MPI.Comm) -> bool:
    """Whether `mpi4py.MPI` came with this very object; not one over the same handle."""
    predefined = type(comm) is MPI.Intracomm and comm in (MPI.COMM_SELF, MPI.COMM_WORLD)
    return predefined and isinstance(comm.__reduce__(), str)


copyreg.pickle(MPI.Intracomm, _reduced)
