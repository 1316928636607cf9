"""Ranks that share no memory: whom they ask, how they take in what others send, and how all hear that one has ended."""

import random
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcoll.comm.diagnosis import control_messages, control_plane
from hpcoll.comm.diagnosis.control_messages import ControlMessages
from hpcoll.comm.diagnosis.control_plane import ControlPlane
from hpcoll.comm.diagnosis.peer_state import PeerState, answer_about
from hpcoll.comm.status.blocked_call import Status
from hpcoll.runtime.telemetry.call_log import CallLog

KEY = "1.2.3"


class Request:
    """Of a message, of which each test is asked for in turn."""

    def __init__(self, *over: bool | Exception) -> None:
        self._over = deque(over)

    def Test(self) -> bool:
        over = self._over.popleft() if len(self._over) > 1 else self._over[0]
        if isinstance(over, Exception):
            raise over
        return over


class Group(SimpleNamespace):
    """Told from others by what it is, as the library's."""

    __hash__ = object.__hash__


class Comm:
    """A communicator of ranks in one process, whose messages are there at once."""

    def __init__(self, rank: int, boxes: list[deque[tuple[int, bytes]]]) -> None:
        self.rank, self._boxes = rank, boxes
        self.nsent = 0

    def Isend(self, buffer: list[Any], rank: int, tag: int) -> Request:
        self._boxes[rank].append((self.rank, buffer[0]))
        self.nsent += 1
        return Request(True)

    def Improbe(self, source: int, tag: int, status: Any) -> Any:
        if not self._boxes[self.rank]:
            return None
        status.source, text = self._boxes[self.rank].popleft()
        status.Get_count = lambda _: len(text)
        return SimpleNamespace(
            Irecv=lambda buffer: (
                buffer[0].__setitem__(slice(None), np.frombuffer(text, np.uint8)),
                Request(True),
            )[1]
        )


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(control_plane, "may_call", lambda: True)
    monkeypatch.setattr(control_plane, "control_tag", lambda: 7)
    monkeypatch.setattr(
        control_messages,
        "MPI",
        SimpleNamespace(Status=SimpleNamespace, ANY_SOURCE=-1, BYTE=None, Exception=MPI.Exception),
    )
    yield
    control_plane.control_planes.clear()


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


def ranks(n: int, clock: SimpleNamespace) -> list[Any]:
    """Resources of each of them, on a host of its own, with a control plane and the log of one message context."""
    boxes: list[deque[tuple[int, bytes]]] = [deque() for _ in range(n)]
    found = []
    for rank in range(n):
        log = CallLog()
        on: Any = SimpleNamespace(
            key=KEY,
            rank=rank,
            nranks=n,
            comm=Comm(rank, boxes),
            near={rank: 0},
            message_contexts=[SimpleNamespace(log=log)],
            log=log,
            every_message_context=lambda log=log: [SimpleNamespace(log=log)],
            node=SimpleNamespace(status_slots=None),
            topology=SimpleNamespace(hosts=[str(one) for one in range(n)]),
            pids=[0] * n,
            who=lambda rank: f"rank {rank} (process 1)",
            process=lambda rank: "process 1",
            numbered=lambda lane, number, after=False: f"call {number}",
        )
        on.team = Group(
            logs={0: log},
            world_ranks=range(n),
        )
        on.team.channel = ControlPlane(on, answer_about, lambda: clock.now)
        on.team.channel.resources = {KEY: on}
        found.append(on)
    return found


def settled(job: list[Any], clock: SimpleNamespace) -> None:
    """Let those that are there look, until nothing is new."""
    for _ in range(8):
        clock.now += 1
        for on in job:
            on.team.channel.serve()


def begin(on: Any, begun: int, ended: int) -> None:
    on.log.histories[0, 0, :2] = begun, ended


@pytest.mark.parametrize("nranks", [2, 9, 100])
def test_all_hear_that_a_rank_has_ended(nranks: int, clock: SimpleNamespace) -> None:
    """How, and how far it was, so that who waits for it in a later call can tell."""
    job = ranks(nranks, clock)
    begin(job[1], 4, 3)
    job[1].team.channel.leave("was ended by ValueError: mine")
    others = [on for on in job if on.rank != 1]
    settled(others, clock)
    for on in others:
        known = PeerState(on, on.log)
        begun = known.progress(1)
        assert known.status(1) == Status(left="was ended by ValueError: mine")
        assert begun is not None
        assert (begun.begun, begun.ended) == (4, 3)
        assert 1 in known.known_ranks()
        assert known.in_library(1) is None


def test_the_last_ones_hear_it_when_most_others_have_ended(clock: SimpleNamespace) -> None:
    """Those whom a rank would tell may have ended before it: it tells the next ones."""
    job, order = ranks(60, clock), list(range(60))
    random.Random(3).shuffle(order)
    for rank in order[:57]:
        job[rank].team.channel.leave("has ended its program")
        settled([job[one] for one in order if one not in order[: order.index(rank) + 1]], clock)
    for on in (job[rank] for rank in order[57:]):
        assert {
            rank for rank in PeerState(on, on.log).known_ranks() if PeerState(on, on.log).status(rank).left
        } == set(order[:57])


def test_the_end_of_a_large_job_costs_little(clock: SimpleNamespace) -> None:
    """All ranks end, a few at a time: each sends some messages, however many of the others have ended."""
    job = ranks(100, clock)
    for first in range(0, 100, 10):
        clock.now += 0.01
        for on in job[first : first + 10]:
            on.team.channel.serve()
            on.team.channel.leave("has ended its program")
        for on in job[first + 10 :]:
            on.team.channel.serve()
    assert max(on.comm.nsent for on in job) < 3 * len(control_plane.distances(100))


def test_a_rank_without_the_message_context_may_have_ended_its_calls(clock: SimpleNamespace) -> None:
    """It has freed that communicator: nobody can say that it is behind."""
    job = ranks(2, clock)
    job[1].team.logs.clear()
    job[1].team.channel.leave("has ended its program")
    settled(job[:1], clock)
    known = PeerState(job[0], job[0].log)
    assert known.status(1).left == "has ended its program"
    assert known.progress(1) is None


def test_every_rank_is_asked_in_its_turn(clock: SimpleNamespace) -> None:
    """However many there are, and whatever place it has among them."""
    on, asked = ranks(300, clock)[0], set[int]()
    on.team.channel._send = lambda rank, what: asked.add(what["ask"][2])
    for _ in range(30):
        clock.now += 0.05
        before = len(asked)
        on.team.channel.ask(KEY, 0, range(1, 300))
        assert len(asked) <= before + 64
    assert asked == set(range(1, 300))


def test_a_rank_is_asked_anew_for_a_text(clock: SimpleNamespace) -> None:
    """At once, though it has been asked so often that its next turn is far, and what is told is what it answers then."""
    job = ranks(2, clock)
    known = PeerState(job[0], job[0].log)
    for _ in range(40):
        clock.now += 0.1
        known.ask([1])
        job[1].team.channel.serve()
        job[0].team.channel.serve()
    before, now = job[0].comm.nsent, clock.now
    known.ask([1])
    assert job[0].comm.nsent == before < 10
    begin(job[1], 1, 0)
    assert not known.holds_for_all(lambda rank: known.heard_at(rank) > now, now + 0.1)
    assert job[0].comm.nsent == before + 1
    clock.now += 0.1
    settled(job[::-1], clock)
    assert known.heard_at(1) > now
    assert known.progress(1) is not None


def test_a_message_that_stays_half_way_holds_up_nobody() -> None:
    """Its sender is stopped: what others send is read meanwhile, and the rest of it when it comes."""
    boxes: list[deque[tuple[int, bytes]]] = [deque()]
    comm = Comm(0, boxes)
    one = ControlMessages(comm, 7)  # type: ignore[arg-type]
    boxes[0].extend([(1, b'{"long": 1}'), (2, b'{"short": 2}')])
    probe, slow = comm.Improbe, Request(False, False, True)

    def improbe(source: int, tag: int, status: Any) -> Any:
        message = probe(source, tag, status)
        if message is not None and status.source == 1:
            receive = message.Irecv
            message.Irecv = lambda buffer: (receive(buffer), slow)[1]
        return message

    comm.Improbe = improbe  # type: ignore[method-assign]
    assert one.come() == [(2, {"short": 2})]
    assert one.come() == []
    assert one.come() == [(1, {"long": 1})]
