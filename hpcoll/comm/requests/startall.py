"""``MPI.Prequest.Startall`` for all requests: mpi4py's own gives handles to the MPI library, and ours are null between their starts."""

import ctypes
import gc
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

_theirs = vars(MPI.Prequest)["Startall"]


def start_all(kind: type[MPI.Prequest], requests: Sequence[MPI.Prequest]) -> None:
    """Start persistent requests; those of a class of hpcoll's one after another, with all others among them."""
    if all(type(one) is MPI.Prequest for one in requests):
        return _theirs.__get__(None, kind)(requests)
    for one in requests:
        one.Start()
    return None


def install() -> bool:
    """Let ``MPI.Prequest.Startall`` be `start_all`, and say whether it is; the class lets nobody set its attributes."""
    methods: Any = gc.get_referents(vars(MPI.Prequest))[:1]
    if not methods or type(methods[0]) is not dict or methods[0].get("Startall") is not _theirs:
        return False
    methods[0]["Startall"] = classmethod(start_all)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(MPI.Prequest))
    return True
