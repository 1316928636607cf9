"""The first use of a communicator: a short collective of the MPI library's own, in which ranks find out what all of them have for it.

It is watched, as calls are: a rank that waits says so, gives up in time, and hears of ranks that are gone.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, CollectiveTimeout, PeerFailed
from hpcoll.base.text import parse_seconds
from hpcoll.comm.status import early_exit
from hpcoll.comm.status.blocked_call import BlockedCall
from hpcoll.comm.status.call_site import holds, in_words, place_of_caller
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.runtime.transports.mpi import (
    KNOWN_S,
    Revoked,
    failed_ranks,
    is_revoked,
    knows_failures,
    tells_of_failure,
    title_of,
    world_ranks,
)  # fmt: skip
from hpcoll.selection.config import PREFIX, Config, log

_SPINS, _SOON_S, _NAP_S = 300, 2e-3, 1e-4
_LOOK_S, _LOOKS = 0.25, 3
_SEARCH_S, _MOST_S = 0.5, 10.0  # between two searches for ranks that have no communicator: at first, and at most

_left: list[object] = []  # requests that were given up and their memory, in which the library writes when the others come
failure_detectors: list[Callable[[Sequence[int]], tuple[int, str] | None]] = []  # of some ranks of COMM_WORLD one that has ended, and how
_GIVEN_UP: list[int] = []  # key of the attribute of communicators on which that has happened


def allreduce_in_time(comm: MPI.Intracomm, buffer: Any, op: MPI.Op, what: str) -> None:
    """Make an ``Allreduce`` in place, and give up in time.

    Args:
        comm: Communicator on which it runs.
        buffer: Buffer as mpi4py takes it.
        op: Operation as mpi4py takes it.
        what: The call that all ranks are to make now, for texts.

    Raises:
        PeerFailed: one of the ranks is known to have ended.
        CollectiveTimeout: not all came in the time that ``HPCOLL_TIMEOUT`` gives.
        Revoked: the communicator is revoked.
        ArgumentError: one of these was raised on this communicator before: ranks are no longer at the same place.
    """
    _refuse_revoked(comm, what)
    if _GIVEN_UP and (before := comm.Get_attr(_GIVEN_UP[0])) is not None:
        raise ArgumentError(f"rank {comm.rank}: this communicator cannot be used: not all ranks came to {before}")
    request, begun = comm.Iallreduce(MPI.IN_PLACE, buffer, op), time.monotonic()
    try:
        if not _ended_soon(request, begun):
            _Waiting(comm, what, begun).end(request)
    except BaseException:
        _left.append((request, buffer))
        if not _GIVEN_UP:
            _GIVEN_UP.append(MPI.Comm.Create_keyval())
        comm.Set_attr(_GIVEN_UP[0], what)
        raise


@contextlib.contextmanager
def together(comm: MPI.Intracomm, what: str) -> Iterator[None]:
    """Make calls of the MPI library's own on a communicator: where one tells of a rank that has failed, all ranks end.

    Args:
        comm: Communicator of the ranks; where one has failed it can only be shrunk.
        what: As in `allreduce_in_time`.

    Raises:
        PeerFailed: on all ranks that live, where the library knows of such failures.
    """
    try:
        yield
    except PeerFailed:
        if knows_failures():
            comm.Revoke()
        raise
    except MPI.Exception as error:
        if not tells_of_failure(error, comm):
            raise
        comm.Revoke()
        gone = _gone(comm, KNOWN_S) or "one of them has failed, says the MPI library"
        text = f"rank {comm.rank}: not all ranks come to {what}, on {title_of(comm)} at {in_words(place_of_caller())}: {gone}"
        raise PeerFailed(text, code=error.Get_error_code()) from None


def _refuse_revoked(comm: MPI.Intracomm, what: str) -> None:
    """Raise Revoked where a communicator is: the library's calls in flight on it may wait for ever."""
    if is_revoked(comm):
        raise Revoked(f"rank {comm.rank}: {what}, on {title_of(comm)} at {in_words(place_of_caller())}: the communicator was revoked")


def _gone(comm: MPI.Intracomm, limit_s: float = 0.0) -> str:
    """Return which rank is known to have ended, and how; empty where none is. Arguments as of `failed_ranks`."""
    failed, world = failed_ranks(comm, limit_s), world_ranks(comm)
    told = next(filter(None, (tell(world) for tell in failure_detectors)), None)
    if told is not None:
        return f"rank {world.index(told[0])} {told[1]}"
    return f"rank {failed[0]} has failed, says the MPI library" if failed else ""


def _ended_soon(request: MPI.Request, begun: float) -> bool:
    """Say whether a request ends soon; once others need the core, a look at it may take milliseconds."""
    test, now, end = request.Test, time.monotonic, begun + _SOON_S
    for turn in count():
        if test():
            return True
        if now() > end:
            return False
        if turn > _SPINS:
            os.sched_yield()
    raise AssertionError


class _Waiting:
    """A rank that waits for the others.

    Args:
        comm: Communicator on which it waits.
        what: The call that all ranks are to make now.
        begun: When it began to wait, on the clock `time.monotonic`.
    """

    def __init__(self, comm: MPI.Intracomm, what: str, begun: float) -> None:
        self._comm, self._begun, self._where = comm, begun, in_words(place_of_caller())
        self._title, self._what, self._who = title_of(comm), what, f"rank {comm.rank}"
        self._missed = 0
        self._ended_early, self._next_search, self._pause = "", begun + _SEARCH_S, _SEARCH_S

    @property
    def _called(self) -> str:
        return f"{self._what}, on {self._title} at {self._where}"

    def end(self, request: MPI.Request) -> None:
        """Wait for it."""
        limit, warn, next_look = _seconds("TIMEOUT", None), _seconds("WARN", Config().warn), self._begun + _LOOK_S
        try:
            while not request.Test():
                time.sleep(_NAP_S)
                waited = time.monotonic() - self._begun
                if limit and waited > limit:
                    raise CollectiveTimeout(f"{self._who}: not all of {self._comm.size} ranks came to {self._called} in {limit:g} s")
                if self._begun + waited > next_look:
                    next_look += _LOOK_S
                    self._look()
                if warn and waited > warn:
                    warn = None
                    self._warn(waited)
        finally:
            RANK_STATUS.end(self)

    def _look(self) -> None:
        """Say what this rank waits in, and see whether others are gone, or have revoked the communicator."""
        what = f"{self._what} at {self._where}"
        RANK_STATUS.wait(self, BlockedCall("", -1, 0, what, self._title, since=self._begun, holds=holds()))
        gone = _gone(self._comm) or self._early()
        if not gone:
            _refuse_revoked(self._comm, self._what)
        self._missed = self._missed + 1 if gone else 0
        if self._missed == _LOOKS:  # what it had to say has had the time to come
            raise PeerFailed(f"{self._who}: not all ranks come to {self._called}: {gone}")

    def _early(self) -> str:
        """Return which rank of this node has ended without a communicator, as `_gone`; all processes are searched, at growing intervals."""
        now, world = time.monotonic(), world_ranks(self._comm)
        if not self._ended_early and now > self._next_search:
            self._next_search, self._pause = now + self._pause, min(2 * self._pause, _MOST_S)
            found = early_exit.find(world)
            self._ended_early = "" if found is None else f"rank {world.index(found[0])} {found[1]}"
        return self._ended_early

    def _warn(self, waited: float) -> None:
        if self._comm.rank & self._comm.rank - 1 == 0:  # a few ranks say so: who else waits is not known
            log.warning("%s waits for %.0f s: not all of %d ranks have come to %s", self._who, waited, self._comm.size, self._called)


def _seconds(name: str, default: float | None) -> float | None:
    """Return a setting, of which ranks may not have agreed yet."""
    with contextlib.suppress(ArgumentError):
        return parse_seconds(os.environ[PREFIX + name]) if PREFIX + name in os.environ else default
    return default
