"""The watch over a collective that does not end: why, and whether to give it up, on all ranks alike.

What ranks know of each other (`hpcoll.comm.diagnosis.peer_state`) is looked at only by a rank that has waited for some time already.
"""

import time
from collections.abc import Callable
from typing import Any, NoReturn

from hpcoll.base.errors import CollectiveTimeout, HpcollError, MismatchError, PeerFailed, TransportError
from hpcoll.base.processes import GONE, HOW_GONE
from hpcoll.comm.arguments.call import Form, written
from hpcoll.comm.diagnosis import report
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.diagnosis.status_page import Observations
from hpcoll.comm.diagnosis.wait_graph import find_deadlock, text_of
from hpcoll.comm.plans.signature import NO_CALL, Signature
from hpcoll.comm.status.blocked_on import awaited
from hpcoll.comm.status.call_site import holds, in_words, place_of_caller
from hpcoll.comm.status.rank_status import RANK_STATUS, Call
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.mpi import KNOWN_S
from hpcoll.selection.config import log

_LOOK_S, _DEADLOCK_S, _SEARCH_S = 0.03, 0.1, 0.25  # between two looks at what is known, at who waits for whom, and at processes
_ASK_S = 0.1  # from when on ranks of other nodes are asked
_FEW = 1024  # ranks
_ANSWER_S, _SAY_S = 1.0, 0.4  # how long others may take to answer at all, and to say what they call
_SETTLE_S = 0.1  # in which ranks that tell something at the same time see it of each other, so that all take the first
_KINDS = {kind.__name__: kind for kind in (MismatchError, PeerFailed, CollectiveTimeout)}


class Watchdog:
    """Over one call that has waited for a while; to be looked through now and then until it ends.

    Args:
        resources: Of its communicator.
        engine: That runs it; None: no call waits, others are listened to before one begins.
        form: In which it was called.
        called_at: Where the program started it; None: it called in a frame above this one, and waits there.
        limit_s: Seconds that it may take, alike on all ranks; None: what ``HPCOLL_TIMEOUT`` says.
        since: When these began, on the clock `time.monotonic`; None: now.
        what: In words, where it is no call of the program's, or has not begun.
        calls: Log of the message context on which it would begin; None: of blocking calls.
    """

    def __init__(
        self, resources: Resources, engine: HostEngine | None, form: Form = "blocking", called_at: str | None = None,
        limit_s: float | None = None, since: float | None = None, what: str = "", calls: CallLog | None = None,
    ) -> None:  # fmt: skip
        self._on, self._engine, self._since = resources, engine, time.monotonic() if since is None else since
        calls = calls or (engine and engine.log) or resources.message_contexts[0].log
        self._known = PeerState(resources, calls)
        self._number = calls.ncalls if engine is not None else calls.ncalls + 1 if what else 0
        self._signature = Signature.unpacked(int(engine.state[f.SIGNATURE])) if engine is not None else NO_CALL
        self._limit_s = resources.config.timeout if limit_s is None else limit_s
        self._form, self._what, self._where = form, what, in_words(place_of_caller()) if called_at is None else called_at
        self._next_look = self._next_deadlock = self._next_search = self._since
        self._warned, self._doubts, self._code, self._held = False, False, 0, True
        self._stuck, self._stuck_since = list[Any](), 0.0
        self._observations = Observations(resources)

    @property
    def _call(self) -> str:
        """As the program wrote it, and where."""
        if self._engine is None:
            return f"{self._what} at {self._where}" if self._what else ""
        text = self._what or written(self._signature.text(self._engine.elements), self._form)
        text = text.replace("]", "] on the GPU", 1) if self._engine.state[f.GPU] else text
        return f"{text} at {self._where}"

    @property
    def _numbered(self) -> str:
        """As the program wrote it, where, and which one on its message context it is."""
        return f"{self._call}, call {self._number} on {self._on.title},"

    def _described(self) -> Call:
        """The call, for notices."""
        awaits, step = awaited(self._engine, self._on.node.ranks) if self._engine else ([], "")
        return {
            "key": self._on.key, "lane": self._known.lane, "number": self._number, "what": self._call, "on": self._on.title,
            "awaits": awaits, "step": step, "since": self._since, "holds": holds() if self._held else "",
        }  # fmt: skip

    def look(self, *, held: bool = True) -> None:
        """See whether it is to be given up.

        Args:
            held: The program waits for its end just now.

        Raises:
            MismatchError, PeerFailed, CollectiveTimeout: it is, on all ranks.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look, self._held = now + _LOOK_S, held
        call = self._described()
        RANK_STATUS.wait(self, call, self._observations.of(call["awaits"], self._doing))
        if self._on.control_plane is not None:
            self._inquire(now, call["awaits"])
        self.raise_remote_failure()
        doubted, self._doubts = self._doubts, self._differing()
        if doubted and self._doubts:  # what is seen once may have been read while it was written
            self._fail(MismatchError, "")
        if now >= self._next_deadlock:
            self._next_deadlock = now + _DEADLOCK_S
            self._find_deadlock(call)
        if now >= self._next_search:
            self._next_search = now + _SEARCH_S
            self._find_absent()
        if self._limit_s is not None and now - self._since > self._limit_s:
            self._fail(CollectiveTimeout, f"{self._numbered} did not end in {self._limit_s:g} s{_at(call)}: {self._story()}")
        warn = self._on.config.warn
        if warn and now - self._since > warn and not self._warned:
            self._warned = True
            if not any(rank < self._on.rank and self._known.waiting(rank, self._number) for rank in self._known.ranks()):
                log.warning("%s waits for %.0f s%s: %s", self._numbered, now - self._since, _at(call), self._story())

    def _inquire(self, now: float, awaits: list[int]) -> None:
        """Answer ranks that share no memory, and ask those that it takes to know why this one waits."""
        self._on.control_plane.serve()
        if now - self._since > _ASK_S:
            warn = self._on.config.warn
            lowest = [0] if warn and now - self._since > warn / 2 and self._on.nranks <= _FEW else []  # of those known the lowest warns
            texts_at = [self._since + seconds - _SAY_S for seconds in (warn, self._limit_s) if seconds]
            anew = max((one for one in texts_at if one <= now), default=0.0)
            self._known.ask([*report.behind(self._known, awaits, self._number), *lowest], anew)

    def end(self) -> None:
        """It is over."""
        RANK_STATUS.end(self)

    def raise_remote_failure(self) -> None:
        """Raise what another rank has raised."""
        by = self._known.log.aborted_by
        by = self._on.aborted_by if by is None else by
        if by is None:
            return
        self._wait(lambda: bool(self._known.failures()))
        self._fail(PeerFailed, f"{self._on.who(by)} says that a call has failed, and not why")

    def _wait(self, known: Callable[[], bool], most_s: float = _ANSWER_S) -> None:
        """Give others some time to say something."""
        end = time.monotonic() + most_s
        while not known() and time.monotonic() < end:
            time.sleep(_LOOK_S)
            if self._on.control_plane is not None:
                self._on.control_plane.serve()

    def _fail(self, kind: type[TransportError], text: str) -> NoReturn:
        """Raise, and tell the others; what some rank had told before is raised on all."""
        if self._on.settled is not None:
            raise self._on.settled[0](self._on.settled[1], code=self._code)
        if self._on.control_plane is not None:
            self._on.control_plane.serve()
        if not self._known.failures():
            broadcast_failure(self._on, kind, text, self._described(), self._known)
        self._wait(lambda: False, _SETTLE_S)  # another may have begun to tell earlier
        found = self._known.failures()
        if found:
            kind, text = _KINDS.get(found[0]["kind"], TransportError), found[0]["text"]
            broadcast_failure(self._on, kind, text, self._described(), self._known, first=found[0])
            text = text or self._difference(*found[0]["of"])
            self._on.settled = kind, text  # which all calls in flight raise, too
        raise kind(text, code=self._code)

    def explain(self, error: HpcollError) -> None:
        """Raise another error instead of one of the engine's, where ranks know more."""
        if not isinstance(error, TransportError):
            return
        if error.code == f.MISMATCH:
            self._fail(MismatchError, "")
        if error.code == f.ALARMED:
            self.raise_remote_failure()
        if self._engine is not None and self._engine.truncated:
            self._code = error.code
            self._fail(MismatchError, f"{self._call} on rank {self._on.rank}: {error}")
        self._find_failed(KNOWN_S if 0 < error.code < f.UNMAPPED else 0)  # the library's own; where it knows failures it may be of one

    def _differing(self) -> bool:
        """Whether another rank has called something else where this one waits, or before."""
        mine = self._known.remembered(self._on.rank, self._number)
        others = (self._known.remembered(rank, self._number) for rank in self._known.ranks() if rank != self._on.rank)
        return mine is not None and any(not one.alike(mine) for one in others if one is not None)

    def _difference(self, lane: int, number: int) -> str:
        """What each rank called in a call, once they have said so."""
        known, nranks, now = PeerState(self._on, self._on.team.logs.get(lane, self._known.log)), self._on.nranks, time.monotonic()
        self._wait(lambda: known.of_all(known.answers, now))
        number = report.first_difference(known, nranks, number)
        self._wait(lambda: known.of_all(lambda rank: known.said_of(rank, number, now), now), _SAY_S)
        return report.difference(known, nranks, number, self._on.title)

    def _find_deadlock(self, call: Call) -> None:
        """Raise where ranks wait for each other."""
        waits = find_deadlock(self._on, call) if call["holds"] else []
        before, self._stuck = self._stuck, [one.place for one in waits]
        if waits and self._stuck == before:
            since = self._stuck_since
            self._wait(lambda: self._known.of_all(self._known.answers, since))
            self._wait(lambda: self._known.of_all(lambda rank: self._known.heard_at(rank) > since, since), _SAY_S)
            text = text_of(waits)
            for on in {one.on for one in waits} - {self._on}:
                broadcast_failure(on, MismatchError, text)
            self._fail(MismatchError, text)
        if waits:  # what is seen once may have been read while it was written
            self._next_deadlock, self._stuck_since = self._next_look, time.monotonic()
            self._known.ask(list(range(self._on.nranks)), self._stuck_since)  # for the text, which has them all

    def _find_absent(self) -> None:
        """Raise where a rank that has yet to take part never will."""
        for rank in self._known.ranks():
            if rank == self._on.rank or not self._behind(rank):
                continue
            left = self._known.notice(rank).get("left", "")
            if (left or self._known.state(rank) == GONE) and self._behind(rank):  # it may have ended the call before it left
                self._fail(PeerFailed, f"{self._on.who(rank)} {left or HOW_GONE}")
        self._find_failed()

    def _behind(self, rank: int) -> bool:
        """Whether a rank is known not to have ended this call."""
        return self._known.begun(rank) is not None and not self._known.through(rank, self._number)

    def _find_failed(self, limit_s: float = 0.0) -> None:
        """Raise where the MPI library knows of a rank that has failed; arguments as in `Resources.failed_ranks`."""
        for rank in self._on.failed_ranks(limit_s)[:1]:
            self._fail(PeerFailed, f"{self._on.who(rank)} has failed, says the MPI library")

    def _doing(self, rank: int) -> str:
        return report.doing(self._known, rank, self._number) if self._known.answers(rank) else ""

    def _story(self) -> str:
        return report.wait_chain_text(self._known, self._on.rank, self._number)


def _at(call: Call) -> str:
    """How far a call is."""
    return f" at {call['step']}" if call["step"] else ""


def broadcast_failure(
    on: Resources, kind: type[TransportError], text: str, call: Call | None = None, known: PeerState | None = None,
    first: Call | None = None,
) -> None:  # fmt: skip
    """Let the other ranks give up, too, in this call or their next; of several such errors the first counts.

    Args:
        on: Resources of the communicator.
        kind, text: The error that they are to raise; no text: they say what each rank called.
        call: That failed; None: no call that others know.
        known: Of the message context on which it runs, if that is not one of the communicator's.
        first: Call of another rank that has failed first, of which this is passed on.
    """
    none: Call = {"key": on.key, "lane": 0, "number": 0, "what": "", "on": on.title, "awaits": [], "step": "", "since": 0.0, "holds": ""}
    told = RANK_STATUS.fail(kind.__name__, text, call or none, first)
    if told is not None and on.control_plane is not None:
        on.control_plane.tell(told)
    for log_of_calls in ([known.log] if known else []) + [one.log for one in on.every_message_context()]:
        log_of_calls.set_abort_flag(on.rank)
