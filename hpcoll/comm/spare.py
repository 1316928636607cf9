"""What freed communicators leave for others of the same ranks, so that programs which make and free many need it made once.

Plans, engines and the shared memory of a node belong to the ranks and not to the communicator. Those of the last few that were freed are
kept; whether all ranks still have the same is asked in one short allreduce when a communicator is used for the first time.
"""

import contextlib
import os
from collections import OrderedDict
from typing import TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.comm.context import Parts, free
from hpcoll.runtime.transports.mpi import world_ranks
from hpcoll.selection.config import PREFIX, TUNING

MOST = 4  # that are kept; a few MB of shared memory each

Key: TypeAlias = tuple[tuple[int, ...], bool, tuple[tuple[str, str], ...]]


class Spare:
    """Parts of freed contexts, the latest last."""

    def __init__(self) -> None:
        self._parts: OrderedDict[int, tuple[Key, Parts]] = OrderedDict()  # by serial number

    def take(self, comm: MPI.Intracomm, key: Key) -> Parts | None:
        """What was left for a communicator like this one; None on all ranks where one has nothing. Collective."""
        serial = next((serial for serial, (theirs, _) in reversed(self._parts.items()) if theirs == key), -1)
        found = np.array([serial, -serial], np.int64)
        MPI.Intracomm(comm).Allreduce(MPI.IN_PLACE, found, MPI.MIN)
        return self._parts.pop(serial)[1] if serial >= 0 and found[0] == -found[1] else None

    def keep(self, key: Key, parts: Parts) -> None:
        """Keep what a context left; what was kept for longest is freed when there is too much."""
        self._parts[parts.resources.serial] = key, parts
        while len(self._parts) > MOST:
            free(self._parts.popitem(last=False)[1][1])

    def free(self) -> None:
        """Free everything, before MPI ends."""
        while self._parts:
            free(self._parts.popitem(last=False)[1][1])

    def forget(self) -> None:
        """Drop everything: this process is a fork."""
        self._parts.clear()


def key_of(comm: MPI.Intracomm, mixed: bool) -> Key:
    """In what communicators must be alike: ranks in order, and settings."""
    names = [name for name in os.environb if name.startswith(PREFIX.encode())]
    settings = {name.decode(): os.environ[name.decode()] for name in names}
    with contextlib.suppress(OSError):
        settings["written"] = str(os.stat(settings.get(TUNING, "")).st_mtime_ns)
    return world_ranks(comm), mixed, tuple(sorted(settings.items()))
