"""The watch over a collective that does not end: why, and whether to give it up, on all ranks alike.

Ranks of a node see in shared memory which calls each of them has begun (`hpcoll.runtime.transports.rings`), and by their notices what those
that wait are waiting for. All of it is looked at only by a rank that has waited for some time already.
"""

import time
from typing import Any, NoReturn

from hpcoll.base.errors import CollectiveTimeout, HpcollError, MismatchError, PeerFailed, TransportError
from hpcoll.base.processes import GONE, RUNNING, state_of
from hpcoll.comm.caller import in_words, place_of_caller
from hpcoll.comm.notice import NOTICE, Call
from hpcoll.comm.plan import MAX_WINDOW
from hpcoll.comm.resources import Resources
from hpcoll.comm.signature import NO_CALL, Signature
from hpcoll.comm.waits import awaited
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.transports.rings import Rings
from hpcoll.selection.config import log

_LOOK_S, _SEARCH_S = 0.03, 0.25  # between two looks at shared memory, and at processes
_ANSWER_S = 0.5  # how long others may take to say what they call
_KINDS = {kind.__name__: kind for kind in (MismatchError, PeerFailed, CollectiveTimeout)}


class Watch:
    """Over one call that has waited for a while; to be looked through now and then until it ends.

    Args:
        resources: Of its communicator.
        engine: That runs it; None: no call waits, others are listened to.
        called_at: Where the program started it to be in flight; None: it called in a frame above this one, and waits there.
    """

    def __init__(self, resources: Resources, engine: HostEngine | None, called_at: str | None = None) -> None:
        self._on, self._engine, self._lane, self._number, self._signature = resources, engine, 0, 0, NO_CALL
        self._rings, self._since = resources.message_contexts[0].rings, time.monotonic()
        if engine is not None:
            self._rings, self._lane = engine.rings, int(engine.state[f.TAG]) // MAX_WINDOW
            self._number = int(self._rings.fields[f.CALLS]) if self._rings else 0
            self._signature = Signature.unpacked(int(engine.state[f.SIGNATURE]))
        self._in_flight, self._where = called_at is not None, in_words(place_of_caller()) if called_at is None else called_at
        self._next_look = self._next_search = self._since
        self._warned, self._doubts, self._code = False, False, 0

    @property
    def _call(self) -> str:
        """As the program wrote it, and where."""
        if self._engine is None:
            return ""
        text = self._signature.text(self._engine.elements)
        return f"{f'I{text[0].lower()}{text[1:]}' if self._in_flight else text} at {self._where}"

    def _described(self) -> Call:
        """The call, for notices."""
        awaits, step = awaited(self._engine, self._on.node.ranks) if self._engine else ([], "")
        return {
            "key": self._on.key, "lane": self._lane, "number": self._number, "what": self._call, "awaits": awaits, "step": step,
            "since": self._since,
        }  # fmt: skip

    def look(self) -> None:
        """See whether it is to be given up.

        Raises:
            MismatchError, PeerFailed, CollectiveTimeout: it is, on all ranks of the node.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        NOTICE.wait(self, self._described())
        if self._rings is not None:
            self.hear()
            doubted, self._doubts = self._doubts, self._differing()
            if doubted and self._doubts:  # what is seen once may have been read while it was written
                self._fail(MismatchError, "")
        if now >= self._next_search:
            self._next_search = now + _SEARCH_S
            self._search()
        config = self._on.config
        if config.timeout is not None and now - self._since > config.timeout:
            self._fail(CollectiveTimeout, f"it did not end in {config.timeout:g} s: {self._story()}")
        if config.warn and now - self._since > config.warn and not self._warned:
            self._warned = True
            if self._is_first():
                log.warning("%s on %s waits for %.0f s: %s", self._call, self._on.title, now - self._since, self._story())

    def end(self) -> None:
        """It is over."""
        NOTICE.end(self)

    def hear(self) -> None:
        """Raise what another rank has raised."""
        if self._rings is None or not (self._rings.alarm[0] or self._on.alarmed):
            return
        end = time.monotonic() + _ANSWER_S
        while not self._failures() and time.monotonic() < end:
            time.sleep(_LOOK_S)
        self._fail(TransportError, "a call of another rank has failed")

    def _failures(self) -> list[dict[str, Any]]:
        """What ranks say has failed on this communicator, the first one first."""
        notices = [self._notice(local) for local in range(self._on.node.nranks)]
        found = [one for notice in notices for one in notice.get("failed", ()) if one["key"] == self._on.key]
        return sorted(found, key=lambda one: float(one["at"]))

    def _fail(self, kind: type[TransportError], text: str) -> NoReturn:
        """Raise, and tell the others; what some rank had told before is raised on all."""
        if not self._failures():
            tell(self._on, kind, text, self._described(), self._rings)
            time.sleep(_LOOK_S)  # another may have begun to tell
        found = self._failures()
        if found:
            kind, text = _KINDS.get(found[0]["kind"], TransportError), found[0]["text"]
            lane, number = found[0]["lane"], found[0]["number"]
            tell(self._on, kind, text, self._described(), self._rings)
            text = text or self._difference(lane, number)
        raise kind(text, code=self._code)

    def explain(self, error: HpcollError) -> None:
        """Raise another error instead of one of the engine's, where ranks know more."""
        if not isinstance(error, TransportError):
            return
        if error.code == f.MISMATCH:
            self._fail(MismatchError, "")
        if error.code == f.ALARMED:
            self.hear()
        if self._engine is not None and error.code and error.code == self._engine.state[f.TRUNCATED]:
            self._code = error.code
            self._fail(MismatchError, f"{self._call} on rank {self._on.rank}: {error}")

    def _notice(self, local: int) -> dict[str, Any]:
        return self._on.node.notices.read(local) if self._on.node.notices else {}

    def _others(self) -> list[tuple[int, int]]:
        """Local rank and rank of the others on this node."""
        return [(local, rank) for local, rank in enumerate(self._on.node.ranks) if local != self._on.node.rank]

    def _remembered(self, local: int, lane: int, number: int) -> tuple[Signature, int] | None:
        """Which call a rank's so-manieth was, and its count; None where it has not begun it, or forgotten it."""
        rings = next((one.rings for one in self._on.every_message_context() if one.index == lane), self._rings)
        if rings is None:
            return None
        line = rings.histories[local, 1 + number % f.REMEMBERED]
        signature, count = Signature.unpacked(int(line[f.ITS_SIGNATURE])), int(line[f.ITS_COUNT])
        return (signature, count) if rings.histories[local, 0, f.BEGUN] >= number == line[f.NUMBER] else None

    def _differing(self) -> bool:
        """Whether another rank has called something else where this one waits."""
        assert self._rings is not None
        mine = self._rings.histories[self._on.node.rank, 1 + self._number % f.REMEMBERED]
        for local, _ in self._others():
            found = self._remembered(local, self._lane, self._number)
            theirs = self._rings.histories[local, 1 + self._number % f.REMEMBERED]
            if found is None or theirs[f.ITS_FINGERPRINT] == mine[f.ITS_FINGERPRINT]:
                continue
            if not self._signature.tolerates(found[0]) or (found[1] != mine[f.ITS_COUNT] and self._signature.counts):
                return True
        return False

    def _first_difference(self, lane: int, number: int) -> int:
        """The first call, of those that are remembered and before a number, that was not the same everywhere; else the number."""
        for earlier in range(max(1, number - f.REMEMBERED), number):
            found = [self._remembered(local, lane, earlier) for local in range(self._on.node.nranks)]
            known = [one for one in found if one is not None]
            if any(not one[0].tolerates(known[0][0]) or (one[1] != known[0][1] and one[0].counts) for one in known):
                return earlier
        return number

    def _difference(self, lane: int, number: int) -> str:
        """What each rank of the node called as its so-manieth call, once they have said so."""
        number = self._first_difference(lane, number)
        end = time.monotonic() + _ANSWER_S
        while True:
            said = {rank: self._said(local, lane, number) for local, rank in enumerate(self._on.node.ranks)}
            if all(said.values()) or time.monotonic() > end:
                break
            time.sleep(_LOOK_S)
        calls: dict[str, list[int]] = {}
        remembered = [self._remembered(local, lane, number) for local in range(self._on.node.nranks)]
        only_how = len({one and (one[0]._replace(algorithm=0, segment=0), one[1]) for one in remembered}) == 1
        for local, rank in enumerate(self._on.node.ranks):
            found = remembered[local]
            text = said[rank] or (found[0].text(found[1]) if found else self._doing(local))
            text += f", algorithm {found[0].algorithm_name}" if found and only_how else ""
            calls.setdefault(text, []).append(rank)
        each = "; ".join(f"{ranks_in_words(ranks)}: {text}" for text, ranks in calls.items())
        return f"ranks do not call the same, in call {number} on {self._on.title}: {each}"

    def _said(self, local: int, lane: int, number: int) -> str:
        """What a rank says that it called."""
        notice = self._notice(local)
        calls = [*notice.get("waits", ()), *notice.get("failed", ())]
        return next((one["what"] for one in calls if (one["key"], one["lane"], one["number"]) == (self._on.key, lane, number)), "")

    def _search(self) -> None:
        """Raise where a rank that has yet to take part never will; who shares no memory may be a process that is not seen here."""
        if self._rings is None:
            return
        for local, rank in self._others():
            if self._rings.histories[local, 0, f.CALLS_ENDED] >= self._number:
                continue
            pid, left = self._on.node.pids[local], self._notice(local).get("left", "")
            if left or state_of(pid) == GONE:
                who = f"rank {rank} (process {pid} on {self._on.host})"
                self._fail(PeerFailed, f"{who} {left or 'has ended: it was killed, or left without MPI_Finalize'}")

    def _is_first(self) -> bool:
        """Whether no lower rank of the node waits in this call."""
        return not any(self._said(local, self._lane, self._number) for local in range(self._on.node.rank))

    def _story(self) -> str:
        """Who waits for whom, down to a rank that does not wait in this call, and what that does."""
        rank, parts, seen = self._on.rank, list[str](), list[int]()
        while rank not in seen:
            seen.append(rank)
            local = self._local(rank)
            waits = [] if local is None else self._awaits(local)
            if not waits:
                return "; ".join([*parts, f"rank {rank} {'is on another node' if local is None else self._doing(local)}"])
            parts.append(f"rank {rank} waits for {ranks_in_words(waits)}")
            rank = next((one for one in waits if one not in seen), waits[0])
        return "; ".join(parts)

    def _local(self, rank: int) -> int | None:
        return self._on.node.ranks.index(rank) if rank in self._on.node.ranks else None

    def _awaits(self, local: int) -> list[int]:
        """Ranks that a local rank waits for in this call; none where it is not in it, or waits for nobody."""
        if state_of(self._on.node.pids[local]) != RUNNING:
            return []
        if local == self._on.node.rank:
            return [] if self._engine is None else awaited(self._engine, self._on.node.ranks)[0]
        waits = self._notice(local).get("waits", ())
        same = (self._on.key, self._lane, self._number)
        return next((one["awaits"] for one in waits if (one["key"], one["lane"], one["number"]) == same), [])

    def _doing(self, local: int) -> str:
        """What a rank does that is not known to wait in this call."""
        state, notice = state_of(self._on.node.pids[local]), self._notice(local)
        if state != RUNNING:
            return f"is {state}"
        if notice.get("left"):
            return str(notice["left"])
        elsewhere = [one for one in notice.get("waits", ()) if (one["key"], one["number"]) != (self._on.key, self._number)]
        if elsewhere:
            return f"waits in {elsewhere[-1]['what']} since {_clock(elsewhere[-1]['since'])}"
        if self._rings is None:
            return "does not wait in it"
        begun, ended, when = self._rings.histories[local, 0, : f.ENDED_AT + 1].tolist()
        if begun > ended:
            return f"is in call {begun}"
        return f"is in no collective since {_clock(1e-9 * when)}, after call {ended}" if ended else "has called no collective yet"


def tell(on: Resources, kind: type[TransportError], text: str, call: Call | None = None, rings: Rings | None = None) -> None:
    """Let the other ranks of the node give up, too, in this call or their next; of several such errors the first counts.

    Args:
        on: Resources of the communicator.
        kind, text: The error that they are to raise; no text: they say what each rank called.
        call: That failed; None: no call that others know.
        rings: On which it runs, if not the communicator's own.
    """
    NOTICE.fail(kind.__name__, text, call or {"key": on.key, "lane": 0, "number": 0, "what": "", "awaits": [], "step": "", "since": 0.0})
    for one in (rings, *(each.rings for each in on.every_message_context())):
        if one is not None:
            one.alarm[0] = 1


def _clock(monotonic_s: float) -> str:
    """Time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() - time.monotonic() + monotonic_s))


def ranks_in_words(ranks: list[int]) -> str:
    """``rank 3`` or ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
