"""``hpcoll inspect --live``: what is shown of pages made by hand, as processes would have them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_machine import AFTER_40, BARRIER, NOW, SEES, Machine, call, page, said

from hpcoll.cli import main
from hpcoll.cli.inspect import live
from hpcoll.cli.inspect.live import document, lines, stories, watch_ranks
from hpcoll.cli.inspect.ranks_here import Found, Rank
from hpcoll.runtime.telemetry.status_page import Identity

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_rank_that_does_not_come(machine: Machine) -> None:
    """Has a line that says what the others see it do, across the columns; it is what the sentence ends with."""
    for rank in (0, 2):
        machine.rank(rank, call([1], sees=SEES))
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


def test_a_folder_whose_name_looks_like_a_place(machine: Machine) -> None:
    """The place begins where the call ends."""
    machine.rank(
        0,
        call([1], what="Allreduce(float64[8], op=SUM) at /home/runs (2) at night/train at 9.py:9"),
        nranks=2,
    )
    assert "0 100 running Allreduce(float64[8], op=SUM) train at 9.py:9 2.5 s rank 1" in said(machine)


@pytest.mark.parametrize(
    ("width", "table"),
    [
        (
            80,
            [
                "  rank  process  state    waits in                       for    waits for",
                "  0     100      running  Allreduce(float64[8], op=SUM)  2.5 s  rank 1",
                "  1     101      running  in no collective since 12:03:07, after call 40 on MPI…",
                "  2     102      running  Allreduce(float64[8], op=SUM)  2.5 s  rank 1",
            ],
        ),
        (
            40,
            [
                "  rank  process  state    waits in     …",
                "  0     100      running  Allreduce(f… …",
                "  1     101      running  in no collect…",
                "  2     102      running  Allreduce(f… …",
            ],
        ),
    ],
)
def test_narrow_terminals(machine: Machine, width: int, table: list[str]) -> None:
    """The table does without what the sentences have, and no line is too long."""
    for rank in (0, 2):
        machine.rank(rank, call([1], sees=SEES))
    machine.rank(1)
    shown = machine.text(width).splitlines()
    assert shown[shown.index(table[0]) :][:4] == table
    assert max(map(len, shown)) <= width
    assert said(machine, width).endswith(
        f"waits for 2.5 s: rank 0 waits for rank 1; rank 1 {AFTER_40} on MPI_COMM_WORLD"
    )


def test_a_rank_that_is_stopped(machine: Machine) -> None:
    """The system's word counts, not what its page says: it cannot change that."""
    machine.rank(0, call([1]))
    machine.rank(1, call([2]))
    machine.rank(2)
    machine.stat(101, "T")
    assert "rank 0 waits for rank 1; rank 1 is stopped" in said(machine)


def test_across_calls(machine: Machine) -> None:
    """The chain goes on in what a rank waits in elsewhere, and each call has a sentence, the oldest first."""
    machine.rank(0, call([1]))
    machine.rank(1, call([2], what=BARRIER, key="1.0.9", number=3, on="rows", since=NOW - 60))
    machine.rank(2)
    (job,) = machine.look().jobs
    barrier, allreduce = stories(job, NOW)
    assert (
        barrier
        == "Barrier() at /home/me/train.py:12 on rows waits for 60 s: rank 1 waits for rank 2; rank 2 waits in no collective"
    )
    assert allreduce.endswith(
        "rank 0 waits for rank 1; rank 1 waits in Barrier() at /home/me/train.py:12 on rows, for rank 2; "
        "rank 2 waits in no collective"
    )


@pytest.mark.parametrize(
    "later",
    [
        "is in no collective since 12:05:00, after call 2",
        "is in no collective since 00:00:02, after call 2",
        "is in call 3",
        "has called no collective yet",
    ],
)
def test_what_the_ranks_of_a_call_see(machine: Machine, later: str) -> None:
    """Stands in its sentence; in the table, what happened last, by its time and not by its words: midnight may lie between."""
    machine.rank(0, call([1], sees=SEES))
    machine.rank(1)
    machine.rank(2, call([1], what=BARRIER, key="1.0.9", number=3, on="rows", sees={"1": [5001.0, later]}))
    assert f"1 101 running {later.removeprefix('is ')} on rows 2" in said(machine)
    assert f"rank 0 waits for rank 1; rank 1 {AFTER_40} on MPI_COMM_WORLD" in said(machine)


@pytest.mark.parametrize(
    ("key", "sees", "ends", "shown"),
    [
        ("0.0.7", SEES, f"{AFTER_40} on MPI_COMM_WORLD", "in no collective since"),
        ("0.0.7", {}, f"has raised PeerFailed in {BARRIER}", "has raised PeerFailed"),
        ("1.0.9", SEES, f"{AFTER_40} on MPI_COMM_WORLD", "in no collective since"),
        ("1.0.9", {}, "waits in no collective", "has raised PeerFailed"),
    ],
)
def test_a_rank_that_has_failed_before(
    machine: Machine, key: str, sees: dict[str, Any], ends: str, shown: str
) -> None:
    """What others see it do now counts more; and in a sentence, a failure on another communicator counts nothing."""
    machine.rank(0, call([1], sees=sees), nranks=2)
    machine.rank(1, nranks=2, failed=[call([0], what=BARRIER, key=key, number=3, kind="PeerFailed")])
    assert said(machine).endswith(f"rank 0 waits for rank 1; rank 1 {ends}")
    assert f"1 101 running {shown}" in said(machine)


def test_a_circle_ends(machine: Machine) -> None:
    """The sentence names the ranks of the circle, and not the rank that only leads to it."""
    machine.rank(0, call([1]))
    machine.rank(1, call([2], what=BARRIER, key="1.0.9", number=3))
    machine.rank(2, call([1]))
    (job,) = machine.look().jobs
    allreduce, _ = stories(job, NOW)
    assert allreduce.endswith(
        "train.py:12 on MPI_COMM_WORLD, for rank 2; rank 2 waits for rank 1; ranks 1 and 2 wait for each other"
    )


@pytest.mark.parametrize(
    ("state", "left", "text"),
    [
        ("running", "was ended by ValueError: x", "rank 1 was ended by ValueError: x"),
        ("gone", "", "rank 1 has ended"),
    ],
)
def test_a_rank_that_is_gone(machine: Machine, state: str, left: str, text: str) -> None:
    """By its own word, or because another names its process, of which there is no page any more."""
    machine.rank(0, call([1]), nranks=2, peers={0: 100, 1: 101})
    if state == "running":
        machine.rank(1, nranks=2, left=left)
    assert text in said(machine)


@pytest.mark.parametrize(("later", "text"), [(9.0, "shows nothing of itself"), (11.0, "has ended")])
def test_another_process_has_its_number(machine: Machine, later: float, text: str) -> None:
    """A process that began when the job had long begun is not the rank of it that had this number."""
    machine.rank(0, call([1]), nranks=2, peers={0: 100, 1: 101}, started=50.0)
    machine.stat(101, begun=50.0 + later)
    assert said(machine).endswith(f"rank 1 {text}")
    shares = document(machine.look(), {100: 0.5})["jobs"][0]["ranks"]
    assert [one["state"] for one in shares] == ["running", "gone" if later > 10 else "running"]


def test_ranks_elsewhere(machine: Machine) -> None:
    """Of another node, or of another world."""
    machine.rank(0, call([7, -1]), nranks=8)
    assert "1 of 8 ranks on node1" in machine.text()
    assert "rank 0 waits for rank 7 and ranks of another program; rank 7 is not seen on this node" in said(
        machine
    )


def test_who_may_not_be_asked(machine: Machine, capsys: Capture) -> None:
    """Another user's process is counted where nothing else is found."""
    machine.process(100, page(0))
    machine.closed = True
    assert watch_ranks(once=True, as_json=False, looks=machine.look) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(
        "no rank of a program with an hpcoll communicator is seen on this node; processes of other users"
    )
    assert out.endswith("may not be looked into: 1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "either records, FILE, or --live"),
        (["--live", "x.json"], "either records"),
        (["--once", "x.json"], "--once goes with --live"),
        (["--live", "--json"], "--json goes with --live --once"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], text: str, capsys: Capture) -> None:
    assert main(["inspect", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_json(machine: Machine, capsys: Capture) -> None:
    machine.rank(0, call([1], sees=SEES), nranks=2)
    machine.rank(1, nranks=2)
    assert watch_ranks(once=True, as_json=True, looks=machine.look) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert [(one["rank"], one["pid"], one["core"]) for one in job["ranks"]] == [(0, 100, 0.0), (1, 101, 0.0)]
    assert job["ranks"][0]["waits"][0]["awaits"] == [1]
    assert job["ranks"][1]["doing"] == f"{AFTER_40} on MPI_COMM_WORLD"


def test_json_where_nobody_is_seen(capsys: Capture) -> None:
    assert watch_ranks(once=True, as_json=True, looks=lambda: Found((), 2, ("process 100: x",))) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["jobs"], told["closed"], told["unclear"]) == ([], 2, ["process 100: x"])


def test_it_ends_with_the_ranks(machine: Machine, capsys: Capture) -> None:
    """And with Ctrl-C; what is no terminal is not cleared."""
    machine.rank(0, nranks=1)
    looks = iter([machine.look(), machine.look(), Found(())])
    assert watch_ranks(once=False, as_json=False, looks=lambda: next(looks)) == 0
    out = capsys.readouterr().out
    assert out.count("train.py --x: 1 rank on node1") == 1
    assert out.endswith("no rank runs here any more\n\n")
    assert "\033" not in out

    def interrupted() -> Iterator[Found]:
        yield machine.look()
        raise KeyboardInterrupt

    looks = interrupted()
    assert watch_ranks(once=False, as_json=False, looks=lambda: next(looks)) == 0


def test_shares_of_a_core() -> None:
    """Of the time between two looks."""
    who = Identity(1, 0, 1, "", "h", 0.0, {}, [])
    before, now = ({0: Rank(1, who, "running", used)} for used in (2.0, 2.5))
    assert live._shares(Found((live.Job(before),)), Found((live.Job(now),)), 1.0) == {1: 0.5}
    assert document(Found((live.Job(now),)), {1: 0.5})["jobs"][0]["ranks"][0]["core"] == 0.5
    assert "running 50 %" in "\n".join(lines(Found((live.Job(now),)), {1: 0.5}, NOW))


def test_it_needs_no_mpi() -> None:
    program = "import sys, hpcoll.cli.inspect.command; print(*sorted(set(sys.modules) & {'mpi4py', 'numba'}))"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        == ""
    )
