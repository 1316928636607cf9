"""The control plane of a team: ranks that share no memory ask and tell each other by control messages, while a call waits or has failed.

The messages travel on a tag of their own of the team's private communicator. A rank answers while it waits in a call of hpcoll's itself.
Otherwise a thread answers five times a second, where the MPI library lets several threads call it. A rank answers for itself and for the
ranks of its node, so that a rank which is stopped, or gone, is known. Nothing travels while all goes well, until ranks end.
"""

import contextlib
import heapq
import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mpi4py import MPI

from hpcoll.comm.diagnosis.control_messages import ControlMessages
from hpcoll.comm.requests.progress_thread import CONTROL_LOCK
from hpcoll.comm.status.blocked_call import BlockedCall
from hpcoll.comm.team.channel import Answer, Channel
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.transports.mpi import control_tag, may_call

_NEWS_S = 0.2  # least from one time that others are told who has ended to the next
_AGAIN_S, _MOST_S = 0.1, 2.0  # between two questions to the same rank: at first, and at most
_SILENT_S = 1.0  # from a question on in which a rank that runs answers
_MOST_ASKED = 64  # ranks at once
_MOST_KEPT = 16  # communicators that are gone
_BASE = 8  # of the distances at which a rank tells others of a failure: of n ranks it tells 7 log_8 n, and all hear it in log_8 n steps
_MOST_HOW = 500  # characters of what many ranks are told of how one has ended
_NEIGHBOURS = 2  # that are asked about a rank which does not answer

# key of a communicator, index of a message context, and answers about ranks
Answers: TypeAlias = tuple[str, int, list[Answer]]
control_planes: "list[ControlPlane]" = []  # that have not ended; copied in one go, while other threads make some


class ControlPlane(Channel):
    """The control plane of a team, some of whose ranks share no memory with this one.

    Args:
        resources: Resources of one of its communicators.
        answer: Returns the answer about a rank of this node on a message context, by its index; None where nothing is known.
        now: Returns the time in seconds.

    Attributes:
        resources: Resources of all its communicators, by key.
    """

    def __init__(
        self,
        resources: Resources,
        answer: Callable[[Resources, int, int], Answer | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._now = now
        self._comm = resources.comm
        self._logs = resources.team.logs
        self._hosts = resources.topology.hosts
        self._messages = ControlMessages(resources.comm, control_tag())
        self._answer = answer
        # the latest on a message context, and on any
        self._answers: dict[tuple[str, int | None, int], Answer] = {}
        # when, and how long until the next time
        self._asked: dict[tuple[str, int, int], tuple[float, float]] = {}
        # what was known of this rank on communicators that are gone
        self._kept: dict[str, dict[int, Answers]] = {}
        # of ranks of which nothing was heard since: when they were asked first
        self._unanswered: dict[int, float] = {}
        self._ends: dict[int, Answer] = {}  # of ranks that have ended, what is said of that
        self._news = list[Answer]()  # of these, not yet passed on
        self._told_at = 0.0
        self.resources: weakref.WeakValueDictionary[str, Resources] = weakref.WeakValueDictionary()
        self._over = self._serving = False
        control_planes.append(self)

    def add(self, resources: Resources) -> None:
        """Serve one more communicator; what is known about those that are gone is forgotten."""
        self.resources[resources.key] = resources
        tables: tuple[dict[Any, Any], ...] = (self._answers, self._asked)
        for known in tables:
            for about in list(known):  # in one go: other threads may hear of ranks
                if about[0] not in self.resources:
                    known.pop(about, None)
        if resources.key in self.failed:  # another rank's first call, before this one was ready
            resources.set_abort_flag()

    def remove(self, key: str) -> None:
        """Forget a communicator; where a call has failed on it, others may still ask what this rank did."""
        with CONTROL_LOCK:
            resources = self.resources.get(key)
            if resources is not None and resources.aborted_by is not None:
                lanes = [message_context.log.index for message_context in resources.every_message_context()]
                self._kept[key] = {lane: self._known(key, lane, resources.rank) for lane in lanes}
            while len(self._kept) > _MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self.resources.pop(key, None)

    @property
    def answers_always(self) -> bool:
        """Ranks answer while they compute, too, if the MPI library lets a thread call it."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def latest(self, key: str, lane: int | None, rank: int) -> Answer:
        """Return the latest answer about a rank; of one that has ended, what is told of that."""
        answer = self._answers.get((key, lane, rank), {})
        end = self._ends.get(rank)
        if end is None:
            return answer
        answer = answer | {"rank": rank, "state": "", "notice": {"left": end["how"]}, "heard": math.inf}
        for index, begun, ended in end["calls"]:
            if index == lane:
                answer["begun"] = begun, ended, end["when"]
        return answer

    def heard_of(self, key: str, lane: int) -> list[int]:
        """Return the ranks of which anything was heard; another thread may be hearing more."""
        heard = [rank for *about, rank in list(self._answers) if about == [key, lane]]
        return [*self._ends, *(rank for rank in heard if rank not in self._ends)]

    def ask(self, key: str, lane: int, ranks: Sequence[int], since: float = 0.0) -> None:
        """Ask far ranks, and the neighbours of those that are late with an answer."""
        now = self._now()
        never = (0.0, _AGAIN_S)
        asked_before = [
            (*self._asked.get((key, lane, rank), never), rank)
            for rank in dict.fromkeys(ranks)
            if rank not in self._ends
        ]
        due = (
            question for question in asked_before if now - question[0] >= question[1] or question[0] < since
        )
        for asked, pause, rank in heapq.nsmallest(_MOST_ASKED, due):  # those that were asked longest ago
            self._asked[key, lane, rank] = now, _AGAIN_S if asked < since else min(2 * pause, _MOST_S)
            late = now - self._unanswered.setdefault(rank, now) >= _AGAIN_S
            host = self._hosts[rank] if late else None
            neighbours = [peer for peer, its in enumerate(self._hosts) if its == host and peer != rank]
            for neighbour in (rank, *neighbours[:_NEIGHBOURS]):
                self._send(neighbour, {"ask": [key, lane, rank]})

    def is_silent(self, rank: int) -> bool:
        """Say whether a rank was asked and has not answered in time."""
        asked = self._unanswered.get(rank) if self.answers_always and rank not in self._ends else None
        return asked is not None and self._now() - asked > _SILENT_S

    def broadcast_failure(self, call: BlockedCall) -> None:
        """Tell some ranks of a call that has failed, who tell the others, and how far this rank is."""
        known = self._known(call.key, call.lane, self._comm.rank)
        for rank in self._relays():
            self._send(rank, {"failed": call.as_json(), "known": [known]})

    def leave(self, how: str) -> None:
        """Tell some ranks, who tell the others, that this one ends, how far it is, and who else has ended."""
        calls = [(lane, *log.begun_and_ended) for lane, log in list(self._logs.items())]
        self._hear_of_ends(
            [{"rank": self._comm.rank, "how": how[:_MOST_HOW], "when": time.time(), "calls": calls}]
        )
        self._pass_on()

    def all_sent(self) -> bool:
        """Say whether all that this rank had to tell is on its way."""
        with CONTROL_LOCK:
            return self._over or self._messages.all_sent()

    def _relays(self) -> list[int]:
        """Return the ranks to which this one sends what all shall hear; in place of one that has ended the next that has not."""
        mine = self._comm.rank
        n = len(self._hosts)
        beyond = (range(mine + distance, mine + n) for distance in distances(n))
        peers = (next((rank % n for rank in ranks if rank % n not in self._ends), mine) for ranks in beyond)
        return [rank for rank in dict.fromkeys(peers) if rank != mine]

    def _known(self, key: str, lane: int, rank: int) -> Answers:
        """Return the answer about a rank of this node."""
        resources = self.resources.get(key)
        kept = self._kept.get(key, {})
        if resources is None and lane in kept and rank == self._comm.rank:
            return kept[lane]
        answer = (
            self._answer(resources, lane, rank) if resources is not None and rank in resources.near else None
        )
        return key, lane, [] if answer is None else [answer]

    def _send(self, rank: int, what: Answer) -> None:
        with CONTROL_LOCK:
            if not self._over and may_call():
                self._messages.send(rank, what)

    def serve(self) -> None:
        """Read what has come, and answer questions; return at once where another thread does, or a frame further up in this one."""
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
            self._messages.all_sent()
            for source, what in self._messages.come():
                self._hear(source, what)
        except MPI.Exception as error:  # a rank has failed: the library receives nothing from anybody before it is told that this is known
            if hasattr(self._comm, "Ack_failed") and error.Get_error_class() != MPI.ERR_COMM:
                with contextlib.suppress(MPI.Exception, NotImplementedError):
                    self._comm.Ack_failed()
        finally:
            self._serving = False
        if self._news and self._now() - self._told_at >= _NEWS_S:
            self._pass_on()

    def _hear(self, source: int, what: Answer) -> None:
        self._unanswered.pop(source, None)
        for key, lane, answers in what.get("known", ()):
            for answer in answers:
                heard = answer | {"heard": self._now()}
                self._unanswered.pop(answer["rank"], None)
                self._answers[key, lane, answer["rank"]] = self._answers[key, None, answer["rank"]] = heard
        if "ask" in what:
            self._send(source, {"known": [self._known(*what["ask"])]})
        if "failed" in what:
            self._hear_of_failure(BlockedCall.from_json(what["failed"]))
        self._hear_of_ends(what.get("ended", ()))

    def _hear_of_ends(self, ends: Sequence[Answer]) -> None:
        """Note what is new of ranks that have ended."""
        new = [end for end in ends if end["rank"] not in self._ends]
        self._ends |= {end["rank"]: end for end in new}
        self._news += new

    def _pass_on(self) -> None:
        """Tell others what is new of ranks that have ended; where many end at once, many are told of in one go."""
        news = self._news
        self._news = []
        self._told_at = self._now()
        for rank in self._relays() if news else ():
            self._send(rank, {"ended": news})

    def _hear_of_failure(self, call: BlockedCall) -> None:
        """Pass on what is new: of several failures of a communicator the first one counts."""
        known = self.failed.get(call.key)
        resources = self.resources.get(call.key)
        if known is None or call.order < known.order:
            self.failed[call.key] = call
            for rank in self._relays():
                self._send(rank, {"failed": call.as_json()})
        if resources is not None:
            resources.set_abort_flag()

    def end(self) -> None:
        """Count the messages of all ranks, and send no more."""
        with CONTROL_LOCK:
            if not self._over:
                control_planes.remove(self)
                self._messages.close()
            self._over = True

    def has_ended(self) -> bool:
        """Say whether all messages of all ranks have come."""
        with CONTROL_LOCK:
            return self._messages.all_came()


def distances(nranks: int) -> list[int]:
    """Return the distances from a rank to those that it tells of a failure; they tell others, until all have heard.

    >>> distances(5), distances(20)
    ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 16])
    """
    powers = [_BASE**i for i in range(nranks.bit_length())]
    return [times * power for power in powers for times in range(1, _BASE) if times * power < nranks]
