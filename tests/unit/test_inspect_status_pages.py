"""``hpcoll inspect --live``: processes found by their status pages, and what is wrong with pages that are read."""

import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_machine import SUM, Machine, call, page

from hpcoll.cli.inspect import ranks_here
from hpcoll.runtime.telemetry import status_page
from hpcoll.runtime.telemetry.status_page import NBYTES, contents


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_jobs_are_told_apart(machine: Machine) -> None:
    """By launcher; and with a launcher for each rank, by whom they name."""
    machine.rank(0, nranks=2)
    machine.rank(1, nranks=2)
    machine.rank(0, call([1]), nranks=2, pid=200, launcher="a", started=60.0, peers={0: 200, 1: 201})
    machine.rank(1, nranks=2, pid=201, launcher="b", started=61.0, peers={1: 201, 0: 200})
    # the first one's launcher, another world
    machine.rank(0, nranks=2, pid=300, started=62.0, peers={0: 300, 1: 301})
    jobs = machine.look().jobs
    seen = [[(rank.pid, rank.has_page) for rank in job.ranks.values()] for job in jobs]
    assert seen == [[(100, True), (101, True)], [(200, True), (201, True)], [(300, True), (301, False)]]
    assert machine.text().count("train.py --x: 2 ranks") == 3


def test_a_fork_is_no_rank(machine: Machine) -> None:
    """That still has its parent's files; and a rank in a container is one, whatever number it has there."""
    machine.rank(0, nranks=1)
    machine.process(150, page(0, nranks=1, pid=100))
    machine.process(160, page(0, nranks=1, pid=12, launcher="container"), own_pid=12)
    assert [[rank.pid for rank in job.ranks.values()] for job in machine.look().jobs] == [[100], [160]]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (b"", "a status page has 16384 bytes, got 0"),
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


def test_a_page_of_another_version(machine: Machine) -> None:
    later = np.frombuffer(page(0, pid=100), np.uint8).copy()
    status_page.put(later, b"9" + status_page.get(later)[1:])
    machine.process(100, later.tobytes())
    assert machine.look().unclear == ("process 100: format 1 was expected, got '9'",)


@pytest.mark.parametrize("started", [math.inf, math.nan, 1e300, -1.0])
def test_times_that_are_none(machine: Machine, started: float) -> None:
    """No time of day can be made of them: the others are shown."""
    machine.rank(0, nranks=2)
    machine.rank(1, nranks=2, started=started)
    assert machine.text().startswith("train.py --x: 1 of 2 ranks on node1, since ")
    assert f"not shown: process 101: a time in seconds was expected, got '{started}'" in machine.text()


@pytest.mark.parametrize(
    "wait",
    [
        7,
        {"key": "x"},
        call([1]) | {"for": 3},
        call([1]) | {"number": 1e400},
        call([1]) | {"sees": {"1": "x"}},
        call([1]) | {"sees": {"1": [-1, "x"]}},
        *(call([1]) | {"since": since} for since in ("now", math.inf, math.nan, 1e300, 10**400, -1)),
    ],
)
def test_notices_that_are_wrong(machine: Machine, wait: Any) -> None:
    """They are other processes' and may hold anything."""
    machine.rank(0, wait)
    assert machine.look().jobs == ()
    assert "process 100: " in machine.look().unclear[0]


@pytest.mark.parametrize("where", [40, 4096 + 40])
@pytest.mark.parametrize("times", [1, 2])
def test_a_page_that_is_being_written(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, where: int, times: int
) -> None:
    """Is read again, in the same look: who its process is, and its notice."""
    whole = page(0, call([1]), nranks=1, pid=100)
    machine.process(100, whole)
    reads = iter([torn(whole, where)] * times + [whole])
    monkeypatch.setattr(status_page, "_text", lambda *_: next(reads))
    (job,) = machine.look().jobs
    assert job.ranks[0].waits[0].what == SUM


def test_a_page_that_stays_torn(machine: Machine) -> None:
    """A notice is taken for none, never for a half of one; whose it is must be known."""
    whole = page(0, call([1]), nranks=1, pid=100)
    file = machine.process(100, torn(whole, 4096 + 40))
    (job,) = machine.look().jobs
    assert job.ranks[0].waits == ()
    file.write_bytes(torn(whole, 40))
    assert machine.look().jobs == ()


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


def test_when_a_process_began() -> None:
    """By the clock of the day; of one that there is not, nothing is known."""
    before = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert before - 1 < ranks_here._begun(child.pid) < time.time() + 1
        child.communicate(b"\n")
    assert ranks_here._begun(child.pid) == 0.0
