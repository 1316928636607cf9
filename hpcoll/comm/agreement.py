"""Agreements: short collectives of the MPI library's own, in which ranks find out what all of them have before hpcoll can run a call.

They are watched, as calls are: a rank that waits says so, gives up in time, and hears of ranks that are gone.
"""

import contextlib
import os
import time
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, CollectiveTimeout, PeerFailed
from hpcoll.base.units import parse_seconds
from hpcoll.comm.contexts import WITNESSES
from hpcoll.runtime.transports.mpi import world_ranks
from hpcoll.selection.config import PREFIX, Config, log

_SPINS, _YIELD_S, _NAP_S = 300, 2e-3, 1e-4
_LOOK_S, _LOOKS = 0.25, 3
_WARNING = 2  # ranks, the first ones: who else waits is not known


def agree_on(comm: MPI.Intracomm, buffer: Any, op: MPI.Op, what: str) -> None:
    """``Allreduce`` in place.

    Args:
        comm: On which it runs.
        buffer, op: As mpi4py has them.
        what: What all ranks are to call now, for texts.
    Raises:
        PeerFailed: one of the ranks is known to have ended.
        CollectiveTimeout: not all came in the time that ``HPCOLL_TIMEOUT`` gives.
    """
    request = comm.Iallreduce(MPI.IN_PLACE, buffer, op)
    if any(request.Test() for _ in range(_SPINS)):
        return
    begun, warn, limit = time.monotonic(), _seconds("WARN", Config().warn), _seconds("TIMEOUT", None) or None
    who, next_look, missed = f"rank {comm.rank}", begun + _LOOK_S, 0
    while not request.Test():
        now = time.monotonic()
        if now - begun < _YIELD_S:
            os.sched_yield()
            continue
        time.sleep(_NAP_S)
        if now < next_look:
            continue
        next_look = now + _LOOK_S
        gone = next(filter(None, (tell(world_ranks(comm)) for tell in WITNESSES)), "")
        missed = missed + 1 if gone else 0
        if missed == _LOOKS:  # what it had to say has had the time to come
            raise PeerFailed(f"{who}: not all ranks come to {what}: {gone}")
        if limit is not None and now - begun > limit:
            raise CollectiveTimeout(f"{who}: not all of {comm.size} ranks came to {what} in {limit:g} s")
        if warn and now - begun > warn:
            warn = None
            if comm.rank < _WARNING:
                log.warning("%s waits for %.0f s: not all of %d ranks have come to %s", who, now - begun, comm.size, what)


def _seconds(name: str, default: float | None) -> float | None:
    """A setting, of which ranks may not have agreed yet."""
    with contextlib.suppress(ArgumentError):
        return parse_seconds(os.environ[PREFIX + name]) if PREFIX + name in os.environ else default
    return default
