"""Agreements: short collectives of the MPI library's own, in which ranks find out what all of them have before hpcoll can run a call.

They are watched, as calls are: a rank that waits says so, gives up in time, and hears of ranks that are gone. On a communicator that has a
context already (`complete`), it also hears of calls there that have failed, and says where the program called.
"""

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, CollectiveTimeout, PeerFailed
from hpcoll.base.units import parse_seconds
from hpcoll.comm.caller import in_words, place_of_caller
from hpcoll.comm.contexts import LIVE, WITNESSES
from hpcoll.runtime.transports.mpi import world_ranks
from hpcoll.selection.config import PREFIX, Config, log

_SPINS, _YIELD_S, _NAP_S = 300, 2e-3, 1e-4
_LOOK_S, _LOOKS = 0.25, 3

Limits: TypeAlias = Callable[[], tuple[float | None, float | None]]  # seconds until the warning, and until it is given up; None: never

_left: list[object] = []  # requests that were given up and their memory, in which the library writes when the others come
_GIVEN_UP: list[int] = []  # key of the attribute of communicators on which that has happened


def agree_on(comm: MPI.Intracomm, buffer: Any, op: MPI.Op, what: str) -> None:
    """``Allreduce`` in place.

    Args:
        comm: On which it runs.
        buffer, op: As mpi4py has them.
        what: What all ranks are to call now, for texts.
    Raises:
        PeerFailed: one of the ranks is known to have ended.
        CollectiveTimeout: not all came in the time that ``HPCOLL_TIMEOUT`` gives.
        ArgumentError: one of these was raised on this communicator before: ranks are no longer at the same place.
    """
    refuse_given_up(comm)
    request = comm.Iallreduce(MPI.IN_PLACE, buffer, op)
    wait_for_all(comm, request, buffer, what)


def refuse_given_up(comm: MPI.Intracomm) -> None:
    """Raise ArgumentError where an agreement was given up on this communicator before."""
    if _GIVEN_UP and comm.Get_attr(_GIVEN_UP[0]) is not None:
        raise ArgumentError(f"rank {comm.rank}: this communicator cannot be used: not all ranks came to {comm.Get_attr(_GIVEN_UP[0])}")


def _asked() -> tuple[float | None, float | None]:
    """Limits from the environment, on which ranks may not have agreed yet."""
    return _seconds("WARN", Config().warn), _seconds("TIMEOUT", None) or None


def wait_for_all(
    comm: MPI.Intracomm, request: MPI.Request, memory: object, what: str, limits: Limits = _asked,
    look: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Wait for a collective of the MPI library's own.

    Args:
        comm, request: On which it runs, and its request.
        memory: Of its buffers; kept where it is given up.
        what: What all ranks are to call now, for texts.
        limits: Gives the limits.
        look: Called now and then; what it raises gives up.
    Raises:
        PeerFailed, CollectiveTimeout: as in `agree_on`.
    """
    try:
        if not _ended_soon(request):
            _watched(comm, request, what, limits, look)
    except BaseException:
        _give_up(comm, request, memory, what)
        raise


def complete(comm: MPI.Intracomm, request: MPI.Request, memory: object, what: str) -> None:
    """`wait_for_all` in a call on a communicator in use, with its limits; text and place are found only where some rank comes late.

    Where the caller is no `hpcoll.comm.endings.Closing`, it calls `end_call` with what this raises.

    Raises:
        PeerFailed, CollectiveTimeout: as in `agree_on`.
        MismatchError, PeerFailed, CollectiveTimeout: a call of another rank on the communicator has failed.
    """
    try:
        if not _ended_soon(request):
            what = f"{what}, on {comm.Get_name() or 'a communicator'} at {in_words(place_of_caller())}"
            _watched(comm, request, what, partial(_limits_in_use, comm), partial(_hear, comm))
    except BaseException:
        _give_up(comm, request, memory, what)
        raise


def end_call(comm: MPI.Intracomm, method: str, error: BaseException) -> None:
    """A call's agreement was given up: tell the other ranks, refuse further use, and raise the error with the call, if it is ours."""
    for context in _contexts(comm):
        if not context.closed and not isinstance(error, ArgumentError):
            context.interrupted(method, error)


def allgather_objects(comm: MPI.Intracomm, mine: object, method: str) -> list[Any]:
    """Every rank's object, in a call that is no `hpcoll.comm.endings.Closing`; collective, errors as `complete`."""
    refuse_given_up(comm)
    pickled = MPI.pickle.dumps(mine)
    sent, every = np.array([len(pickled)], np.int64), np.empty(comm.size, np.int64)
    try:
        complete(comm, comm.Iallgather(sent, every), (sent, every), method)
        counts = every.tolist()
        found = memoryview(bytearray(sum(counts)))
        complete(comm, comm.Iallgatherv(pickled, (found, counts)), (pickled, found), method)
    except BaseException as error:
        end_call(comm, method, error)
        raise
    return [MPI.pickle.loads(found[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]


def _contexts(comm: MPI.Intracomm) -> list[Any]:
    """The communicator's context, where it has one."""
    return [context for context in list(LIVE) if context.resources.native == comm]


def _limits_in_use(comm: MPI.Intracomm) -> tuple[float | None, float | None]:
    for context in _contexts(comm):
        config = context.resources.config
        return config.warn, config.timeout if context.limit_s is None else context.limit_s
    return _asked()


def _hear(comm: MPI.Intracomm) -> None:
    """Raise what a call of another rank has failed with."""
    for context in _contexts(comm):
        if context.resources.alarmed:
            context.watch(None, "", None, 0.0).hear()


def _ended_soon(request: MPI.Request) -> bool:
    test = request.Test
    for _ in range(_SPINS):  # `any` of a generator takes 0.3 us more
        if test():
            return True
    end = time.monotonic() + _YIELD_S
    while time.monotonic() < end:
        os.sched_yield()
        if test():
            return True
    return False


def _give_up(comm: MPI.Intracomm, request: MPI.Request, memory: object, what: str) -> None:
    _left.append((request, memory))
    if not _GIVEN_UP:
        _GIVEN_UP.append(MPI.Comm.Create_keyval())
    comm.Set_attr(_GIVEN_UP[0], what)


def _watched(comm: MPI.Intracomm, request: MPI.Request, what: str, limits: Limits, look: Callable[[], object]) -> None:
    (warn, limit), who, begun, missed = limits(), f"rank {comm.rank}", time.monotonic(), 0
    next_look = begun + _LOOK_S
    while not request.Test():
        now = time.monotonic()
        time.sleep(_NAP_S)
        if limit is not None and now - begun > limit:
            raise CollectiveTimeout(f"{who}: not all of {comm.size} ranks came to {what} in {limit:g} s")
        if now < next_look:
            continue
        next_look = now + _LOOK_S
        look()
        gone = next(filter(None, (tell(world_ranks(comm)) for tell in WITNESSES)), "")
        missed = missed + 1 if gone else 0
        if missed == _LOOKS:  # what it had to say has had the time to come
            raise PeerFailed(f"{who}: not all ranks come to {what}: {gone}")
        if warn and now - begun > warn:
            warn = None
            if comm.rank & comm.rank - 1 == 0:  # a few ranks say so: who else waits is not known
                log.warning("%s waits for %.0f s: not all of %d ranks have come to %s", who, now - begun, comm.size, what)


def _seconds(name: str, default: float | None) -> float | None:
    """A setting, of which ranks may not have agreed yet."""
    with contextlib.suppress(ArgumentError):
        return parse_seconds(os.environ[PREFIX + name]) if PREFIX + name in os.environ else default
    return default
