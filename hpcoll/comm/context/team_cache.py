"""The teams of this process, and the parts that freed communicators leave for others of their team.

Plans, engines and message contexts belong to the ranks and not to the communicator, so that programs which make and free many need them
made once. Those of the last few that were freed are kept. At the first use of a communicator its ranks agree in one short allreduce on what
there is for it.
"""

import contextlib
import os
import struct
import threading
from collections import OrderedDict
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from mpi4py import MPI

from hpcoll.comm.context.context import Parts, free
from hpcoll.comm.team.bootstrap import FIRST_USE, combine_in_time, together
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.team.team import FINALIZE_COMMS, Team, step_aside
from hpcoll.registry.sources import content, of_program
from hpcoll.runtime.gpu import cuda
from hpcoll.runtime.transports.local_ranks import known_to_share
from hpcoll.runtime.transports.mpi import world_ranks
from hpcoll.selection.config import PREFIX, TUNING
from hpcoll.selection.processes import Process, Processes, this_process

MOST = 4  # freed communicators of which parts are kept; a few MB of shared memory each

Settings: TypeAlias = tuple[tuple[str, str], ...]
Key: TypeAlias = tuple[tuple[int, ...], bool, Settings]  # ranks in COMM_WORLD in order, mixed, settings


class _Offer(NamedTuple):
    """The offer of a rank for a communicator; offers are combined bit by bit, so that what all have is left."""

    call: int  # number of an early call; 0: none, resources are wanted
    not_call: int  # all bits of that the other way round: what is equal everywhere is still so
    ready: int  # -1: no other thread of this process is making something of the team
    known: int  # -1: this rank knows all processes, and they know it as it is
    team: int  # its number, or -1
    not_team: int
    new: int  # rank 0's number for a new team
    limited: int  # -1: HPCOLL_TIMEOUT is set
    sharing: int  # -1: these ranks are known to share memory
    parting: int  # -1: this rank can wait for all others of COMM_WORLD at the end
    spare: int  # numbers of resources, as bits: freed ones
    vacant: int  # that a new one may get

    def combined(self, comm: MPI.Intracomm) -> "_Offer":
        """Return the offers of all ranks, combined; collective, errors as of `combine_in_time`."""
        words = bytearray(_WORDS.pack(*self[:-2], _bits(self.spare), _bits(self.vacant)))
        combine_in_time(comm, [words, MPI.BYTE])
        found = _Offer(*_WORDS.unpack(words))
        found = found._replace(spare=_numbers(found.spare), vacant=_numbers(found.vacant))
        if found.limited:  # others may have given up before this rank came
            combine_in_time(comm, bytearray(1))
        return found


_MOST_NUMBERED = 1000  # communicators of a team whose parts another may get
_WORDS = struct.Struct("<qqbbqqqbbb128s128s")  # of an offer
_CALL = struct.Struct("<qq")  # its first two
_NUMBERS = (1 << 1024) - 1


def _bits(numbers: int) -> bytes:
    return numbers.to_bytes(128, "little")


def _numbers(bits: Any) -> int:
    return int.from_bytes(bits, "little")


class _Met(NamedTuple):
    """Ranks that have told each other of their processes."""

    settings: Settings  # that all had
    mine: Process  # this one, as it was told
    ranks: tuple[int, ...]  # in COMM_WORLD
    processes: Processes

    def processes_of(self, ranks: tuple[int, ...]) -> Processes:
        """Return the processes of some of them."""
        places = {rank: place for place, rank in enumerate(self.ranks)}
        return self.processes.of([places[rank] for rank in ranks])


class TeamCache:
    """The cache of teams, and of the parts of freed communicators."""

    def __init__(self) -> None:
        self._teams: dict[Key, Team] = {}
        self._spare: OrderedDict[tuple[Team, int], Parts] = OrderedDict()  # by number, too; the latest last
        self._met: list[_Met] = []  # the latest first
        self._closed: list[Team] = []  # that wait for messages which may be under way
        self._numbers, self._changing = count(), threading.Lock()

    def join(self, comm: MPI.Intracomm, mixed: bool) -> tuple[Resources, Parts | None]:
        """Return resources for a communicator: new ones, or those of one that was freed, with its other parts. Collective.

        Raises:
            ArgumentError: on every rank, when the settings differ or are wrong.
            PeerFailed: a rank has ended, or failed.
        """
        native = MPI.Intracomm(comm)
        with together(native, FIRST_USE):
            return self._join(native, _key_of(comm, mixed))

    def agree(self, comm: MPI.Intracomm, call: int) -> bool:
        """Say whether all ranks are about to make the same early call; else all come to `join`. Collective, errors as of that.

        Args:
            comm: Communicator of the call.
            call: Number of the call, and of what is equal on all ranks; above 0.
        """
        native, words = MPI.Intracomm(comm), bytearray(_WORDS.size)
        _CALL.pack_into(words, 0, call, ~call)
        with together(native, FIRST_USE):
            combine_in_time(native, [words, MPI.BYTE])
        return _CALL.unpack_from(words) == (call, ~call)

    def _join(self, native: MPI.Intracomm, key: Key) -> tuple[Resources, Parts | None]:
        while True:
            team = self._teams.get(key)
            lock = team.lock if team else threading.Lock()
            ready = lock.acquire(blocking=False)
            team = team if team is self._teams.get(key) else None  # it may have been freed meanwhile
            try:
                offer = self._offer(key, team, ready).combined(native)
                if offer.ready and not ~offer.not_call:
                    return self._found(native, key, team, offer)
            finally:
                if ready:
                    lock.release()
            step_aside()

    def _offer(self, key: Key, team: Team | None, ready: bool) -> _Offer:
        ranks, _, settings = key
        mine, me = this_process(cuda.is_likely()), MPI.COMM_WORLD.rank
        number, used, spare, limited = -1, 0, 0, -any(name == f"{PREFIX}TIMEOUT" for name, _ in settings)
        known, sharing = (
            None,
            False,
        )  # asked where a new team is made, which then at worst asks all ranks again
        if team is not None and team.process == mine and MPI.UNDEFINED not in ranks:
            with self._changing:
                number, used, spare = (
                    team.number,
                    team.used,
                    sum(1 << n for one, n in self._spare if one is team),
                )
        else:
            sharing = known_to_share(ranks)
            known = self._known(ranks, settings, mine)
        new = next(self._numbers) if ranks[0] == me else -1
        return _Offer(
            0,
            ~0,
            -ready,
            -(known is not None),
            number,
            ~number,
            new,
            limited,
            -sharing,
            -bool(FINALIZE_COMMS),
            spare,
            _NUMBERS & ~used,
        )

    def _found(
        self, native: MPI.Intracomm, key: Key, team: Team | None, offer: _Offer
    ) -> tuple[Resources, Parts | None]:
        """Return what the offers of all ranks say; errors as of `join`."""
        if team is None or (offer.team, offer.not_team) != (team.number, ~team.number):
            team, offer = self._new_team(native, key, offer), offer._replace(spare=0, vacant=_NUMBERS)
        number = _lowest(offer.spare or offer.vacant)
        if offer.spare:
            with self._changing:
                parts = self._spare.pop((team, number))
            return parts.resources, parts
        number = number if number < _MOST_NUMBERED else -1
        resources = Resources(team, number)
        with self._changing:
            team.alive += 1
            team.used |= 1 << number if number >= 0 else 0
        return resources, None

    def _known(self, ranks: tuple[int, ...], settings: Settings, mine: Process) -> _Met | None:
        """Return ranks that have met with the same settings, some of them or all; None where these have not, or this one is another now."""
        for met in self._met:
            alike = met.settings == settings and met.mine == mine
            if alike and (met.ranks == ranks or {*met.ranks} >= {*ranks}):
                return met
        return None

    def _new_team(self, native: MPI.Intracomm, key: Key, offer: _Offer) -> Team:
        ranks, mixed, settings = key
        self._free_closed()
        known = self._known(ranks, settings, this_process(cuda.is_likely())) if offer.known else None
        team = Team(
            native,
            offer.new,
            known and known.processes_of(ranks),
            ranks,
            mixed=mixed,
            all_share=bool(offer.sharing),
            may_part=bool(offer.parting),
        )
        if known is None and MPI.UNDEFINED not in ranks:
            others = [one for one in self._met if not set(one.ranks) <= set(ranks)]
            self._met = [_Met(settings, team.process, ranks, team.processes), *others]
        self._teams[key] = team
        return team

    def leave(self, resources: Resources, parts: Parts | None) -> None:
        """Keep the parts of a communicator that was freed, if it left any; free those that were kept for longest."""
        if parts is not None and resources.number >= 0:
            with self._changing:
                self._spare[resources.team, resources.number] = parts
            self._drop(MOST)
            return
        if parts is not None:
            free(parts)
        self._gone(resources.team, resources.number)

    def lose(self, resources: Resources) -> None:
        """Let go of resources on which a call has failed: messages may be under way."""
        resources.team.failed = resources.team.uses_mpi
        self._gone(resources.team, resources.number)

    def _drop(self, most: int) -> None:
        """Free the parts that were kept for longest, down to so many."""
        while len(self._spare) > most:
            (team, number), parts = next(iter(self._spare.items()))
            if not team.lock.acquire(blocking=False):  # another thread may be given it now
                return
            with self._changing:
                del self._spare[team, number]
            team.lock.release()
            free(parts)
            self._gone(team, number)

    def _gone(self, team: Team, number: int) -> None:
        """Count resources that are gone; close a team without any, unless a call has failed or another thread is about to join it."""
        with self._changing:
            team.alive -= 1
            team.used &= ~(1 << number) if number >= 0 else -1
        if not team.alive and not team.failed and team.lock.acquire(blocking=False):
            try:
                self._teams = {key: one for key, one in self._teams.items() if one is not team}
                team.close()
                with self._changing:
                    self._closed.append(team)
            finally:
                team.lock.release()
            self._free_closed()

    def _free_closed(self) -> None:
        """Free the teams that were closed on all their ranks."""
        with self._changing:
            closed, self._closed = self._closed, []
        left = [team for team in closed if not team.free()]
        with self._changing:
            self._closed += left

    def free(self) -> None:
        """Free the parts that are kept for later communicators, on all ranks alike."""
        self._drop(0)
        for team in self._teams.values():
            team.node.drop_ahead()

    def forget(self) -> None:
        """Drop everything: this process is a fork."""
        self.__init__()  # type: ignore[misc]


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _key_of(comm: MPI.Intracomm, mixed: bool) -> Key:
    """Return the key of a team: ranks in order, and settings, with the algorithms that the program has registered."""
    return world_ranks(comm), mixed, _settings()


def _settings() -> Settings:
    global _seen  # noqa: PLW0603
    variables = getattr(os.environb, "_data", os.environb)  # compared in a tenth of the time
    before, settings = _seen
    if variables != before:
        names = [os.fsdecode(name) for name in os.environb if name.startswith(PREFIX.encode())]
        settings = {name: os.environ[name] for name in names}
        _seen = dict(variables), settings
    if TUNING in settings:
        with contextlib.suppress(OSError):
            settings = settings | {"written": str(os.stat(settings[TUNING]).st_mtime_ns)}
    if rows := of_program():
        settings = settings | {row.key: content(row) for row in rows}
    return tuple(sorted(settings.items()))


_seen: tuple[dict[bytes, bytes], dict[str, str]] = {}, {}  # variables, and those of hpcoll among them
