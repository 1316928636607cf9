"""The status page of a process: what it writes there, when, and by how many threads at once."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpcoll.cli.inspect.ranks_here import look
from hpcoll.comm.diagnosis import report, status_page
from hpcoll.comm.diagnosis.peer_state import Progress
from hpcoll.comm.diagnosis.report import Observations
from hpcoll.comm.diagnosis.status_page import ProcessStatusPage
from hpcoll.comm.status.blocked_call import BlockedCall, Status
from hpcoll.comm.status.rank_status import RankStatus
from hpcoll.runtime.telemetry.status_page import LINK, Identity, StatusPage, contents
from hpcoll.runtime.transports import window

CALL = BlockedCall("0.0.7", 0, 41, "Barrier() at train.py:12", "rows", (0,))


@pytest.fixture
def own_page() -> Iterator[StatusPage]:
    one = StatusPage()
    yield one
    one.close()


def test_a_real_process(own_page: StatusPage) -> None:
    """Found by its file among all that run here, and not found in a fork, which closes it, nor when it is closed."""
    own_page.introduce(Identity(os.getpid(), 0, 1, "test", "h", time.time(), {}, ["this test"]))
    rank_status = RankStatus()
    rank_status.show(own_page)
    rank_status.wait(rank_status, replace(CALL, what="first"), {"sees": {0: (7.5, "x")}})
    mine = [rank for job in look().jobs for rank in job.ranks.values() if rank.pid == os.getpid()]
    assert [wait.sees for wait in mine[0].waits] == [{0: (7.5, "x")}]
    assert [wait.what for wait in mine[0].waits] == ["first"]
    child = os.fork()
    if not child:
        status = 2
        try:
            rank_status.forget()
            rank_status.wait(rank_status, replace(CALL, what="the child's"))
            names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            status = int(LINK in [os.readlink(name) for name in names if os.path.lexists(name)])
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert contents(own_page._memory.tobytes())[1]["waits"][0]["what"] == "first"
    own_page.close()
    assert [rank for job in look().jobs for rank in job.ranks.values() if rank.pid == os.getpid()] == []


def test_other_users_may_not_open_it(own_page: StatusPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives files of memory alone to everybody; so it would rings where /dev/shm makes none without a name."""
    monkeypatch.setattr(window, "FOLDER", "/proc")
    file, of_memory = window.new_file()
    names = ("hpcoll-live", "hpcoll")
    modes = {
        name: os.stat(f"/proc/self/fd/{one}").st_mode & 0o777
        for one in os.listdir("/proc/self/fd")
        for name in names
        if os.path.lexists(f"/proc/self/fd/{one}")
        and os.readlink(f"/proc/self/fd/{one}") == f"/memfd:{name} (deleted)"
    }
    os.close(file)
    assert (of_memory, modes) == (True, {"hpcoll-live": 0o600, "hpcoll": 0o600})


def test_the_page_alone_is_written_when_only_what_is_seen_changes(own_page: StatusPage) -> None:
    class Counted:
        written = 0

        def write(self, _: Any) -> None:
            self.written += 1

    rank_status, others = RankStatus(), Counted()
    own_page.introduce(Identity(1, 0, 1, "", "h", 0.0, {}, []))
    rank_status.show(own_page)
    rank_status._slots.add(others)  # type: ignore[arg-type]
    for seen in ("a", "a", "b"):
        rank_status.wait(others, CALL, {"sees": {"1": seen}})
    assert others.written == 1
    assert contents(own_page._memory.tobytes())[1]["waits"][0]["sees"] == {"1": "b"}
    rank_status.end(others)
    assert contents(own_page._memory.tobytes())[1]["waits"] == []


class Peers:
    """The state of three ranks: the first waits itself, the second has ended calls, the third is in a blocking one."""

    seen = (Status((CALL,)), Status(), Status())
    begun_ended = (
        {0: (2, 1, 5.0), 1: (0, 0, 1.0)},
        {0: (9, 9, 5.0), 1: (4, 3, 8.0)},
        {0: (3, 2, 5.0), 1: (0, 0, 1.0)},
    )

    def __init__(self, _: Any, lane: int) -> None:
        self.lane = lane

    def status(self, rank: int) -> Status:
        return self.seen[rank]

    def process_state(self, rank: int) -> str:
        return "running"

    def progress(self, rank: int) -> Progress:
        return Progress(*self.begun_ended[rank][self.lane])


def test_what_a_rank_that_waits_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that do not show it themselves, what they do and since when, by their ranks in the world; looked for once a second."""
    monkeypatch.setattr(report, "PeerState", Peers)
    lanes = [SimpleNamespace(log=lane) for lane in range(2)]
    team = SimpleNamespace(world_ranks=[3, 5, 7])
    one = Observations(
        SimpleNamespace(team=team, message_contexts=lanes, every_message_context=lambda: lanes)
    )  # type: ignore[arg-type]
    before = time.time()
    shown = one.of([0, 1, 2], lambda rank: f"does {rank}")
    assert shown["for"] == [3, 5, 7]
    (now, text), (ended, other) = shown["sees"].pop(7), shown["sees"].pop(5)
    assert (text, ended, other, shown["sees"]) == ("does 2", 8.0, "does 1", {})
    assert before <= now <= time.time()
    assert one.of([1], lambda _: "something else")["sees"] == {}, "not yet again"


class SlowPage:
    """A page that is made when it may be, and written slowly: whom it names, and by how many threads it was written at once."""

    def __init__(self) -> None:
        self.being_made, self.may_be_made = threading.Event(), threading.Event()
        self.named: list[set[int]] = []
        self.threads: list[threading.Thread] = []
        self.most_at_once = self._at_once = 0

    def start(self, call: Callable[..., None], *arguments: int) -> threading.Thread:
        self.threads.append(threading.Thread(target=call, args=arguments))
        self.threads[-1].start()
        return self.threads[-1]

    def join(self) -> None:
        """Let the page be made, and wait for the threads."""
        self.may_be_made.set()
        for thread in self.threads:
            thread.join(60)

    def make(self) -> "SlowPage":
        self.being_made.set()
        assert self.may_be_made.wait(60)
        return self

    def introduce(self, who: Identity) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(0.1)
        self.named.append(set(who.peers))
        self._at_once -= 1


class Lock:
    """A lock that counts those who have come to it."""

    def __init__(self) -> None:
        self._lock, self.ncame = threading.Lock(), 0

    def __enter__(self) -> None:
        self.ncame += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPage]:
    """The files of a rank 0 of three whose status page is slow to make."""
    one = SlowPage()
    monkeypatch.setattr(status_page, "StatusPage", one.make)
    monkeypatch.setattr(status_page, "RANK_STATUS", SimpleNamespace(show=lambda _: None))
    monkeypatch.setattr(
        status_page, "MPI", SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0, size=3), UNDEFINED=-1)
    )
    yield one
    one.join()


def test_threads_that_make_their_first_communicators(slow: SlowPage) -> None:
    """The page names the ranks of all, whichever thread makes it, and one thread writes at a time."""
    one = ProcessStatusPage()

    def first_communicator(peer: int) -> None:
        one.begin()
        node = SimpleNamespace(ranks=[0, peer], pids=[100, 100 + peer])
        one.meet(SimpleNamespace(team=SimpleNamespace(world_ranks=[0, 1, 2]), node=node))  # type: ignore[arg-type]

    one._changing = lock = Lock()  # type: ignore[assignment]
    slow.start(first_communicator, 1)
    assert slow.being_made.wait(60)
    second = slow.start(first_communicator, 2)
    while lock.ncame < 2 and second.is_alive():  # until it waits for the page, or is through without one
        time.sleep(1e-3)
    slow.join()
    assert slow.named[-1] == {0, 1, 2}
    assert slow.most_at_once == 1


def test_a_fork_while_another_thread_makes_the_page(slow: SlowPage) -> None:
    """The child, which has not that thread, makes one of its own and does not wait."""
    one = ProcessStatusPage()
    slow.start(one.begin)
    assert slow.being_made.wait(60)
    slow.being_made.clear()
    one.forget()
    slow.start(one.begin)
    assert slow.being_made.wait(10)
