"""Pickled communicators: predefined ones go by name, whatever object has that name in `mpi4py.MPI` by now.

mpi4py pickles them by the object too, which fails once a program has put a `hpcoll.Communicator` in the place of ``MPI.COMM_WORLD``.
"""

from typing import Any

from mpi4py import MPI


def name_of(comm: MPI.Comm) -> str:
    """Return the name of a predefined communicator; raise mpi4py's ValueError for any other."""
    reduced: Any = MPI.Intracomm(
        comm
    ).__reduce__()  # a second object over the handle refers to the predefined one
    name: str = reduced[1][1].__reduce__()
    return name


def restored(kind: type[MPI.Intracomm], name: str) -> MPI.Intracomm:
    """Return the communicator of a name as an object of a class: the one of `mpi4py.MPI` where that has the class by now."""
    found = getattr(MPI, name)
    if type(found) is kind is not MPI.Intracomm:
        return found
    return kind.__new__(kind) if found == MPI.COMM_NULL else kind(MPI.Intracomm(found))


def reduced(comm: MPI.Intracomm) -> Any:
    """Return an mpi4py communicator as `copyreg` wants it."""
    name = name_of(comm)
    return name if getattr(MPI, name) is comm else (restored, (MPI.Intracomm, name))
