"""Live pages: processes found by them, what is wrong with those of others, and how a process writes its own."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpi4py
import numpy as np
import pytest
from test_inspect_live import SUM, Machine, call, page

mpi4py.rc.initialize = False  # importing hpcoll.comm must not start MPI

from hpcoll.cli.inspect import ranks_here  # noqa: E402
from hpcoll.cli.inspect.ranks_here import look  # noqa: E402
from hpcoll.comm import introduction, sight  # noqa: E402
from hpcoll.comm.introduction import Introduction  # noqa: E402
from hpcoll.comm.knowledge import Begun  # noqa: E402
from hpcoll.comm.notice import Notice  # noqa: E402
from hpcoll.comm.sight import Sight  # noqa: E402
from hpcoll.runtime.transports.live_page import LINK, NBYTES, LivePage, Who, contents  # noqa: E402


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_jobs_are_told_apart(machine: Machine) -> None:
    """By launcher; and with a launcher for each rank, by whom they name."""
    machine.rank(0, nranks=2)
    machine.rank(1, nranks=2)
    machine.rank(0, call([1]), nranks=2, pid=200, launcher="a", started=60.0, peers={0: 200, 1: 201})
    machine.rank(1, nranks=2, pid=201, launcher="b", started=61.0, peers={1: 201, 0: 200})
    machine.rank(0, nranks=2, pid=300, started=62.0, peers={0: 300, 1: 301})  # the first one's launcher, another world
    jobs = look(machine.folder).jobs
    seen = [[(rank.pid, rank.has_page) for rank in job.ranks.values()] for job in jobs]
    assert seen == [[(100, True), (101, True)], [(200, True), (201, True)], [(300, True), (301, False)]]
    assert machine.text().count("train.py --x: 2 ranks") == 3


def test_a_fork_is_no_rank(machine: Machine) -> None:
    """That still has its parent's files; and a rank in a container is one, whatever number it has there."""
    machine.rank(0, nranks=1)
    machine.process(150, page(0, nranks=1, pid=100))
    machine.process(160, page(0, nranks=1, pid=12, launcher="container"), own_pid=12)
    assert [[rank.pid for rank in job.ranks.values()] for job in look(machine.folder).jobs] == [[100], [160]]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (b"", "a live page has 16384 bytes, got 0"),
        (bytes(NBYTES), "format 1 was expected, got ''"),
        (page(0)[:16] + b"9" + page(0)[17:], "format 1 was expected, got ''"),
    ],
)
def test_pages_that_cannot_be_read(machine: Machine, changed: bytes, text: str) -> None:
    """Empty, just being made, or not whole: named, and the others are shown."""
    machine.rank(0, nranks=2)
    machine.process(101, changed)
    assert f"not shown: process 101: {text}" in machine.text()
    assert "2 ranks" in machine.text()


def test_a_page_of_another_version(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("hpcoll.runtime.transports.live_page.FORMAT", 9)
        later = page(0, pid=100)
    machine.process(100, later)
    assert look(machine.folder).unclear == ("process 100: format 1 was expected, got '9'",)


@pytest.mark.parametrize("started", [math.inf, math.nan, 1e300, -1.0])
def test_times_that_are_none(machine: Machine, started: float) -> None:
    """No time of day can be made of them: the others are shown."""
    machine.rank(0, nranks=2)
    machine.rank(1, nranks=2, started=started)
    assert machine.text().startswith("train.py --x: 1 of 2 ranks on node1, since ")
    assert f"not shown: process 101: a time in seconds was expected, got '{started}'" in machine.text()


@pytest.mark.parametrize(
    "wait",
    [7, {"key": "x"}, call([1]) | {"for": 3}, call([1]) | {"number": 1e400},
     call([1]) | {"sees": {"1": "x"}},
     call([1]) | {"sees": {"1": [-1, "x"]}}, *(call([1]) | {"since": since} for since in ("now", math.inf, math.nan, 1e300, 10**400, -1))],
)  # fmt: skip
def test_notices_that_are_wrong(machine: Machine, wait: Any) -> None:
    """They are other processes' and may hold anything."""
    machine.rank(0, wait)
    assert look(machine.folder).jobs == ()
    assert "process 100: " in look(machine.folder).unclear[0]


@pytest.mark.parametrize("where", [40, 4096 + 40])
@pytest.mark.parametrize("times", [1, 2])
def test_a_page_that_is_being_written(machine: Machine, monkeypatch: pytest.MonkeyPatch, where: int, times: int) -> None:
    """Is read again, in the same look: who its process is, and its notice."""
    whole = page(0, call([1]), nranks=1, pid=100)
    machine.process(100, whole)
    reads = iter([torn(whole, where)] * times + [whole])
    monkeypatch.setattr(ranks_here, "_text", lambda _: next(reads))
    (job,) = look(machine.folder).jobs
    assert job.ranks[0].waits[0].what == SUM


def test_a_page_that_stays_torn(machine: Machine) -> None:
    """A notice is taken for none, never for a half of one; whose it is must be known."""
    whole = page(0, call([1]), nranks=1, pid=100)
    file = machine.process(100, torn(whole, 4096 + 40))
    (job,) = look(machine.folder).jobs
    assert job.ranks[0].waits == ()
    file.write_bytes(torn(whole, 40))
    assert look(machine.folder).jobs == ()


def torn(whole: bytes, where: int) -> bytes:
    """A page of which one byte is not yet written."""
    return whole[:where] + bytes([whole[where] ^ 1]) + whole[where + 1 :]


def test_what_has_no_room_is_left_out() -> None:
    """Long arguments, very many ranks, notices that are too long: the page stays whole."""
    calls = (call([1], what=f"Bcast(x) at {'y' * 900}:{i}") for i in range(20))
    one = page(0, *calls, peers={i: i for i in range(9000)}, program=["z" * 9000])
    who, notice = contents(one)
    assert who.peers[0] == 0
    assert len(who.peers) > 100
    assert 5 < len(notice["waits"]) < 20
    assert notice["waits"][-1]["what"].endswith(":19")


@pytest.fixture
def own_page() -> Iterator[LivePage]:
    one = LivePage()
    yield one
    one.close()


def test_a_real_process(own_page: LivePage) -> None:
    """Found by its file among all that run here, and not found in a fork, which closes it, nor when it is closed."""
    own_page.introduce(Who(os.getpid(), 0, 1, "test", "h", time.time(), {}, ["this test"]))
    notice = Notice()
    notice.show(own_page)
    notice.wait(notice, call([0]) | {"what": "first"}, {"sees": {0: (7.5, "x")}})
    mine = [rank for job in look().jobs for rank in job.ranks.values() if rank.pid == os.getpid()]
    assert [wait.sees for wait in mine[0].waits] == [{0: (7.5, "x")}]
    assert [wait.what for wait in mine[0].waits] == ["first"]
    child = os.fork()
    if not child:
        status = 2
        try:
            notice.forget()
            notice.wait(notice, call([0]) | {"what": "the child's"})
            names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
            status = int(LINK in [os.readlink(name) for name in names if os.path.lexists(name)])
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert contents(own_page._memory.tobytes())[1]["waits"][0]["what"] == "first"
    own_page.close()
    assert [rank for job in look().jobs for rank in job.ranks.values() if rank.pid == os.getpid()] == []


def test_the_page_alone_is_written_when_only_what_is_seen_changes(own_page: LivePage) -> None:
    class Counted:
        written = 0

        def write(self, _: Any) -> None:
            self.written += 1

    notice, others = Notice(), Counted()
    own_page.introduce(Who(1, 0, 1, "", "h", 0.0, {}, []))
    notice.show(own_page)
    notice._pages.add(others)  # type: ignore[arg-type]
    for seen in ("a", "a", "b"):
        notice.wait(others, call([1]), {"sees": {"1": seen}})
    assert others.written == 1
    assert contents(own_page._memory.tobytes())[1]["waits"][0]["sees"] == {"1": "b"}
    notice.end(others)
    assert contents(own_page._memory.tobytes())[1]["waits"] == []


class Peers:
    """What is known of three ranks: the first waits itself, the second has ended calls, the third is in a blocking one."""

    seen = ({"waits": [{}]}, {}, {})
    begun_ended = ({0: (2, 1, 5.0), 1: (0, 0, 1.0)}, {0: (9, 9, 5.0), 1: (4, 3, 8.0)}, {0: (3, 2, 5.0), 1: (0, 0, 1.0)})

    def __init__(self, _: Any, lane: int) -> None:
        self.lane = lane

    def notice(self, rank: int) -> dict[str, Any]:
        return self.seen[rank]

    def state(self, rank: int) -> str:
        return "running"

    def begun(self, rank: int) -> Begun:
        return Begun(*self.begun_ended[rank][self.lane])


def test_what_a_rank_that_waits_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that do not show it themselves, what they do and since when, by their ranks in the world; looked for once a second."""
    monkeypatch.setattr(sight, "Knowledge", Peers)
    lanes = [SimpleNamespace(log=lane) for lane in range(2)]
    group = SimpleNamespace(world_ranks=[3, 5, 7])
    one = Sight(SimpleNamespace(group=group, message_contexts=lanes, every_message_context=lambda: lanes))  # type: ignore[arg-type]
    before = time.time()
    shown = one.of([0, 1, 2], lambda rank: f"does {rank}")
    assert shown["for"] == [3, 5, 7]
    (now, text), (ended, other) = shown["sees"].pop(7), shown["sees"].pop(5)
    assert (text, ended, other, shown["sees"]) == ("does 2", 8.0, "does 1", {})
    assert before <= now <= time.time()
    assert one.of([1], lambda _: "something else")["sees"] == {}, "not yet again"


def test_pages_are_arrays_of_bytes(own_page: LivePage) -> None:
    assert (own_page._memory.nbytes, own_page._memory.dtype) == (NBYTES, np.uint8)


def test_when_a_process_began() -> None:
    """By the clock of the day; of one that there is not, nothing is known."""
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert before - 1 < ranks_here._begun(child.pid) < time.time() + 1
        child.communicate(b"\n")
    assert ranks_here._begun(child.pid) == 0.0


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

    def make(self) -> SlowPage:
        self.being_made.set()
        assert self.may_be_made.wait(60)
        return self

    def introduce(self, who: Who) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(0.1)
        self.named.append(set(who.peers))
        self._at_once -= 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPage]:
    """Where the introductions of a rank 0 of three write."""
    one = SlowPage()
    monkeypatch.setattr(introduction, "LivePage", one.make)
    monkeypatch.setattr(introduction, "NOTICE", SimpleNamespace(show=lambda _: None))
    monkeypatch.setattr(introduction, "MPI", SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0, size=3), UNDEFINED=-1))
    yield one
    one.join()


def test_threads_that_make_their_first_communicators(slow: SlowPage) -> None:
    """The page names the ranks of all, whichever thread makes it, and one thread writes at a time."""
    one = Introduction()

    def first_communicator(peer: int) -> None:
        one.begin()
        node = SimpleNamespace(ranks=[0, peer], pids=[100, 100 + peer])
        one.meet(SimpleNamespace(group=SimpleNamespace(world_ranks=[0, 1, 2]), node=node))  # type: ignore[arg-type]

    slow.start(first_communicator, 1)
    assert slow.being_made.wait(60)
    slow.start(first_communicator, 2).join(0.5)  # who does not wait for the page is through by then
    slow.join()
    assert slow.named[-1] == {0, 1, 2}
    assert slow.most_at_once == 1


def test_a_fork_while_another_thread_makes_the_page(slow: SlowPage) -> None:
    """The child, which has not that thread, makes one of its own and does not wait."""
    one = Introduction()
    slow.start(one.begin)
    assert slow.being_made.wait(60)
    slow.being_made.clear()
    one.forget()
    slow.start(one.begin)
    assert slow.being_made.wait(10)
