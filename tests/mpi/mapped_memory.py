"""Questions about a process for tests of symmetric memory: what it has mapped, and whether messages were staged."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from internals import resources
from mpi4py import MPI

import hpcoll
from hpcoll.runtime.program.fields import STAGING_AT, STAGING_SLOTS
from hpcoll.runtime.transports import window


def shares(comm: hpcoll.Communicator) -> bool:
    """Say whether this rank has neighbours with which it shares memory."""
    return resources(comm).message_contexts[0].rings is not None


def holdings() -> tuple[int, int, int, int]:
    """Nameless files mapped, open descriptors, numbers held, symmetric windows."""
    lines = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if f"{window.FOLDER}/#" in line
    ]
    return (
        len({line.split()[4] for line in lines}),
        len(os.listdir("/proc/self/fd")),
        len(window._held),
        len(window._live),
    )


def mapping_of(array: np.ndarray) -> dict[str, str]:
    """The line and the figures that the system gives for the memory of an array."""
    address, found = array.ctypes.data, dict[str, str]()
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if "-" in head and not head.endswith(":"):
            if found:
                break
            first, end = (int(part, 16) for part in head.split("-"))
            if first <= address < end:
                found = {"rights": rest[0], "inode": rest[3], "name": " ".join(rest[4:])}
        elif found:
            found[head.rstrip(":")] = rest[0]
    return found


def staged_nbytes(comm: hpcoll.Communicator) -> int:
    """Bytes other than 0 that this rank has staged since the communicator was made; 0 where it shares no memory."""
    rings = resources(comm).message_contexts[0].rings
    if rings is None:
        return 0
    part = int(rings.fields[STAGING_AT]) - rings.window.address
    return int(np.count_nonzero(rings.window.mapping.array(part, STAGING_SLOTS * rings.capacity)))


def barrier() -> None:
    """Among all ranks, by the MPI library."""
    MPI.COMM_WORLD.Barrier()


@contextmanager
def limited(what: int, soft: int, mine: bool = True) -> Iterator[None]:
    """A limit of the system, for ranks of which it is to be."""
    old = resource.getrlimit(what)
    if mine:
        resource.setrlimit(what, (soft, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, old)
