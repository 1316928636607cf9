"""The proof of a registered row at its first use: the schedules of all ranks, before any message leaves.

A verdict that a row is right is kept in the disk cache, by a digest of the schedules and of the verifier's source. So a later program
writes the schedules again, but does not run them.
"""

import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path

from hpcoll.analysis import prove, ring_slots, symbolic_values, verify
from hpcoll.base import disk_cache
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules import catalogue, collectives
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm, schedule

CHUNKS = (1, 2, 3, 5)  # for which rows that take any number are compared between ranks
_SAYS = "hpcoll: proving {} on {} ranks before its first use"


def is_registered(row: Algorithm) -> bool:
    """Say whether a row is not the package's own."""
    return row.key not in catalogue.PACKAGE


@lru_cache(maxsize=4096)
def proven(row: Algorithm, nranks: int, root: int = 0, nchunks: int = 1, nodes: Nodes = ()) -> str:
    """Prove a row for one number of ranks, root, number of chunks and placement, and return the digest of its schedules.

    ScheduleError: a schedule is wrong; the text names rank, step and cause.
    """
    try:
        schedules = [schedule(row, nranks, rank, root, nchunks, nodes) for rank in range(nranks)]
        found = digest(row, schedules)

        def verdict() -> bytes:
            prove.prove_schedules(row, schedules)
            return found.encode()

        disk_cache.kept(f"proof-{found}", verdict, _SAYS.format(row.key, nranks))
        return found
    except ScheduleError as error:
        refused = ScheduleError(f"{row.key} is refused on {nranks} ranks before any message leaves: {error}")
        refused.rank, refused.step, refused.op = error.rank, error.step, error.op
        raise refused from None


def digest(row: Algorithm, schedules: Sequence[Schedule]) -> str:
    """Return a digest of all that a proof depends on."""
    found = hashlib.blake2b(_verifier(), digest_size=16)
    found.update(repr((row.collective, row.ordered, row.reproducible, row.uniform)).encode())
    for one in schedules:
        found.update(repr((one.nranks, one.root, one.nchunks, one.scratch, one.graph, one.links)).encode())
        for steps in one.channels:
            for op, peer, dst, srcs, first, put, after in steps:
                chunks = [(int(chunk.buffer), chunk.index, chunk.n) for chunk in ((dst,) if dst else ()) + srcs]
                found.update(b"%d %d %d %d %d %a %a;" % (op, peer, dst is not None, first, put, after, chunks))
            found.update(b"/")
    return found.hexdigest()


@cache
def _verifier() -> bytes:
    """Return a digest of the modules that make a proof."""
    modules = prove, verify, ring_slots, symbolic_values, collectives
    return hashlib.blake2b(b"".join(Path(str(module.__file__)).read_bytes() for module in modules), digest_size=16).digest()
