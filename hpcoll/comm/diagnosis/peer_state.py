"""What a rank knows of the others of its communicator, about one message context: which calls each has begun and ended, in which it waits.

Of ranks with which it shares memory it reads that there, at once; of others it has what they, or their neighbours, have last answered
(`hpcoll.comm.diagnosis.control_plane`).
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hpcoll.base.processes import RUNNING, state_of
from hpcoll.comm.arguments.call import Form
from hpcoll.comm.arguments.methods import NUMBERS
from hpcoll.comm.plans.signature import Signature
from hpcoll.comm.status.live_contexts import live_contexts
from hpcoll.comm.status.rank_status import RANK_STATUS, Call, failure_order
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog, InLibrary
from hpcoll.runtime.telemetry.status_slots import fitting

_NAMES = {number: name for name, number in NUMBERS.items()}


def since_1970(monotonic_s: float) -> float:
    """What another machine can read of a time on the clock `time.monotonic`, in seconds."""
    return monotonic_s + time.time() - time.monotonic()


class Begun(NamedTuple):
    """How far a rank is.

    Attributes:
        begun, ended: Number of its latest call, and of the latest that has ended.
        when: That was, in seconds since 1970.
    """

    begun: int
    ended: int
    when: float


class Remembered(NamedTuple):
    """A call as a rank has made it.

    Attributes:
        signature, ncounted: Of it, its count as the engine has it.
        chain: Of all calls before it.
        counted: What stands for all its counts.
    """

    signature: Signature
    ncounted: int
    chain: int
    counted: int

    def alike(self, other: "Remembered") -> bool:
        """Whether two ranks may go on with these calls."""
        same = self.counted == other.counted or not self.signature.counts
        return same and self.signature.compared == other.signature.compared and self.chain == other.chain


class PeerState:
    """What is known about one message context.

    Args:
        on: Resources of the communicator.
        log: Of the calls on it.

    Attributes:
        key, lane: Of the communicator and the message context, alike on all ranks.
        log: As given.
    """

    def __init__(self, on: Resources, log: CallLog) -> None:
        self._on, self.key, self.lane, self.log = on, on.key, log.index, log
        self._near = on.near if len(log.histories) == len(on.near) else {on.rank: 0}

    def ranks(self) -> list[int]:
        """Of which anything is known, in order."""
        return sorted({*self._on.near, *(self._on.control_plane.heard(self.key, self.lane) if self._on.control_plane else ())})

    def of_all(self, holds: Callable[[int], bool], since: float = 0.0) -> bool:
        """Whether something is known to hold for all ranks; the first of the others are asked, as in `ask`."""
        others = [rank for rank in range(self._on.nranks) if not holds(rank)]
        self.ask(others, since)
        return not others

    def ask(self, ranks: list[int], since: float = 0.0) -> None:
        """Ask those that share no memory; what they answer is known some time later.

        Args:
            ranks: Each is asked now and then.
            since: Who was not asked since then is at once; on the clock `time.monotonic`.
        """
        far = [rank for rank in ranks if rank not in self._on.near]
        if far and self._on.control_plane is not None:
            self._on.control_plane.ask(self.key, self.lane, far, since)

    def heard_at(self, rank: int) -> float:
        """When it has last answered, or another for it, on the clock `time.monotonic`; 0: never, infinity: what it does is seen."""
        return math.inf if rank in self._on.near else float(self._heard_of(rank).get("heard", 0.0))

    def notice(self, rank: int) -> dict[str, Any]:
        """What a rank says of itself: calls in which it ``waits``, calls that have ``failed`` on it, that it has ``left``."""
        if rank not in self._on.near:
            return self._heard_of(rank).get("notice", {})
        pages, mine = self._on.node.status_slots, rank == self._on.rank
        notice = RANK_STATUS.text() if mine or pages is None else pages.read(self._on.near[rank])
        return notice | {"waits": [one | {"since": since_1970(one["since"])} for one in notice.get("waits", ())]}

    def state(self, rank: int) -> str:
        """Of its process; the empty string where it is not known."""
        return state_of(self._on.pids[rank]) if rank in self._on.near else self._heard_of(rank).get("state", "")

    def answers(self, rank: int, *, anywhere: bool = False) -> bool:
        """Whether anything is known of it, on this message context or on whichever."""
        return rank in self._on.near or bool(self._heard_of(rank) if anywhere else self._told(rank))

    def silent(self, rank: int) -> bool:
        """Whether it does not answer though it should."""
        return rank not in self._on.near and self._on.control_plane is not None and bool(self._on.control_plane.silent(rank))

    @property
    def listened(self) -> bool:
        """Whether ranks that share no memory answer while they compute."""
        return self._on.control_plane is None or bool(self._on.control_plane.listened)

    @property
    def title(self) -> str:
        """Name of the communicator."""
        return self._on.title

    @property
    def form(self) -> Form:
        """In which a program calls what runs on the message context."""
        return self._on.form(self.lane)

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """Of the communicator's ranks, in COMM_WORLD."""
        return self._on.team.world_ranks

    def of(self, call: Call) -> "PeerState | None":
        """What is known about the message context of another call; None where this rank has none of it."""
        served = [self._on] if call["key"] == self.key else []
        served = served or [one.resources for one in list(live_contexts) if one.resources.key == call["key"]]
        logs = [(on, on.team.logs.get(call["lane"])) for on in served]
        return next((PeerState(on, log) for on, log in logs if log is not None), None)

    def begun(self, rank: int) -> Begun | None:
        """How far it is; None where that is not known."""
        if rank not in self._near:
            return Begun(*self._told(rank)["begun"]) if "begun" in self._told(rank) else None
        begun, ended, when = self.log.histories[self._near[rank], 0, : f.ENDED_AT + 1].tolist()
        return Begun(begun, ended, since_1970(1e-9 * when))

    def through(self, rank: int, number: int) -> bool:
        """Whether it is known to have ended the call with that number."""
        begun = self.begun(rank)
        return begun is not None and begun.ended >= number

    def overall(self, rank: int) -> Begun | None:
        """How far it is on all message contexts of the communicator together: how many calls; None where that is not known."""
        if rank not in self._on.near:
            return Begun(*self._heard_of(rank)["overall"]) if "overall" in self._heard_of(rank) else None
        logs = {one.log.index: one.log for one in self._on.every_message_context()} | {self.lane: self.log}
        found = [one for one in (PeerState(self._on, log).begun(rank) for log in logs.values()) if one is not None]
        return Begun(sum(one.begun for one in found), sum(one.ended for one in found), max((one.when for one in found), default=0.0))

    def in_blocking_call(self, rank: int) -> bool:
        """Whether it is known to be in one, which no other message context tells."""
        if rank not in self._on.near:
            return bool(self._heard_of(rank).get("blocking"))
        begun = PeerState(self._on, self._on.log).begun(rank)
        return begun is not None and begun.begun > begun.ended

    def in_library(self, rank: int) -> InLibrary | None:
        """How far it is with blocking collectives of the MPI library's own on the communicator; None where that is not known."""
        if rank not in self._on.near:
            return InLibrary(*self._told(rank)["library"]) if "library" in self._told(rank) else None
        return self._on.log.in_library(self._on.near[rank])

    def served(self, rank: int) -> str:
        """In which collective of the MPI library's own it is, in words; the empty string where in none that is known."""
        library = self.in_library(rank)
        if library is None or library.begun == library.ended:
            return ""
        return f"{_NAMES[library.method]}, which the MPI library serves"

    def remembered(self, rank: int, number: int) -> Remembered | None:
        """The call that a rank began with that number; None where it has not begun it, has forgotten it, or that is not known."""
        if rank not in self._near:
            found = self._told(rank).get("calls", {}).get(str(number))
            return None if found is None else Remembered(Signature.unpacked(found[0]), *found[1:])
        if number < 1:
            return None
        history = self.log.histories[self._near[rank]]
        before = int(history[0, f.BEGUN])  # for each reading Python takes longer than a processor looks ahead: they are in this order
        line = history[1 + number % f.REMEMBERED].tolist()
        overwritten = number + f.REMEMBERED <= int(history[0, f.BEGUN]) + 1  # or being so, which is told when it is done
        found = Remembered(Signature.unpacked(line[f.ITS_SIGNATURE]), line[f.ITS_COUNT], line[f.ITS_CHAIN], line[f.ITS_COUNTED])
        return found if before >= number == line[f.NUMBER] and not overwritten else None

    def waiting(self, rank: int, number: int) -> Call | None:
        """What a rank says of the call with that number, if it waits in it, or failed while it did."""
        notice = self.notice(rank)
        calls = [*notice.get("waits", ()), *notice.get("failed", ())]
        return next((one for one in calls if (one["key"], one["lane"], one["number"]) == (self.key, self.lane, number)), None)

    def said_of(self, rank: int, number: int, since: float) -> bool:
        """Whether a rank has said of the call with that number what it can: what it is, that it has ended, or which other one keeps it.

        The last only by what it has said since then, on the clock `time.monotonic`.
        """
        if self.waiting(rank, number) is not None or self.through(rank, number):
            return True
        begun, notice = self.begun(rank), self.notice(rank)
        kept = bool(notice.get("waits") or notice.get("failed")) and begun is not None and begun.begun < number
        return kept and self.heard_at(rank) > since

    def failures(self) -> list[Call]:
        """What ranks say has failed on the communicator, the first one first."""
        said = [one for rank in self._on.near for one in self.notice(rank).get("failed", ())]
        said += [self._on.control_plane.failed[self.key]] if self._on.control_plane and self.key in self._on.control_plane.failed else []
        return sorted((one for one in said if one["key"] == self.key), key=failure_order)

    def _told(self, rank: int) -> dict[str, Any]:
        return self._on.control_plane.answer(self.key, self.lane, rank) if self._on.control_plane else {}

    def _heard_of(self, rank: int) -> dict[str, Any]:
        """The latest that it has said on whatever message context of the communicator."""
        return self._on.control_plane.answer(self.key, None, rank) if self._on.control_plane else {}

    def answer(self, rank: int) -> dict[str, Any]:
        """What is known of a rank that shares memory with this one, for those that do not."""
        import json  # what ranks of one node do not need

        notice, state = self.notice(rank), RUNNING if rank == self._on.rank else self.state(rank)
        begun, overall = self.begun(rank), self.overall(rank)  # after what it says: it may have left once this call had ended
        assert begun is not None
        notice = json.loads(fitting(notice))  # as those of others are, which are read where they have little room
        numbers = range(max(1, begun.begun - f.REMEMBERED + 1), begun.begun + 1)
        found = [(number, self.remembered(rank, number)) for number in numbers]
        return {
            "rank": rank, "state": state, "begun": begun, "overall": overall, "blocking": self.in_blocking_call(rank),
            "notice": notice, "library": self.in_library(rank),
            "calls": {number: [one.signature.word, *one[1:]] for number, one in found if one is not None},
        }  # fmt: skip
