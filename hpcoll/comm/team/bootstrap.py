"""The first use of a communicator: collectives of the MPI library's own, in which ranks find out what all of them have for it.

They are watched, as calls are: a rank that waits says so, gives up in time, names who has not come, and hears of ranks that are gone.
"""

import contextlib
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, CollectiveTimeout, PeerFailed, TransportError
from hpcoll.base.launchers import local_nranks
from hpcoll.base.text import LINE, parse_seconds, printable, ranks_in_words
from hpcoll.comm.status import early_exit
from hpcoll.comm.status.blocked_call import BlockedCall, Status
from hpcoll.comm.status.call_site import holds, in_words, place_of_caller
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.runtime.engine.wait_policy import crowd, pause_s
from hpcoll.runtime.transports.mpi import (
    KNOWN_S,
    Revoked,
    failed_ranks,
    is_revoked,
    knows_failures,
    tells_of_failure,
    title_of,
    world_ranks,
)
from hpcoll.selection.config import PREFIX, Config, log

FIRST_USE = "the first collective of hpcoll's"  # for texts

_SPINS = 300
_SOON_S = 2e-3
_NAP_S, _NAPS, _LONG_NAP_S = 1e-4, 16, 0.01  # a nap, its share of the time waited before, and the most
_LOOK_S = 0.25
_LOOKS = 3
_SEARCH_S = 0.5  # between two searches for ranks that have no communicator, at first
_MOST_S = 10.0  # at most

# requests that were given up and their memory, in which the library writes when the others come
_left: list[object] = []
# of some ranks of COMM_WORLD one that has ended, and how
failure_detectors: list[Callable[[Sequence[int]], tuple[int, str] | None]] = []
_GIVEN_UP: list[int] = []  # key of the attribute of communicators on which that has happened


def combine_in_time(comm: MPI.Intracomm, buffer: Any) -> None:
    """Make the ``Allreduce`` of a first use in place, whose operator is ``MPI.BAND``, and give up in time.

    Args:
        comm: Communicator on which it runs.
        buffer: Buffer as mpi4py takes it.

    Raises:
        PeerFailed: one of the ranks is known to have ended.
        CollectiveTimeout: not all came in the time that ``HPCOLL_TIMEOUT`` gives.
        Revoked: the communicator is revoked.
        ArgumentError: one of these was raised on this communicator before: ranks are no longer at the same place.
    """
    _refuse_revoked(comm, FIRST_USE)
    if _GIVEN_UP and (before := comm.Get_attr(_GIVEN_UP[0])) is not None:
        raise ArgumentError(
            f"rank {comm.rank}: this communicator cannot be used: not all ranks came to {before}"
        )
    _end_in_time(comm, comm.Iallreduce(MPI.IN_PLACE, buffer, MPI.BAND), buffer, FIRST_USE)


def _end_in_time(comm: MPI.Intracomm, request: MPI.Request, memory: object, what: str) -> None:
    """Wait for a request of a collective; ``memory`` is what it works on. Raises as `combine_in_time`."""
    begun = time.monotonic()
    try:
        if not _ended_soon(request, begun):
            _Waiting(comm, what, begun).end(request)
    except BaseException:
        _left.append((request, memory))
        raise


class PrivateComm(MPI.Intracomm):
    """A communicator of hpcoll's own, whose collectives are watched. Errors are told in codes."""

    _named = ""
    _what = ""

    @classmethod
    def of(cls, comm: Any, title: str, what: str) -> "PrivateComm":
        """Return it over a communicator that the program does not know; title and call are for texts."""
        made = cls(comm)
        made._named = title
        made._what = what
        made.Set_errhandler(MPI.ERRORS_RETURN)
        return made

    def _end(self, request: MPI.Request, *memory: object) -> None:
        _end_in_time(self, request, memory, self._what)

    def Get_name(self) -> str:
        """Return the title, for texts."""
        return self._named

    def Barrier(self) -> None:
        """Return when all ranks have come."""
        self._end(self.Ibarrier())

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce as mpi4py's method does."""
        self._end(self.Iallreduce(sendbuf, recvbuf, op), sendbuf, recvbuf)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Broadcast as mpi4py's method does."""
        self._end(self.Ibcast(buf, root), buf)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather as mpi4py's method does."""
        self._end(self.Iallgather(sendbuf, recvbuf), sendbuf, recvbuf)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return every rank's object."""
        mine = bytearray(MPI.pickle.dumps(sendobj))
        lengths = array("i", bytes(4 * self.size))
        self.Allgather(array("i", [len(mine)]), lengths)
        every = bytearray(sum(lengths))
        self._end(self.Iallgatherv([mine, MPI.BYTE], [every, lengths, None, MPI.BYTE]), mine, every, lengths)
        ends = [*accumulate(lengths, initial=0)]
        return [MPI.pickle.loads(every[first:end]) for first, end in pairwise(ends)]

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object."""
        return self.allgather(obj if self.rank == root else None)[root]

    def Dup(self, info: MPI.Info | None = None) -> "PrivateComm":
        """Return a duplicate."""
        self.Barrier()
        return PrivateComm.of(super().Dup(info), self._named, self._what)

    def Split(self, color: int = 0, key: int = 0) -> "PrivateComm":
        """Return the communicator of the ranks with this rank's color."""
        self.Barrier()
        return PrivateComm.of(super().Split(color, key), f"ranks of {self._named}", self._what)

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> "PrivateComm":
        """Return the communicator of the ranks that share a property with this rank."""
        self.Barrier()
        return PrivateComm.of(
            super().Split_type(split_type, key, info), f"ranks of {self._named}", self._what
        )


@contextlib.contextmanager
def together(comm: MPI.Intracomm, what: str) -> Iterator[None]:
    """Make calls of the MPI library's own on a communicator: where one tells of a rank that has failed, all ranks end.

    A communicator on which one has failed half-way is refused from then on.

    Args:
        comm: Communicator of the ranks; where one has failed it can only be shrunk.
        what: The call that all ranks are to make now, for texts.

    Raises:
        PeerFailed: on all ranks that live, where the library knows of such failures.
    """
    try:
        yield
    except ArgumentError:
        raise
    except PeerFailed:
        _give_up(comm, what)
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
    except BaseException:
        _give_up(comm, what)
        raise


def _give_up(comm: MPI.Intracomm, what: str) -> None:
    """Refuse further use of a communicator."""
    if not _GIVEN_UP:
        _GIVEN_UP.append(MPI.Comm.Create_keyval())
    comm.Set_attr(_GIVEN_UP[0], what)


def _refuse_revoked(comm: MPI.Intracomm, what: str) -> None:
    """Raise Revoked where a communicator is: the library's calls in flight on it may wait for ever."""
    if is_revoked(comm):
        raise Revoked(
            f"rank {comm.rank}: {what}, on {title_of(comm)} at {in_words(place_of_caller())}: the communicator was revoked"
        )


def _gone(comm: MPI.Intracomm, limit_s: float = 0.0) -> str:
    """Return which rank is known to have ended, and how; empty where none is. Arguments as of `failed_ranks`."""
    failed = failed_ranks(comm, limit_s)
    world = world_ranks(comm)
    told = next(filter(None, (tell(world) for tell in failure_detectors)), None)
    if told is not None:
        return f"rank {world.index(told[0])} {told[1]}"
    return f"rank {failed[0]} has failed, says the MPI library" if failed else ""


def _ended_soon(request: MPI.Request, begun: float) -> bool:
    """Say whether a request ends soon; once others need the core, a look at it may take milliseconds."""
    turns = 0
    while not request.Test():
        if time.monotonic() > begun + _SOON_S:
            return False
        turns += 1
        if turns > _SPINS:
            os.sched_yield()
    return True


class _Waiting:
    """A rank that waits for the others.

    Args:
        comm: Communicator on which it waits.
        what: The call that all ranks are to make now.
        begun: When it began to wait, on the clock `time.monotonic`.
    """

    def __init__(self, comm: MPI.Intracomm, what: str, begun: float) -> None:
        self._comm = comm
        self._begun = begun
        self._where = in_words(place_of_caller())
        self._title = title_of(comm)
        self._what = what
        self._who = f"rank {comm.rank}"
        self._missed = 0
        self._ended_early = ""
        self._next_search = begun + _SEARCH_S * crowd()
        self._pause = _SEARCH_S

    @property
    def _called(self) -> str:
        return f"{self._what}, on {self._title} at {self._where}"

    def end(self, request: MPI.Request) -> None:
        """Wait for it."""
        limit = _seconds("TIMEOUT", None)
        warn = _seconds("WARN", Config().warn)
        next_look = self._begun + _LOOK_S
        try:
            while not request.Test():
                waited = time.monotonic() - self._begun
                time.sleep(max(_NAP_S, min(waited / _NAPS, _LONG_NAP_S)))
                if limit and waited > limit:
                    text = f"not all of {self._comm.size} ranks came to {self._called} in {limit:g} s: {self._who_came()}"
                    raise CollectiveTimeout(f"{self._who}: {text}")
                if self._begun + waited > next_look:
                    next_look += _LOOK_S
                    self._look()
                if warn and waited > warn:
                    warn = None
                    self._warn(waited)
        except TransportError as error:  # others that give up later read that this one has come
            call = replace(self._call, key=self._what + self._title)
            RANK_STATUS.fail(type(error).__name__, str(error), call)
            raise
        finally:
            RANK_STATUS.end(self)

    @property
    def _call(self) -> BlockedCall:
        return BlockedCall(
            "", -1, 0, f"{self._what} at {self._where}", self._title, since=self._begun, holds=holds()
        )

    def _look(self) -> None:
        """Say what this rank waits in, and see whether others are gone, or have revoked the communicator."""
        RANK_STATUS.wait(self, self._call)
        gone = _gone(self._comm) or self._early()
        if not gone:
            _refuse_revoked(self._comm, self._what)
        self._missed = self._missed + 1 if gone else 0
        if self._missed == _LOOKS:  # what it had to say has had the time to come
            raise PeerFailed(f"{self._who}: not all ranks come to {self._called}: {gone}")

    def _early(self) -> str:
        """Return which rank of this node has ended without a communicator, as `_gone`; all processes are searched, at growing intervals."""
        now = time.monotonic()
        world = world_ranks(self._comm)
        if not self._ended_early and now > self._next_search:
            spent = time.thread_time()
            ended = early_exit.find(world)
            self._next_search = now + max(self._pause, pause_s(time.thread_time() - spent))
            self._pause = min(2 * self._pause, _MOST_S)
            self._ended_early = "" if ended is None else f"rank {world.index(ended[0])} {ended[1]}"
        return self._ended_early

    def _warn(self, waited: float) -> None:
        if self._comm.rank & self._comm.rank - 1 == 0:  # a few ranks say so: who else waits may not be known
            told = f"not all of {self._comm.size} ranks have come to {self._called}: {self._who_came()}"
            log.warning("%s waits for %.0f s: %s", self._who, waited, told)

    def _who_came(self) -> str:
        """Return which ranks have come, and what others wait in, as far as their status pages say; they are found on this node alone."""
        world = world_ranks(self._comm)
        mine = self._comm.rank
        pages = {who.rank: Status.from_json(notice) for who, notice in early_exit.pages()}
        calls = {
            rank: pages[place].waits + pages[place].failed
            for rank, place in enumerate(world)
            if place in pages and rank != mine
        }
        here = {mine}
        for rank, theirs in calls.items():
            if any(call.on == self._title and call.what.startswith(f"{self._what} at ") for call in theirs):
                here.add(rank)
        everywhere = local_nranks(os.environ) == MPI.COMM_WORLD.size
        others = set(range(len(world))) - here
        told = [
            f"{ranks_in_words(here)} came",
            f"{ranks_in_words(others)} did not" if everywhere else "other nodes' ranks are not seen",
        ]
        for rank in sorted(others & calls.keys()):
            told += [f"rank {rank} waits in {printable(call.what, LINE)}" for call in calls[rank][-1:]]
        return "; ".join(told)


def _seconds(name: str, default: float | None) -> float | None:
    """Return a setting, of which ranks may not have agreed yet."""
    with contextlib.suppress(ArgumentError):
        return parse_seconds(os.environ[PREFIX + name]) if PREFIX + name in os.environ else default
    return default
