"""Agreements: short collectives of the MPI library's own, in which ranks find out what all of them have before hpcoll can run a call.

They are watched, as calls are: a rank that waits says so, gives up in time, and hears of ranks that are gone. On a communicator that has a
context already, it also hears of calls there that have failed.
"""

import contextlib
import os
import time
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, CollectiveTimeout, PeerFailed
from hpcoll.base.units import parse_seconds
from hpcoll.comm.caller import holds, in_words, place_of_caller
from hpcoll.comm.contexts import LIVE, WITNESSES
from hpcoll.comm.notice import IN_LIBRARY, NOTICE
from hpcoll.runtime.transports.call_log import AGREEMENT, CallLog
from hpcoll.runtime.transports.mpi import title_of, world_ranks
from hpcoll.selection.config import PREFIX, Config, log

_SPINS, _YIELD_S, _NAP_S = 300, 2e-3, 1e-4
_LOOK_S, _LOOKS = 0.1, 8

_left: list[object] = []  # requests that were given up and their memory, in which the library writes when the others come
_GIVEN_UP: list[int] = []  # key of the attribute of communicators on which that has happened


class Agreements:
    """The agreements of one communicator's ranks.

    Args:
        comm: On which they run.
        log: Of the blocking calls on it, in which it is noted that this rank is in one.
        key: Of the communicator's resources; the empty string where it has none yet.
    Attributes:
        comm: As given.
    """

    def __init__(self, comm: MPI.Intracomm, log: CallLog | None = None, key: str = "") -> None:
        self.comm, self._log, self._key = comm, CallLog() if log is None else log, key

    def free(self) -> None:
        """Let go of shared memory: its communicator is gone."""
        self._log = CallLog()

    def agree_on(self, buffer: Any, op: MPI.Op, what: str) -> None:
        """``Allreduce`` in place.

        Args:
            buffer, op: As mpi4py has them.
            what: What all ranks are to call now, for texts.
        Raises:
            As `complete`, and ArgumentError as `refuse_given_up`.
        """
        self.refuse_given_up()
        self.complete(self.comm.Iallreduce(MPI.IN_PLACE, buffer, op), buffer, what)

    def allgather_objects(self, mine: object, method: str) -> list[Any]:
        """Every rank's object, in a call that is no `hpcoll.comm.endings.Closing`; collective, errors as `agree_on`."""
        self.refuse_given_up()
        pickled, comm = MPI.pickle.dumps(mine), self.comm
        sent, every = np.array([len(pickled)], np.int64), np.empty(comm.size, np.int64)
        try:
            self.complete(comm.Iallgather(sent, every), (sent, every), method)
            counts = every.tolist()
            found = memoryview(bytearray(sum(counts)))
            self.complete(comm.Iallgatherv(pickled, (found, counts)), (pickled, found), method)
        except BaseException as error:
            self.end_call(method, error)
            raise
        return [MPI.pickle.loads(found[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]

    def refuse_given_up(self) -> None:
        """Raise ArgumentError where one was given up on this communicator before: ranks are no longer at the same place."""
        if _GIVEN_UP and (what := self.comm.Get_attr(_GIVEN_UP[0])) is not None:
            raise ArgumentError(f"rank {self.comm.rank}: this communicator cannot be used: not all ranks came to {what}")

    def complete(self, request: MPI.Request, memory: object, what: str, limit_s: float | None = None) -> None:
        """Wait for a collective of the MPI library's own.

        Where the caller is no `hpcoll.comm.endings.Closing`, it calls `end_call` with what this raises.

        Args:
            request, memory: Of the collective, and of its buffers, which is kept where it is given up.
            what: What all ranks are to call now, for texts.
            limit_s: Seconds that it may take; None: those of the communicator's calls.
        Raises:
            PeerFailed: one of the ranks is known to have ended.
            CollectiveTimeout: not all came in time.
            MismatchError, PeerFailed, CollectiveTimeout: a call of another rank on the communicator has failed.
        """
        self._log.begin_library(AGREEMENT)
        try:
            if not _ended_soon(request):
                where = in_words(place_of_caller())
                called, what = f"{what} at {where}", f"{what}, on {title_of(self.comm)} at {where}"
                self._watched(request, called, what, limit_s)
        except BaseException:
            _left.append((request, memory))
            if not _GIVEN_UP:
                _GIVEN_UP.append(MPI.Comm.Create_keyval())
            self.comm.Set_attr(_GIVEN_UP[0], what)
            raise
        finally:
            NOTICE.end(self)
            self._log.end_library()

    def end_call(self, method: str, error: BaseException) -> None:
        """A call's agreement was given up: tell the other ranks, refuse further use, and raise the error with the call, if it is ours."""
        for context in self._contexts():
            if not context.closed and not isinstance(error, ArgumentError):
                context.interrupted(method, error)

    def _contexts(self) -> list[Any]:
        """The communicator's context, where it has one."""
        return [context for context in list(LIVE) if context.resources.native == self.comm]

    def _limits(self) -> tuple[float | None, float | None]:
        """Seconds until the warning, and until it is given up; None: never. Ranks may not have agreed yet on those of the environment."""
        for context in self._contexts():
            config = context.resources.config
            return config.warn, config.timeout if context.limit_s is None else context.limit_s
        return _seconds("WARN", Config().warn), _seconds("TIMEOUT", None) or None

    def _watched(self, request: MPI.Request, called: str, what: str, limit_s: float | None) -> None:
        comm, begun, missed = self.comm, time.monotonic(), 0
        warn, limit = self._limits()
        limit, who, next_look = limit if limit_s is None else limit_s, f"rank {comm.rank}", begun + _LOOK_S
        while not request.Test():
            now = time.monotonic()
            time.sleep(_NAP_S)
            if limit is not None and now - begun > limit:
                raise CollectiveTimeout(f"{who}: not all of {comm.size} ranks came to {what} in {limit:g} s")
            if now < next_look:
                continue
            next_look = now + _LOOK_S
            self._look(called, begun)
            gone = next(filter(None, (tell(world_ranks(comm)) for tell in WITNESSES)), "")
            missed = missed + 1 if gone else 0
            if missed == _LOOKS:  # what it had to say has had the time to come
                raise PeerFailed(f"{who}: not all ranks come to {what}: {gone}")
            if warn and now - begun > warn:
                warn = None
                if comm.rank & comm.rank - 1 == 0:  # a few ranks say so: who else waits is not known
                    log.warning("%s waits for %.0f s: not all of %d ranks have come to %s", who, now - begun, comm.size, what)

    def _look(self, called: str, begun: float) -> None:
        """Say what this rank waits in, and raise what a call of another rank on the communicator has failed with."""
        call = {
            "key": self._key, "lane": IN_LIBRARY, "number": self._log.in_library().begun, "what": called, "awaits": [], "step": "",
            "since": begun, "holds": holds(),
        }  # fmt: skip
        NOTICE.wait(self, call, {"on": title_of(self.comm), "for": [], "sees": {}})
        for context in self._contexts():
            context.hear()


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


def _seconds(name: str, default: float | None) -> float | None:
    """A setting, of which ranks may not have agreed yet."""
    with contextlib.suppress(ArgumentError):
        return parse_seconds(os.environ[PREFIX + name]) if PREFIX + name in os.environ else default
    return default
