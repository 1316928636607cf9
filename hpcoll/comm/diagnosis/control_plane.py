"""Inquiries: what ranks that share no memory ask and tell each other by messages, while a call waits or when one has failed.

They travel on a tag of their own of the group's private communicator. A rank answers while it waits in a call of hpcoll's itself, and five
times a second by a thread otherwise, where the MPI library lets several threads call it: for itself, and for the ranks of its node, so that
it is known of one that is stopped, or gone. Nothing travels while all goes well, until ranks end.
"""

import heapq
import math
import time
import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

from mpi4py import MPI

from hpcoll.comm.diagnosis.control_messages import ControlMessages
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.requests.progress_thread import CONTROL_LOCK
from hpcoll.comm.status.rank_status import Call, failure_order
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.transports.mpi import control_tag, may_call
from hpcoll.selection.config import log

_NEWS_S = 0.2  # least from one time that others are told who has ended to the next
_AGAIN_S, _MOST_S = 0.1, 2.0  # between two questions to the same rank: at first, and at most
_SILENT_S = 1.0  # from a question on in which a rank that runs answers
_MOST_ASKED = 64  # ranks at once
_MOST_KEPT = 16  # communicators that are gone
_BASE = 8  # of the distances at which a rank tells others of a failure: of n ranks it tells 7 log_8 n, and all hear it in log_8 n steps
_MOST_HOW = 500  # characters of what many ranks are told of how one has ended
_NEIGHBOURS = 2  # that are asked about a rank which does not answer
Known: TypeAlias = tuple[str, int, list[dict[str, Any]]]  # the key of a communicator, one of its message contexts, and answers about ranks
control_planes: "list[ControlPlane]" = []  # that have not ended; copied in one go, while other threads make some


class ControlPlane:
    """Of one group, some of whose ranks share no memory with this one.

    Args:
        on: Resources of one of its communicators.

    Attributes:
        resources: Of all its communicators, by their keys.
        failed: The first call that failed elsewhere, as far as was heard, by the key of its communicator.
    """

    def __init__(self, on: Resources) -> None:
        self._comm, self._logs, self._hosts = on.comm, on.team.logs, [one.host for one in on.team.processes]
        self._letters = ControlMessages(on.comm, control_tag())
        self._answers: dict[tuple[str, int | None, int], dict[str, Any]] = {}  # the latest on a message context, and on any
        self._asked: dict[tuple[str, int, int], tuple[float, float]] = {}  # when, and how long until the next time
        self._kept: dict[str, dict[int, Known]] = {}  # what was known of this rank on communicators that are gone
        self._unanswered: dict[int, float] = {}  # of ranks of which nothing was heard since: when they were asked first
        self._ends: dict[int, dict[str, Any]] = {}  # of ranks that have ended, what is said of that
        self._news, self._told_at = list[dict[str, Any]](), 0.0  # of these, not yet passed on
        self.resources: weakref.WeakValueDictionary[str, Resources] = weakref.WeakValueDictionary()
        self.failed: dict[str, Call] = {}
        self._over = self._serving = False
        control_planes.append(self)

    def add(self, on: Resources) -> None:
        """One more communicator; what is known about those that are gone is forgotten."""
        self.resources[on.key] = on
        # Copies: for a list of items there are tuples to make, at which other threads may run, and may hear of ranks.
        self._answers = {about: one for about, one in self._answers.copy().items() if about[0] in self.resources}
        self._asked = {about: one for about, one in self._asked.copy().items() if about[0] in self.resources}
        if on.key in self.failed:  # another rank's first call, before this one was ready
            _alarm(on)

    def remove(self, on: Resources) -> None:
        """A communicator is gone, of which others may ask yet, if a call has failed there: no thread looks at it any more."""
        with CONTROL_LOCK:
            if on.aborted_by is not None:
                logs = [one.log for one in on.every_message_context()]
                self._kept[on.key] = {log.index: self._known(on.key, log.index, on.rank) for log in logs}
            while len(self._kept) > _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self.resources.pop(on.key, None)

    @property
    def listened(self) -> bool:
        """Whether ranks answer while they compute, too."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def answer(self, key: str, lane: int | None, rank: int) -> dict[str, Any]:
        """What was last heard of a rank, on a message context or on whichever; nothing where nothing was."""
        found, end = self._answers.get((key, lane, rank), {}), self._ends.get(rank)
        if end is None:
            return found
        calls = [{"begun": (begun, ended, end["when"])} for index, begun, ended in end["calls"] if index == lane]
        return found | {"rank": rank, "state": "", "notice": {"left": end["how"]}, "heard": math.inf} | (calls[0] if calls else {})

    def heard(self, key: str, lane: int) -> list[int]:
        """Ranks of whom anything was heard; another thread may be hearing more."""
        return [*self._ends, *(rank for *about, rank in list(self._answers) if about == [key, lane] and rank not in self._ends)]

    def ask(self, key: str, lane: int, ranks: Sequence[int], since: float = 0.0) -> None:
        """Ask far ranks how far they are on a message context, of those that are late with an answer their neighbours.

        Each is asked at growing intervals, which begin again where it was not asked since a time, on the clock `time.monotonic`.
        """
        now, never = time.monotonic(), (0.0, _AGAIN_S)
        asked_before = [(*self._asked.get((key, lane, rank), never), rank) for rank in dict.fromkeys(ranks) if rank not in self._ends]
        due = (one for one in asked_before if now - one[0] >= one[1] or one[0] < since)
        for asked, pause, rank in heapq.nsmallest(_MOST_ASKED, due):  # those that were asked longest ago
            self._asked[key, lane, rank] = now, _AGAIN_S if asked < since else min(2 * pause, _MOST_S)
            late = now - self._unanswered.setdefault(rank, now) >= _AGAIN_S
            neighbours = [one for one, host in enumerate(self._hosts) if host == self._hosts[rank] and one != rank] if late else []
            for one in (rank, *neighbours[:_NEIGHBOURS]):
                self._send(one, {"ask": [key, lane, rank]})

    def silent(self, rank: int) -> bool:
        """Whether it was asked, has not answered, and nobody else has for it, for longer than one that runs would take."""
        asked = self._unanswered.get(rank) if self.listened and rank not in self._ends else None
        return asked is not None and time.monotonic() - asked > _SILENT_S

    def tell(self, call: Call) -> None:
        """Tell other ranks of a call that has failed, which tell others, and what this rank knows of itself."""
        known = self._known(call["key"], call["lane"], self._comm.rank)
        for rank in self._friends():
            self._send(rank, {"failed": call, "known": [known]})

    def leave(self, how: str) -> None:
        """Tell other ranks, which tell others, that this one ends, how far it is, and who else has ended, as far as it knows."""
        calls = [(lane, *log.begun_and_ended) for lane, log in list(self._logs.items())]
        self._hear_of_ends([{"rank": self._comm.rank, "how": how[:_MOST_HOW], "when": time.time(), "calls": calls}])
        self._pass_on()

    def said(self) -> bool:
        """Whether all that it had to tell is on its way."""
        with CONTROL_LOCK:
            return self._over or self._letters.all_sent()

    def _friends(self) -> list[int]:
        """Those that this rank tells what all shall hear; instead of one that has ended the next that has not."""
        mine, n = self._comm.rank, len(self._hosts)
        beyond = (range(mine + distance, mine + n) for distance in distances(n))
        found = (next((one % n for one in ranks if one % n not in self._ends), mine) for ranks in beyond)
        return [rank for rank in dict.fromkeys(found) if rank != mine]

    def _known(self, key: str, lane: int, rank: int) -> Known:
        """What is known here of a rank of this node."""
        on, kept = self.resources.get(key), self._kept.get(key, {})
        if on is None and lane in kept and rank == self._comm.rank:
            return kept[lane]
        log_of_calls = on.team.logs.get(lane) if on is not None and rank in on.near else None
        known = PeerState(on, log_of_calls) if on is not None and log_of_calls is not None else None
        return key, lane, [] if known is None or known.begun(rank) is None else [known.answer(rank)]

    def _send(self, rank: int, what: dict[str, Any]) -> None:
        with CONTROL_LOCK:
            if not self._over and may_call():
                self._letters.send(rank, what)

    def serve(self) -> None:
        """Read what has come, and answer questions; returns at once where that is being done, by another thread or further up in this."""
        if not may_call() or not CONTROL_LOCK.acquire(blocking=False):
            return
        try:
            if not (self._over or self._serving):  # while this thread was about to look
                self._serve()
        finally:
            CONTROL_LOCK.release()

    def _serve(self) -> None:
        self._serving = True
        try:
            self._letters.all_sent()
            for source, what in self._letters.come():
                self._hear(source, what)
        except MPI.Exception as error:  # a rank has failed: the library receives nothing from anybody before it is told that this is known
            if hasattr(self._comm, "Ack_failed") and error.Get_error_class() != MPI.ERR_COMM:
                self._acknowledge()
        finally:
            self._serving = False
        if self._news and time.monotonic() - self._told_at >= _NEWS_S:
            self._pass_on()

    def _acknowledge(self) -> None:
        try:
            self._comm.Ack_failed()
        except (MPI.Exception, NotImplementedError) as error:
            log.debug("failures of ranks cannot be acknowledged: %s", error)

    def _hear(self, source: int, what: dict[str, Any]) -> None:
        self._unanswered.pop(source, None)
        for key, lane, found in what.get("known", ()):
            for one in found:
                heard = one | {"heard": time.monotonic()}
                self._unanswered.pop(one["rank"], None)
                self._answers[key, lane, one["rank"]] = self._answers[key, None, one["rank"]] = heard
        if "ask" in what:
            self._send(source, {"known": [self._known(*what["ask"])]})
        if "failed" in what:
            self._hear_of_failure(what["failed"])
        self._hear_of_ends(what.get("ended", ()))

    def _hear_of_ends(self, ends: Sequence[dict[str, Any]]) -> None:
        """Note what is new of ranks that have ended."""
        new = [one for one in ends if one["rank"] not in self._ends]
        self._ends |= {one["rank"]: one for one in new}
        self._news += new

    def _pass_on(self) -> None:
        """Tell others what is new of ranks that have ended; where many end at once, many are told of in one go."""
        news, self._news, self._told_at = self._news, [], time.monotonic()
        for rank in self._friends() if news else ():
            self._send(rank, {"ended": news})

    def _hear_of_failure(self, call: Call) -> None:
        """Pass on what is new: of several failures of a communicator the first one counts."""
        key, on = call["key"], self.resources.get(call["key"])
        known = self.failed.get(key)
        if known is None or failure_order(call) < failure_order(known):
            self.failed[key] = call
            for rank in self._friends():
                self._send(rank, {"failed": call})
        if on is not None:
            _alarm(on)

    def end(self) -> None:
        """Its communicator is about to be freed: send no more. All ranks call this, and nobody waits."""
        with CONTROL_LOCK:
            if not self._over:
                control_planes.remove(self)
                self._letters.close()
            self._over = True

    def has_ended(self) -> bool:
        """Whether all ranks have called that, and nothing is under way any more."""
        with CONTROL_LOCK:
            return self._letters.all_came()


def distances(nranks: int) -> list[int]:
    """From a rank to those that it tells of a failure; any other is reached by some of them, one after another.

    >>> distances(5), distances(20)
    ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 16])
    """
    powers = [_BASE**i for i in range(nranks.bit_length())]
    return [times * power for power in powers for times in range(1, _BASE) if times * power < nranks]


def _alarm(on: Resources) -> None:
    for one in on.every_message_context():
        one.log.set_abort_flag(on.rank)
