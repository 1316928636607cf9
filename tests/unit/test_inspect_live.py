"""``hpcoll inspect --live``: pages made by hand, as processes would have them, and what is shown of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcoll.cli import main
from hpcoll.cli.inspect import live
from hpcoll.cli.inspect.live import document, lines, stories
from hpcoll.cli.inspect.ranks_here import Found, Rank, look
from hpcoll.comm.notice import Notice
from hpcoll.runtime.transports.live_page import LINK, NBYTES, LivePage, Who, contents

NOW = 1000.0
SUM, BARRIER = "Allreduce(float64[8], op=SUM) at /home/me/train.py:9", "Barrier() at /home/me/train.py:12"
AFTER_40 = "is in no collective since 12:03:07, after call 40"


def call(
    awaits: list[int], *, what: str = SUM, key: str = "0.0.7", number: int = 41, on: str = "MPI_COMM_WORLD", **more: Any
) -> dict[str, Any]:  # fmt: skip
    """A wait as it stands in a page."""
    return {"key": key, "lane": 0, "number": number, "what": what, "awaits": awaits, "step": "row 6 of 11", "since": NOW - 2.5,
            "on": on, "for": awaits, "sees": {}} | more  # fmt: skip


class Machine:
    """A folder like /proc, with processes and their pages; what processes are numbered as is what this test's system does not have."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.states: dict[int, str] = {}
        self._links: dict[str, str] = {}
        self._readlink = os.readlink
        monkeypatch.setattr("hpcoll.cli.inspect.ranks_here.os.readlink", lambda path: self._links.get(str(path)) or self._readlink(path))
        monkeypatch.setattr("hpcoll.cli.inspect.ranks_here.state_of", lambda pid: self.states.get(pid, "gone"))
        monkeypatch.setattr("hpcoll.cli.inspect.ranks_here.cpu_s", lambda pid: 1.5 if pid in self.states else None)

    def process(self, pid: int, page: bytes | None, own_pid: int | None = None) -> Path:
        """One process; the file of its page."""
        self.states[pid] = "running"
        files = self.folder / str(pid) / "fd"
        files.mkdir(parents=True)
        (files.parent / "status").write_text(f"Name:\tpython\nNSpid:\t{pid}\t{own_pid or pid}\n")
        (files / "0").symlink_to("/dev/null")
        if page is not None:
            (files / "7").write_bytes(page)
            self._links[str(files / "7")] = LINK
        return files / "7"

    def rank(self, rank: int, *waits: dict[str, Any], nranks: int = 3, pid: int = 0, left: str = "", **who: Any) -> None:
        pid = pid or 100 + rank
        self.process(pid, page(rank, *waits, nranks=nranks, pid=pid, left=left, **who))

    def text(self) -> str:
        return "\n".join(lines(look(self.folder), {}, NOW))


def said(machine: Machine) -> str:
    """The text in one line."""
    return " ".join(machine.text().split())


def page(rank: int, *waits: dict[str, Any], nranks: int = 3, pid: int = 0, left: str = "", **who: Any) -> bytes:
    """A page, written as processes do."""
    one = LivePage()
    about = {"pid": pid, "rank": rank, "nranks": nranks, "launcher": "one", "host": "node1", "started": 50.0, "peers": {rank: pid},
             "program": ["train.py", "--x"]} | who  # fmt: skip
    one.introduce(Who(**about))
    if waits or left:
        one.write({"waits": list(waits), "failed": [], "left": left})
    text = one._memory.tobytes()
    one.close()
    return text


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_rank_that_does_not_come(machine: Machine) -> None:
    """Has a line that says what the others see it do, across the columns; it is what the sentence ends with."""
    for rank in (0, 2):
        machine.rank(rank, call([1], sees={"1": AFTER_40}))
    machine.rank(1)
    head, *rest = machine.text().splitlines()
    assert head.startswith("train.py --x: 3 ranks on node1, since ")
    assert rest == [
        "  rank  process  state    waits in                       at          for    waits for  row      communicator",
        "  0     100      running  Allreduce(float64[8], op=SUM)  train.py:9  2.5 s  rank 1     6 of 11  MPI_COMM_WORLD",
        "  1     101      running  in no collective since 12:03:07, after call 40 on MPI_COMM_WORLD",
        "  2     102      running  Allreduce(float64[8], op=SUM)  train.py:9  2.5 s  rank 1     6 of 11  MPI_COMM_WORLD",
        "Allreduce(float64[8], op=SUM) at /home/me/train.py:9 on MPI_COMM_WORLD waits for 2.5 s: rank 0 waits for rank 1; rank 1",
        "  is in no collective since 12:03:07, after call 40 on MPI_COMM_WORLD",
    ]


def test_a_rank_that_is_stopped(machine: Machine) -> None:
    """The system's word counts, not what its page says: it cannot change that."""
    machine.rank(0, call([1]))
    machine.rank(1, call([2]))
    machine.rank(2)
    machine.states[101] = "stopped"
    assert "rank 0 waits for rank 1; rank 1 is stopped" in said(machine)


def test_across_calls(machine: Machine) -> None:
    """The chain goes on in what a rank waits in elsewhere, and each call has a sentence, the oldest first."""
    machine.rank(0, call([1]))
    machine.rank(1, call([2], what=BARRIER, key="1.0.9", number=3, on="rows", since=NOW - 60))
    machine.rank(2)
    (job,) = look(machine.folder).jobs
    barrier, allreduce = stories(job, NOW)
    assert barrier == "Barrier() at /home/me/train.py:12 on rows waits for 60 s: rank 1 waits for rank 2; rank 2 waits in no collective"
    assert allreduce.endswith(
        "rank 0 waits for rank 1; rank 1 waits in Barrier() at /home/me/train.py:12 on rows, 3rd call for rank 2; "
        "rank 2 waits in no collective"
    )


def test_what_the_ranks_of_a_call_see(machine: Machine) -> None:
    """Stands in its sentence; in the table, what was seen last."""
    rows = {"what": BARRIER, "key": "1.0.9", "number": 3, "on": "rows", "sees": {"1": "is in no collective since 12:05:00, after call 2"}}
    machine.rank(0, call([1], sees={"1": AFTER_40}))
    machine.rank(1)
    machine.rank(2, call([1], **rows))
    assert "1 101 running in no collective since 12:05:00, after call 2 on rows 2" in said(machine)
    assert f"rank 0 waits for rank 1; rank 1 {AFTER_40} on MPI_COMM_WORLD" in said(machine)


def test_a_circle_ends(machine: Machine) -> None:
    machine.rank(0, call([1]), nranks=2)
    machine.rank(1, call([0], what=BARRIER, key="1.0.9", number=3), nranks=2)
    (job,) = look(machine.folder).jobs
    assert all(text.count("rank 0 waits") == 1 for text in stories(job, NOW))


@pytest.mark.parametrize(
    ("state", "left", "text"),
    [("running", "was ended by ValueError: x", "rank 1 was ended by ValueError: x"), ("gone", "", "rank 1 has ended")],
)
def test_a_rank_that_is_gone(machine: Machine, state: str, left: str, text: str) -> None:
    """By its own word, or because another names its process, of which there is no page any more."""
    machine.rank(0, call([1]), nranks=2, peers={0: 100, 1: 101})
    if state == "running":
        machine.rank(1, nranks=2, left=left)
    assert text in said(machine)


def test_ranks_elsewhere(machine: Machine) -> None:
    """Of another node, or of another world."""
    machine.rank(0, call([7, -1]), nranks=8)
    assert "1 of 8 ranks on node1" in machine.text()
    assert "rank 0 waits for rank 7 and ranks of another program; rank 7 is not seen on this node" in said(machine)


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
        (page(0)[:16] + b"9" + page(0)[17:], "format 1 was expected"),
    ],
)
def test_pages_that_cannot_be_read(machine: Machine, changed: bytes, text: str) -> None:
    """Empty, just being made, or not whole: named, and the others are shown."""
    machine.rank(0, nranks=2)
    machine.process(101, changed)
    assert f"not shown: process 101: {text}" in machine.text()
    assert "2 ranks" in machine.text()


@pytest.mark.parametrize("wait", [7, {"key": "x"}, call([1]) | {"since": "now"}, call([1]) | {"for": 3}, call([1]) | {"number": 1e400}])
def test_notices_that_are_wrong(machine: Machine, wait: Any) -> None:
    """They are other processes' and may hold anything."""
    machine.rank(0, wait)
    assert look(machine.folder).jobs == ()
    assert "process 100: " in look(machine.folder).unclear[0]


def test_a_notice_that_is_being_written(machine: Machine) -> None:
    """Is read again, and taken for none if it stays so: never for a half of one."""
    whole = page(0, call([1]), nranks=1, pid=100)
    torn = bytearray(whole)
    torn[4096 + 40] ^= 1
    file = machine.process(100, bytes(torn))
    assert contents(bytes(torn))[1] == {}
    (job,) = look(machine.folder).jobs
    assert job.ranks[0].waits == ()
    file.write_bytes(whole)
    (job,) = look(machine.folder).jobs
    assert job.ranks[0].waits[0].what == SUM


def test_who_may_not_be_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Another user's process is counted where nothing else is found."""
    machine.process(100, page(0))

    def refuse(path: str) -> str:
        raise PermissionError(13, "no", path)

    monkeypatch.setattr("hpcoll.cli.inspect.ranks_here.os.readlink", refuse)
    monkeypatch.setattr(live, "look", lambda: look(machine.folder))
    assert main(["inspect", "--live", "--once"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("no rank of a program with an hpcoll communicator is seen on this node; processes of other users")
    assert out.endswith("may not be looked into: 1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [([], "either records, FILE, or --live"), (["--live", "x.json"], "either records"), (["--once", "x.json"], "--once goes with --live"),
     (["--live", "--json"], "--json goes with --live --once")],
)  # fmt: skip
def test_options_that_do_not_go_together(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_json(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine.rank(0, call([1], sees={"1": AFTER_40}), nranks=2)
    machine.rank(1, nranks=2)
    monkeypatch.setattr(live, "look", lambda: look(machine.folder))
    assert main(["inspect", "--live", "--once", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert [(one["rank"], one["pid"], one["core"]) for one in job["ranks"]] == [(0, 100, 0.0), (1, 101, 0.0)]
    assert job["ranks"][0]["waits"][0]["awaits"] == [1]
    assert job["ranks"][1]["doing"] == f"{AFTER_40} on MPI_COMM_WORLD"


def test_it_ends_with_the_ranks(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And with Ctrl-C; what is no terminal is not cleared."""
    machine.rank(0, nranks=1)
    looks = iter([look(machine.folder), look(machine.folder), Found(())])
    monkeypatch.setattr(live, "look", lambda: next(looks))
    monkeypatch.setattr(live.time, "sleep", lambda _: None)
    assert main(["inspect", "--live"]) == 0
    out = capsys.readouterr().out
    assert out.count("train.py --x: 1 rank on node1") == 1
    assert out.endswith("no rank runs here any more\n\n")
    assert "\033" not in out
    looks = iter([look(machine.folder)])

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live.time, "sleep", interrupt)
    assert main(["inspect", "--live"]) == 0


def test_shares_of_a_core() -> None:
    """Of the time between two looks."""
    who = Who(1, 0, 1, "", "h", 0.0, {}, [])
    before, now = ({0: Rank(1, who, "running", used)} for used in (2.0, 2.5))
    assert live._shares(Found((live.Job(before),)), Found((live.Job(now),)), 1.0) == {1: 0.5}
    assert document(Found((live.Job(now),)), {1: 0.5})["jobs"][0]["ranks"][0]["core"] == 0.5
    assert "running 50 %" in "\n".join(lines(Found((live.Job(now),)), {1: 0.5}, NOW))


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
    notice.wait(notice, call([0]) | {"what": "first"}, {"sees": {"0": "x"}})
    mine = [rank for job in look().jobs for rank in job.ranks.values() if rank.pid == os.getpid()]
    assert [wait.what for wait in mine[0].waits] == ["first"]
    child = os.fork()
    if not child:
        notice.forget()
        notice.wait(notice, call([0]) | {"what": "the child's"})
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
        os._exit(LINK in links)
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


def test_it_needs_no_mpi() -> None:
    program = "import sys, hpcoll.cli.inspect.command; print(*sorted(set(sys.modules) & {'mpi4py', 'numba'}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_pages_are_arrays_of_bytes(own_page: LivePage) -> None:
    assert (own_page._memory.nbytes, own_page._memory.dtype) == (NBYTES, np.uint8)
