"""Methods of mpi4py's requests that are replaced, because the MPI library knows nothing of hpcoll: ``Startall``, ``Waitall``, ``waitall``.

`MPI.Prequest.Startall` gives handles to the library, and ours are null between their starts. `MPI.Request.Waitall` of MPICH 5.0.2 ends the
program where the list has a null request and a generalized one that has not ended. Nor does it say for which requests a thread waits.
"""

import ctypes
import gc
import math
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from mpi4py import MPI

_startall = MPI.Prequest.Startall
_waiting: dict[int, Sequence[Any]] = {}  # by thread


def start_all(kind: type[MPI.Prequest], requests: list[MPI.Prequest]) -> None:
    """Start persistent requests; those of a class of hpcoll's one after another, with all others among them."""
    if all(type(one) is MPI.Prequest for one in requests):
        return _startall(requests)
    for one in requests:
        one.Start()
    return None


def waited_for() -> list[Any]:
    """Return the requests for all of which some thread waits in `MPI.Request.Waitall`."""
    return [one for requests in list(_waiting.values()) for one in requests]


def _waiting_for(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``Waitall`` of mpi4py's that tells for which requests a thread waits, and that waits for ours itself beside null ones."""

    def wait_all(
        kind: type[MPI.Request], requests: Sequence[Any], statuses: list[MPI.Status] | None = None
    ) -> Any:
        """Wait for all requests, as mpi4py does."""
        thread = get_ident()
        _waiting[thread] = requests
        try:
            for one in () if all(requests) else requests:
                if hasattr(one, "ended_within"):
                    one.ended_within(math.inf)
            return wait(requests, statuses)
        finally:
            _waiting.pop(thread, None)

    return wait_all


_REPLACED: dict[type, dict[str, Any]] = {
    MPI.Prequest: {"Startall": start_all},
    MPI.Request: {name: _waiting_for(getattr(MPI.Request, name)) for name in ("Waitall", "waitall")},
}


def install() -> bool:
    """Replace the methods, and say whether they are; the classes let nobody set their attributes."""
    found: dict[type, Any] = {kind: next(iter(gc.get_referents(vars(kind))), None) for kind in _REPLACED}
    for kind, methods in _REPLACED.items():
        if type(found[kind]) is not dict or any(
            found[kind].get(name) is not vars(kind)[name] for name in methods
        ):
            return False
    for kind, methods in _REPLACED.items():
        found[kind].update({name: classmethod(method) for name, method in methods.items()})
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    return True
