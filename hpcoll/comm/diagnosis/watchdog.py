"""The watchdog over a collective that does not end: it finds out why, and whether all ranks are to give it up.

What ranks know of each other (`hpcoll.comm.diagnosis.peer_state`) is looked at only by a rank that has waited for some time already.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from hpcoll.base.errors import CollectiveTimeout, HpcollError, MismatchError, PeerFailed, TransportError
from hpcoll.base.machine import GONE, HOW_GONE
from hpcoll.comm.arguments.call import written
from hpcoll.comm.diagnosis import report
from hpcoll.comm.diagnosis.blocked_on import awaited
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.diagnosis.wait_graph import BlockedRank, deadlock_text, find_deadlock
from hpcoll.comm.plans.signature import NO_CALL, Signature
from hpcoll.comm.requests.call_hooks import StalledCall
from hpcoll.comm.status.blocked_call import BlockedCall, call_text
from hpcoll.comm.status.call_site import holds, in_words, place_of_caller
from hpcoll.comm.status.names import region_text
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.engine.wait_policy import pause_s
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import PROCESS, CallLog
from hpcoll.runtime.transports.mpi import KNOWN_S, Revoked, is_revoked, may_call
from hpcoll.selection.config import log

_LOOK_S = 0.03  # between two looks at what is known
_DEADLOCK_S = 0.1  # at who waits for whom
_SEARCH_S = 0.25  # at processes
_ASK_S = 0.1  # from when on ranks of other nodes are asked
_FEW = 1024  # ranks
_SOME = 16  # ranks of one look, besides those that are awaited
_ANSWER_S, _SAY_S = 1.0, 0.4  # how long others may take to answer at all, and to say what they call
_SETTLE_S = 0.1  # in which ranks that tell something at the same time see it of each other, so that all take the first
_KINDS = {kind.__name__: kind for kind in (MismatchError, PeerFailed, CollectiveTimeout, Revoked)}


class Watchdog:
    """The watchdog over one call.

    Args:
        resources: Resources of the communicator.
        call: Call that stalls; None: no call waits, and others are listened to before one begins.
        what: The call that is about to begin, in words.
        calls: Log of the message context on which that would begin; None: of blocking calls.
        number: Number of an earlier call of which is told instead.
    """

    def __init__(
        self,
        resources: Resources,
        call: StalledCall | None,
        what: str = "",
        calls: CallLog | None = None,
        number: int = 0,
    ) -> None:
        self._resources = resources
        self._engine = call.engine if call else None
        self._form = call.form if call else "blocking"
        self._since = time.monotonic() if call is None else call.since
        calls = calls or (call.engine.log if call else None) or resources.message_contexts[0].log
        self._known = PeerState(resources, calls)
        self._channel = resources.team.channel
        self._number = calls.ncalls if call else calls.ncalls + 1 if what else number
        self._signature = Signature.unpacked(int(call.engine.state[f.SIGNATURE])) if call else NO_CALL
        self._limit_s = resources.config.timeout if call is None or call.limit_s is None else call.limit_s
        self._what = call.what if call else what
        self._where = (call and call.called_at) or ""
        if not self._where and (call or place_of_caller()):  # the end has no line
            self._where = in_words(place_of_caller())
        self._region = region_text(calls.region(self._number) if call else int(PROCESS[f.REGION]))
        self._next_look = self._next_deadlock = self._next_search = self._since
        self._warned = False
        self._turn = resources.rank + 1 - _SOME
        self._doubts = False
        self._code = 0
        self._held = True
        self._circle = list[BlockedRank]()
        self._circle_since = 0.0
        self._observations = report.Observations(resources)

    @property
    def _call(self) -> str:
        """The call as the program wrote it, and where."""
        if self._engine is None:
            return (
                call_text(self._what, self._where, self._region) if self._what and self._where else self._what
            )
        text = self._what or written(self._signature.text(self._engine.elements), self._form)
        text = text.replace("]", "] on the GPU", 1) if self._engine.state[f.GPU] else text
        return call_text(text, self._where, self._region)

    @property
    def _numbered(self) -> str:
        """The call as the program wrote it, where, and its number as the program counts."""
        ours = self._what and self._engine  # the program does not make it
        which = "" if ours else self._resources.numbered(self._known.lane, self._number)
        return f"{self._call}, {which and f'{which} '}on {self._resources.title},"

    def _blocked(self) -> BlockedCall:
        """The record of the call."""
        awaits, step = awaited(self._engine, self._resources.node.ranks) if self._engine else ([], "")
        held_up = holds() if self._held else ""
        return BlockedCall(
            self._resources.key,
            self._known.lane,
            self._number,
            self._call,
            self._resources.title,
            tuple(awaits),
            step,
            self._since,
            held_up,
        )

    def look(self, *, held: bool = True) -> None:
        """Find out whether the call is to be given up.

        Args:
            held: The program waits for its end just now.

        Raises:
            MismatchError, PeerFailed, CollectiveTimeout: It is, on all ranks.
        """
        now = time.monotonic()
        end = math.inf if self._limit_s is None else self._since + self._limit_s
        if now < min(self._next_look, end) and self._known.log.aborted_by is None:
            return
        spent = time.thread_time()
        self._held = held
        self._look(now)
        self._next_look = now + max(_LOOK_S, pause_s(time.thread_time() - spent, len(self._resources.near)))

    def _look(self, now: float) -> None:
        call = self._blocked()
        RANK_STATUS.wait(self, call, self._observations.of(call.awaits, self._activity))
        self._channel.serve()
        self._ask(now, call)
        self.raise_remote_failure()
        some = self._some(call.awaits)
        doubted = self._doubts
        self._doubts = self._differs(some)
        if doubted and self._doubts:  # what is seen once may have been read while it was written
            self._fail(MismatchError, "")
        if now >= self._next_deadlock:
            self._next_deadlock = now + _DEADLOCK_S
            self._find_deadlock(call)
        if now >= self._next_search:
            self._next_search = now + _SEARCH_S
            self._find_absent(some)
        if self._limit_s is not None and now - self._since > self._limit_s:
            self._fail(
                CollectiveTimeout,
                report.tabled(f"{self._numbered} did not end in {self._limit_s:g} s", self._wait_chain()),
            )
        waited = now - self._since
        warn = self._resources.config.warn
        if warn and waited > warn and not self._warned:
            self._warned = True
            lower = [rank for rank in self._known.known_ranks() if rank < self._resources.rank]
            if not any(self._known.blocked_call(rank, self._number) for rank in lower):
                chain = "; ".join(self._wait_chain())
                log.warning("%s has waited for %.0f s: %s", self._numbered, waited, chain)

    def _ask(self, now: float, call: BlockedCall) -> None:
        """Ask the ranks that share no memory and know why this one waits."""
        if len(self._resources.near) < self._resources.nranks and now - self._since > _ASK_S:
            warn = self._resources.config.warn
            # of those known the lowest warns
            lowest = [0] if warn and now - self._since > warn / 2 and self._resources.nranks <= _FEW else []
            texts_at = [self._since + seconds - _SAY_S for seconds in (warn, self._limit_s) if seconds]
            anew = max((time_s for time_s in texts_at if time_s <= now), default=0.0)
            self._known.ask([*report.ranks_behind(self._known, call.awaits, self._number), *lowest], anew)

    def end(self) -> None:
        """Watch no more: the call has ended."""
        RANK_STATUS.end(self)

    def raise_remote_failure(self) -> None:
        """Raise the failure of another rank, if there is one."""
        by = self._known.log.aborted_by
        by = self._resources.aborted_by if by is None else by
        if by is None:
            return
        self._wait(lambda: bool(self._known.failures()))
        self._fail(PeerFailed, f"{self._resources.who(by)} says that a call has failed, and not why")

    def _wait(self, known: Callable[[], bool], most_s: float = _ANSWER_S) -> None:
        """Give other ranks some time to say something."""
        end = time.monotonic() + most_s
        while not known() and time.monotonic() < end:
            time.sleep(_LOOK_S)
            self._channel.serve()

    def _fail(self, kind: type[TransportError], text: str) -> NoReturn:
        """Raise an error, and tell the others; what some rank had told before is raised on all."""
        if self._resources.settled is not None:
            self._raise(*self._resources.settled)
        self._channel.serve()
        if not self._known.failures():
            broadcast_failure(self._resources, kind, text, self._blocked(), self._known)
        self._wait(lambda: False, _SETTLE_S)  # another may have begun to tell earlier
        failures = self._known.failures()
        if failures:
            kind = _KINDS.get(failures[0].kind, TransportError)
            text = failures[0].text
            broadcast_failure(self._resources, kind, text, self._blocked(), self._known, first=failures[0])
            text = text or self._difference(*failures[0].of)
            self._resources.settled = kind, text  # which all calls in flight raise, too
        if kind is Revoked and may_call() and not is_revoked(self._resources.native):
            self._resources.native.Revoke()  # for calls that the library serves, where it has not heard of it
        self._raise(kind, text)

    def _raise(self, kind: type[TransportError], text: str) -> NoReturn:
        """Raise an error with the call of this rank, which the texts of other kinds have."""
        text = f"{self._call}: {text}" if kind is PeerFailed and self._call else text
        failure = next((f"{first.key} {first.at}" for first in self._known.failures()), "")
        raise kind(text, code=self._code, rank=self._resources.rank, call=self._call, failure=failure)

    def explain(self, error: HpcollError) -> None:
        """Raise another error instead of one of the engine's, where ranks know more."""
        if not isinstance(error, TransportError) or isinstance(error, Revoked):
            return
        if error.code == f.MISMATCH:
            self._fail(MismatchError, "")
        if error.code == f.ALARMED:
            self.raise_remote_failure()
        if self._engine is not None and self._engine.truncated:
            self._code = error.code
            self._fail(MismatchError, f"{self._call} on rank {self._resources.rank}: {error}")
        # the library's own; where it knows failures it may be of one
        self._find_failed(KNOWN_S if 0 < error.code < f.UNMAPPED else 0)

    def _some(self, awaits: Sequence[int]) -> list[int]:
        """Return the ranks of one look: those that are awaited, and some of the others in turn, those behind this one first.

        A look costs the same however many ranks there are, and all ranks together look at all. Ranks in doubt are looked at again.
        """
        known = self._known.known_ranks()
        if not self._doubts:
            self._turn = (self._turn + _SOME) % len(known)
        return [*awaits, *(known + known)[self._turn : self._turn + min(_SOME, len(known))]]

    def _differs(self, ranks: Sequence[int]) -> bool:
        """Say whether one of some ranks has called something else where this one waits, or before."""
        mine = self._known.past_call(self._resources.rank, self._number)
        past = (self._known.past_call(rank, self._number) for rank in ranks)
        return mine is not None and any(not call.alike(mine) for call in past if call is not None)

    def _difference(self, lane: int, number: int) -> str:
        """Return what each rank called in a call, once they have said so."""
        known = PeerState(self._resources, self._resources.team.logs.get(lane, self._known.log))
        now = time.monotonic()
        self._wait(lambda: known.holds_for_all(known.is_known, now))
        number = report.first_difference(known, number)
        self._wait(
            lambda: known.holds_for_all(lambda rank: known.has_answered(rank, number, now), now), _SAY_S
        )
        return report.difference_text(known, number)

    def _find_deadlock(self, call: BlockedCall) -> None:
        """Raise where ranks wait for each other."""
        circle = find_deadlock(self._resources, call) if call.holds else []
        before = self._circle
        self._circle = circle
        if circle and circle == before:
            since = self._circle_since
            self._wait(lambda: self._known.holds_for_all(self._known.is_known, since))
            self._wait(
                lambda: self._known.holds_for_all(lambda rank: self._known.heard_at(rank) > since, since),
                _SAY_S,
            )
            text = deadlock_text(circle)
            for resources in {blocked.resources for blocked in circle} - {self._resources}:
                broadcast_failure(resources, MismatchError, text)
            self._fail(MismatchError, text)
        if circle:  # what is seen once may have been read while it was written
            self._next_deadlock = self._next_look
            self._circle_since = time.monotonic()
            # for the text, which has them all
            self._known.ask(list(range(self._resources.nranks)), self._circle_since)

    def _find_absent(self, ranks: Sequence[int]) -> None:
        """Raise where one of some ranks has yet to take part and never will."""
        for rank in ranks:
            if rank == self._resources.rank or not self._is_behind(rank):
                continue
            left = self._known.status(rank).left
            # it may have ended the call before it left
            if (left or self._known.process_state(rank) == GONE) and self._is_behind(rank):
                self._fail(PeerFailed, f"{self._resources.who(rank)} {left or HOW_GONE}")
        self._find_failed()
        if revoked := self._resources.revoked:
            self._fail(Revoked, revoked)

    def _is_behind(self, rank: int) -> bool:
        """Say whether a rank is known not to have ended this call."""
        return self._known.progress(rank) is not None and not self._known.has_ended(rank, self._number)

    def _find_failed(self, limit_s: float = 0.0) -> None:
        """Raise where the MPI library knows of a rank that has failed; arguments as in `Resources.failed_ranks`."""
        for rank in self._resources.failed_ranks(limit_s)[:1]:
            self._fail(PeerFailed, f"{self._resources.who(rank)} has failed, says the MPI library")

    def _activity(self, rank: int) -> str:
        return report.activity_text(self._known, rank, self._number) if self._known.is_known(rank) else ""

    def _wait_chain(self) -> list[str]:
        return report.wait_chain(self._known, self._resources.rank, self._number)


def broadcast_failure(
    resources: Resources,
    kind: type[TransportError],
    text: str,
    call: BlockedCall | None = None,
    known: PeerState | None = None,
    first: BlockedCall | None = None,
) -> None:
    """Let the other ranks give up, too, in this call or their next; of several such errors the first counts.

    Args:
        resources: Resources of the communicator.
        kind: Error that they are to raise.
        text: Its text; empty: they say what each rank called.
        call: Call that failed; None: no call that others know.
        known: State of the peers on its message context, if that is not one of the communicator's.
        first: Call of another rank that has failed first, of which this is passed on.
    """
    told = RANK_STATUS.fail(
        kind.__name__, text, call or BlockedCall(resources.key, 0, 0, "", resources.title), first
    )
    if told is not None:
        resources.team.channel.broadcast_failure(told)
    if known is not None:
        known.log.set_abort_flag(resources.rank)
    resources.set_abort_flag()
