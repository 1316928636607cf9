"""Inquiries: what ranks that share no memory ask and tell each other by messages, while a call waits or when one has failed.

They travel on a tag of their own of the group's private communicator. A rank answers while it waits in a call of hpcoll's itself, and five
times a second by a thread otherwise, where the MPI library lets several threads call it: for itself, and for the ranks of its node, so that
it is known of one that is stopped, or gone. Nothing travels while all goes well.
"""

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.group import PARTING
from hpcoll.comm.knowledge import Knowledge
from hpcoll.comm.notice import NOTICE, Call, order
from hpcoll.comm.resources import Resources
from hpcoll.runtime.transports.mpi import control_tag, may_call
from hpcoll.selection.config import log

_EVERY_S = 0.2  # between two looks of the thread
_AGAIN_S, _MOST_S = 0.1, 2.0  # between two questions to the same rank: at first, and at most
_MOST_ASKED = 64  # ranks at once
_BASE = 8  # of the distances at which a rank tells others of a failure: of n ranks it tells 7 log_8 n, and all hear it in log_8 n steps
_FIRST_NAP_S, _LAST_NAP_S = 1e-4, 1e-2
_NEIGHBOURS = 2  # that are asked about a rank which does not answer
_ALL: "list[Inquiry]" = []  # copied in one go, while other threads make some
_unsent: list[tuple[MPI.Request, bytes]] = []  # of groups that are gone: the library may read them yet
_attending = threading.Lock()


class Inquiry:
    """Of one group, some of whose ranks share no memory with this one.

    Args:
        on: Resources of one of its communicators.
    Attributes:
        resources: Of all its communicators, by their keys.
        failed: The first call that failed elsewhere, as far as was heard, by the key of its communicator.
    """

    def __init__(self, on: Resources) -> None:
        self._comm, self._hosts = on.comm, [one.host for one in on.group.processes]
        self._tag, self._lock = control_tag(), threading.RLock()
        self._answers: dict[tuple[str, int, int], dict[str, Any]] = {}
        self._asked: dict[tuple[str, int, int], tuple[float, float]] = {}  # when, and how long until the next time
        self._sending: list[tuple[MPI.Request, bytes]] = []
        self.resources: weakref.WeakValueDictionary[str, Resources] = weakref.WeakValueDictionary()
        self.failed: dict[str, Call] = {}
        self._over = False
        self._friends = [(on.rank + distance) % on.nranks for distance in distances(on.nranks)]
        _ALL.append(self)
        _listener.wake()

    def add(self, on: Resources) -> None:
        """One more communicator; what is known about those that are gone is forgotten."""
        self.resources[on.key] = on
        self._answers = {about: one for about, one in list(self._answers.items()) if about[0] in self.resources}
        self._asked = {about: one for about, one in list(self._asked.items()) if about[0] in self.resources}
        if on.key in self.failed:  # another rank's first call, before this one was ready
            _alarm(on)

    def answer(self, key: str, lane: int, rank: int) -> dict[str, Any]:
        """What was last heard of a rank; nothing where nothing was."""
        return self._answers.get((key, lane, rank), {})

    def heard(self, key: str, lane: int) -> list[int]:
        """Ranks of whom anything was heard; another thread may be hearing more."""
        return [rank for *about, rank in list(self._answers) if about == [key, lane]]

    def ask(self, key: str, lane: int, ranks: Sequence[int]) -> None:
        """Ask far ranks how far they are on a message context, each at growing intervals; of those that are silent their neighbours."""
        now = time.monotonic()
        for rank in ranks[:_MOST_ASKED]:
            asked, pause = self._asked.get((key, lane, rank), (0.0, _AGAIN_S))
            if now - asked < pause:
                continue
            self._asked[key, lane, rank] = now, min(2 * pause, _MOST_S)
            silent = pause > _AGAIN_S and self._answers.get((key, lane, rank), {}).get("heard", 0.0) < asked
            neighbours = [one for one, host in enumerate(self._hosts) if host == self._hosts[rank] and one != rank] if silent else []
            for one in (rank, *neighbours[:_NEIGHBOURS]):
                self._send(one, {"ask": [key, lane, rank]})

    def tell(self, call: Call) -> None:
        """Tell other ranks of a call that has failed, which tell others, and what this rank knows of itself."""
        known = self._known(call["key"], call["lane"], self._comm.rank)
        for rank in self._friends:
            self._send(rank, {"failed": call, "known": [known]})

    def _known(self, key: str, lane: int, rank: int) -> tuple[str, int, list[dict[str, Any]]]:
        """What is known here of a rank of this node."""
        on = self.resources.get(key)
        log_of_calls = on.group.logs.get(lane) if on is not None and rank in on.near else None
        known = Knowledge(on, log_of_calls) if on is not None and log_of_calls is not None else None
        return key, lane, [] if known is None or known.begun(rank) is None else [known.answer(rank)]

    def _send(self, rank: int, what: dict[str, Any]) -> None:
        text = json.dumps(what).encode()
        try:
            with self._lock:
                if not self._over and may_call():
                    self._sending.append((self._comm.Isend([text, MPI.BYTE], rank, self._tag), text))
        except MPI.Exception as error:  # it has failed
            log.debug("nothing can be sent to rank %d: %s", rank, error)

    def serve(self) -> None:
        """Read what has come, and answer questions; returns at once where another thread does so."""
        if not may_call() or not self._lock.acquire(blocking=False):
            return
        try:
            if self._over:  # while this thread was about to look
                return
            self._sending = [one for one in self._sending if not one[0].Test()]
            status = MPI.Status()
            while self._comm.Iprobe(MPI.ANY_SOURCE, self._tag, status):
                text = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                self._comm.Recv([text, MPI.BYTE], status.source, self._tag)
                self._hear(status.source, json.loads(text.tobytes()))
        except MPI.Exception as error:  # a rank has failed: the library receives nothing from anybody before it is told that this is known
            if hasattr(self._comm, "Ack_failed") and error.Get_error_class() != MPI.ERR_COMM:
                self._acknowledge()
        finally:
            self._lock.release()

    def _acknowledge(self) -> None:
        try:
            self._comm.Ack_failed()
        except (MPI.Exception, NotImplementedError) as error:
            log.debug("failures of ranks cannot be acknowledged: %s", error)

    def _hear(self, source: int, what: dict[str, Any]) -> None:
        for key, lane, found in what.get("known", ()):
            for one in found:
                self._answers[key, lane, one["rank"]] = one | {"heard": time.monotonic()}
        if "ask" in what:
            self._send(source, {"known": [self._known(*what["ask"])]})
        if "failed" in what:
            self._hear_of_failure(what["failed"])

    def _hear_of_failure(self, call: Call) -> None:
        """Pass on what is new: of several failures of a communicator the first one counts."""
        key, on = call["key"], self.resources.get(call["key"])
        known = self.failed.get(key)
        if known is None or order(call) < order(known):
            self.failed[key] = call
            for rank in self._friends:
                self._send(rank, {"failed": call})
        if on is not None:
            _alarm(on)

    def end(self) -> None:
        """Its communicator is about to be freed."""
        with self._lock:
            if not self._over:
                _ALL.remove(self)
                _unsent.extend(self._sending)
            self._over = True


def distances(nranks: int) -> list[int]:
    """From a rank to those that it tells of a failure; any other is reached by some of them, one after another.

    >>> distances(5), distances(20)
    ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 16])
    """
    powers = [_BASE**i for i in range(nranks.bit_length())]
    return [times * power for power in powers for times in range(1, _BASE) if times * power < nranks]


def _alarm(on: Resources) -> None:
    for one in on.every_message_context():
        one.log.alarm[0] = 1


def serve_all() -> None:
    """Answer what ranks of other nodes ask, of whatever group."""
    for one in list(_ALL):
        one.serve()


class _Listener:
    """The thread that answers while the program computes."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()

    def wake(self) -> None:
        """Start it, once, where the library lets it call."""
        if self._thread is None and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._run, name="hpcoll-listener", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(_EVERY_S):
            try:
                serve_all()
            except Exception:
                log.exception("a question of another rank got no answer")

    def end(self) -> None:
        """Stop it, before MPI ends."""
        self._ends.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


_listener = _Listener()


def attend(on: Resources) -> None:
    """Let a communicator's ranks ask each other, where some share no memory."""
    with _attending:
        if on.group.inquiry is None:
            on.group.inquiry = Inquiry(on)
    on.group.inquiry.add(on)


def leave() -> None:
    """Leave no earlier than all others of COMM_WORLD: whoever waits for this rank hears until then that it has left.

    MPI_Finalize, which comes next, waits for them as well. Where hpcoll serves only communicators of some ranks, nobody is waited for.
    """
    _listener.end()
    if MPI.Is_finalized():
        return
    for _, comm in sorted(PARTING.items()):  # threads may have made them in another order
        with contextlib.suppress(MPI.Exception):
            request, nap_s = comm.Ibarrier(), _FIRST_NAP_S
            while not request.Test():
                serve_all()
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, _LAST_NAP_S)


NOTICE.at_end.append(leave)
