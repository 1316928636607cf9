"""The state of a rank's peers on one message context: which calls each has begun and ended, and in which it waits.

Of ranks with which it shares memory a rank reads that there, at once. Of others it has what they, or their neighbours, have last answered
(`hpcoll.comm.diagnosis.control_plane`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hpcoll.base.machine import RUNNING, state_of
from hpcoll.comm.arguments.methods import NUMBERS
from hpcoll.comm.plans.signature import Signature
from hpcoll.comm.status.blocked_call import BlockedCall, Status
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.channel import Answer
from hpcoll.comm.team.resources import Resources, live_contexts
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog, InLibrary
from hpcoll.runtime.telemetry.status_page import fitting

_NAMES = {number: name for name, number in NUMBERS.items()}


def since_1970(monotonic_s: float) -> float:
    """Return a time on the clock `time.monotonic` in seconds since 1970, which other machines can read."""
    return monotonic_s + time.time() - time.monotonic()


class Progress(NamedTuple):
    """The progress of a rank with its calls.

    Attributes:
        begun: Number of its latest call.
        ended: Number of the latest call that has ended.
        when: When that ended, in seconds since 1970.
    """

    begun: int
    ended: int
    when: float


class LatestCall(NamedTuple):
    """The latest call of a rank: index of its message context, whether the rank is inside, and the rest as of `Progress`."""

    lane: int
    inside: bool
    begun: int
    ended: int
    when: float


class PastCall(NamedTuple):
    """A call as a rank has made it.

    Attributes:
        signature: Its signature.
        ncounted: Its count as the engine has it.
        chain: Digest of all calls before it.
        counted: Digest of all its counts.
    """

    signature: Signature
    ncounted: int
    chain: int
    counted: int

    def alike(self, other: "PastCall") -> bool:
        """Say whether two ranks may go on with these calls."""
        same = self.counted == other.counted or not self.signature.counts
        return same and self.signature.compared == other.signature.compared and self.chain == other.chain


class PeerState:
    """The state of a rank's peers on one message context, as far as this rank knows it.

    Args:
        resources: Resources of the communicator.
        log: Log of the calls on the message context.

    Attributes:
        resources: As given.
        key: Key of the communicator, alike on all ranks.
        lane: Index of the message context, alike on all ranks.
        log: As given.
    """

    def __init__(self, resources: Resources, log: CallLog) -> None:
        self.resources = resources
        self.key = resources.key
        self.lane = log.index
        self.log = log
        self._near = resources.near if len(log.histories) == len(resources.near) else {resources.rank: 0}
        self._channel = resources.team.channel

    def known_ranks(self) -> list[int]:
        """Return the ranks of which anything is known, in order."""
        return sorted({*self.resources.near, *self._channel.heard_of(self.key, self.lane)})

    def holds_for_all(self, holds: Callable[[int], bool], since: float = 0.0) -> bool:
        """Say whether something is known to hold for all ranks; the first of the others are asked, as in `ask`."""
        others = [rank for rank in range(self.resources.nranks) if not holds(rank)]
        self.ask(others, since)
        return not others

    def ask(self, ranks: list[int], since: float = 0.0) -> None:
        """Ask the ranks that share no memory with this one; their answers are known some time later.

        Args:
            ranks: Ranks, each of which is asked now and then.
            since: A rank that was not asked since this time, on the clock `time.monotonic`, is asked at once.
        """
        far = [rank for rank in ranks if rank not in self.resources.near]
        if far:
            self._channel.ask(self.key, self.lane, far, since)

    def heard_at(self, rank: int) -> float:
        """Return when a rank was last heard, on the clock `time.monotonic`; 0: never, infinity: it is seen in shared memory."""
        return (
            math.inf if rank in self.resources.near else float(self._latest_anywhere(rank).get("heard", 0.0))
        )

    def status(self, rank: int) -> Status:
        """Return what a rank says of itself; times are in seconds since 1970."""
        if rank not in self.resources.near:
            return Status.from_json(self._latest_anywhere(rank).get("notice", {}))
        slots = self.resources.node.status_slots
        status = RANK_STATUS.status()
        if rank != self.resources.rank and slots is not None:
            status = Status.from_json(slots.read(self.resources.near[rank]))
        return replace(
            status, waits=tuple(replace(wait, since=since_1970(wait.since)) for wait in status.waits)
        )

    def process_state(self, rank: int) -> str:
        """Return the state of a rank's process; empty where it is not known."""
        if rank in self.resources.near:
            return state_of(self.resources.pids[rank])
        return str(self._latest_anywhere(rank).get("state", ""))

    def is_known(self, rank: int, *, anywhere: bool = False) -> bool:
        """Say whether anything is known of a rank, on this message context or on any."""
        return rank in self.resources.near or bool(
            self._latest_anywhere(rank) if anywhere else self._latest(rank)
        )

    def is_silent(self, rank: int) -> bool:
        """Say whether a rank does not answer though it should."""
        return self._channel.is_silent(rank)

    def of(self, call: BlockedCall) -> "PeerState | None":
        """Return what is known about the message context of another call; None where this rank has none of it."""
        for resources in (self.resources, *(context.resources for context in list(live_contexts))):
            log = resources.team.logs.get(call.lane) if resources.key == call.key else None
            if log is not None:
                return PeerState(resources, log)
        return None

    def progress(self, rank: int) -> Progress | None:
        """Return how far a rank is; None where that is not known."""
        if rank not in self._near:
            return Progress(*self._latest(rank)["begun"]) if "begun" in self._latest(rank) else None
        begun, ended, when = self.log.histories[self._near[rank], 0, : f.ENDED_AT + 1].tolist()
        return Progress(begun, ended, since_1970(1e-9 * when))

    def has_ended(self, rank: int, number: int) -> bool:
        """Say whether a rank is known to have ended the call with that number."""
        progress = self.progress(rank)
        return progress is not None and progress.ended >= number

    def latest(self, rank: int) -> LatestCall | None:
        """Return the call in which a rank is, or that it ended last, on whatever message context; None where that is not known."""
        if rank not in self.resources.near:
            answer = self._latest_anywhere(rank).get("latest")
            return None if answer is None else LatestCall(*answer)
        calls = []
        for log in {
            self.log,
            *(message_context.log for message_context in self.resources.every_message_context()),
        }:
            progress = PeerState(self.resources, log).progress(rank)
            if progress is not None:
                waits = log.index in (self.resources.log.index, self.lane)
                calls.append(LatestCall(log.index, waits and progress.begun > progress.ended, *progress))
        return max(calls, key=lambda call: (call.inside, call.ended > 0, call.when), default=None)

    def in_library(self, rank: int) -> InLibrary | None:
        """Return how far a rank is with blocking collectives of the MPI library's own; None where that is not known."""
        if rank not in self.resources.near:
            return InLibrary(*self._latest(rank)["library"]) if "library" in self._latest(rank) else None
        return self.resources.log.in_library(self.resources.near[rank])

    def library_call(self, rank: int) -> str:
        """Return the collective of the MPI library's own in which a rank is, in words; empty where it is in none that is known."""
        library = self.in_library(rank)
        if library is None or library.begun == library.ended:
            return ""
        return f"{_NAMES[library.method]}, which the MPI library serves"

    def past_call(self, rank: int, number: int) -> PastCall | None:
        """Return the call that a rank began with a number; None where it has not begun it or has forgotten it, or that is not known."""
        if rank not in self._near:
            told = self._latest(rank).get("calls", {}).get(str(number))
            return None if told is None else PastCall(Signature.unpacked(told[0]), *told[1:])
        if number < 1:
            return None
        history = self.log.histories[self._near[rank]]
        # for each reading Python takes longer than a processor looks ahead: they are in this order
        before = int(history[0, f.BEGUN])
        line = history[1 + number % f.REMEMBERED].tolist()
        # or being so, which is told when it is done
        overwritten = number + f.REMEMBERED <= int(history[0, f.BEGUN]) + 1
        if overwritten or not before >= number == line[f.NUMBER]:
            return None
        signature = Signature.unpacked(line[f.ITS_SIGNATURE])
        return PastCall(signature, line[f.ITS_COUNT], line[f.ITS_CHAIN], line[f.ITS_COUNTED])

    def blocked_call(self, rank: int, number: int) -> BlockedCall | None:
        """Return what a rank says of the call with a number, if it waits in it, or failed while it did."""
        status = self.status(rank)
        place = (self.key, self.lane, number)
        return next((call for call in status.waits + status.failed if call.place == place), None)

    def has_answered(self, rank: int, number: int, since: float) -> bool:
        """Say whether a rank has said of the call with a number all that it can.

        It has said what the call is, that it has ended, or, since a time on the clock `time.monotonic`, which other call keeps it.
        """
        progress = self.progress(rank)
        status = self.status(rank)
        # it may have yet to be waited for
        early = (
            self.resources.form(self.lane) == "persistent"
            and progress is not None
            and progress.begun == number
        )
        if self.blocked_call(rank, number) is not None or (self.has_ended(rank, number) and not early):
            return True
        kept = bool(status.waits or status.failed) and progress is not None and progress.begun < number
        return kept and self.heard_at(rank) > since

    def failures(self) -> list[BlockedCall]:
        """Return the calls that ranks say have failed on the communicator, the first one first."""
        said = [failure for rank in self.resources.near for failure in self.status(rank).failed]
        said += [self._channel.failed[self.key]] if self.key in self._channel.failed else []
        return sorted(
            (failure for failure in said if failure.key == self.key), key=lambda failure: failure.order
        )

    def _latest(self, rank: int) -> Answer:
        return self._channel.latest(self.key, self.lane, rank)

    def _latest_anywhere(self, rank: int) -> Answer:
        """The latest answer about a rank on whatever message context of the communicator."""
        return self._channel.latest(self.key, None, rank)

    def answer(self, rank: int) -> Answer:
        """Return the answer about a rank that shares memory with this one, for those that do not."""
        import json  # what ranks of one node do not need

        status = self.status(rank)
        state = RUNNING if rank == self.resources.rank else self.process_state(rank)
        # after its status: it may have left once this call had ended
        progress = self.progress(rank)
        latest = self.latest(rank)
        assert progress is not None
        numbers = range(max(1, progress.begun - f.REMEMBERED + 1), progress.begun + 1)
        past = {number: self.past_call(rank, number) for number in numbers}
        return {
            "rank": rank,
            "state": state,
            "begun": progress,
            "latest": latest,
            # as that of others is, which is read where it has little room
            "notice": json.loads(fitting(status.as_json())),
            "library": self.in_library(rank),
            "calls": {number: [call.signature.word, *call[1:]] for number, call in past.items() if call},
        }


def answer_about(resources: Resources, lane: int, rank: int) -> Answer | None:
    """Return the answer about a rank of this node on a message context; None where nothing is known of it."""
    log = resources.team.logs.get(lane)
    known = None if log is None else PeerState(resources, log)
    return None if known is None or known.progress(rank) is None else known.answer(rank)
