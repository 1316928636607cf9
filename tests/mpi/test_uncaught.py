"""Errors that programs do not catch, as jobs print them: without hpcoll's frames, who called what once per node.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import re
from pathlib import Path

import pytest
from launching import STARTS_JOBS, finished, job, launch

pytestmark = STARTS_JOBS
MPI4PY = ("-m", "mpi4py")
HEAD = """import sys, threading, time
import numpy as np
from mpi4py import MPI
import hpcoll
comm = hpcoll.Communicator(MPI.COMM_WORLD)
x, y = np.ones(8), np.empty(8)
comm.Barrier()
"""
CALLS = "if comm.rank:\n    comm.Bcast(x)\nelse:\n    comm.Allreduce(x, y)\n"
IN_FLIGHT = "(comm.Ibarrier() if comm.rank else comm.Iallreduce(x, y)).Wait()"
TABLES = {
    "blocking": (
        CALLS,
        "in blocking call 2 on",
        "Allreduce(float64[8], op=SUM)",
        "Bcast(float64[8], root=0)",
    ),
    "in flight": (IN_FLIGHT, "in call 1 in flight on", "Iallreduce(float64[8], op=SUM)", "Ibarrier()"),
    "of objects": (
        "comm.bcast('x') if comm.rank else comm.allgather(1)",
        "in blocking call 2 on",
        "allgather(obj)",
        "bcast(obj, root=0)",
    ),
}
OTHERS = {  # what ranks print, besides frames of hpcoll
    "a rank that does not come": (
        "if comm.rank:\n    time.sleep(3)\ncomm.Barrier(timeout=1)",
        [
            r"CollectiveTimeout: rank \d: Barrier\(\) at \S+, blocking call 2 on \S+ did not end in 1 s:\n  rank 0 waits for rank 1\n"
        ],
    ),
    "a rank that has ended": (
        "if comm.rank:\n    raise ValueError('mine')\ncomm.Barrier()",
        [
            r"ValueError: mine\n",
            r"PeerFailed: rank 0: Barrier\(\) at \S+: rank 1 \(process \d+ on .*\) was ended by ValueError: mine\n",
        ],
    ),
    "an argument": (
        "comm.Allreduce(x, y[1:])",
        [r"hpcoll\.ArgumentError: rank \d: recvbuf needs 8 elements of float64, got 7 of "],
    ),
    "an operator": (
        "def mine(a, b):\n    return a['x']\ncomm.allreduce(1, op=mine)",
        [
            r"comm\.allreduce\(1, op=mine\)\n.*\n* *File .*, in mine\n    return a\['x'\]\n(.*\n)?TypeError: 'int' object is not"
        ],
    ),
    "in a thread": (
        "one = threading.Thread(target=lambda: comm.Allreduce(x, y[1:]))\none.start()\none.join()\nsys.exit(1)",
        [r"Exception in thread Thread-1.*:\nTraceback", r"hpcoll\.ArgumentError: "],
    ),
}


def printed(
    tmp_path: Path, script: str, nranks: int = 2, options: tuple[str, ...] = (), **variables: str
) -> str:
    """Run a program to its bad end, and return what its ranks have printed."""
    program = tmp_path / "program.py"
    program.write_text(HEAD + script)
    done = finished(launch(nranks, [*options, str(program)]), variables)
    assert done.returncode != 0
    return done.stderr


def of_hpcoll(text: str) -> list[str]:
    """Return the frames of hpcoll in a text."""
    return re.findall(r'^ *File ".*/(?:hpcoll|kernels)/.*", line.*', text, re.MULTILINE)


@pytest.mark.parametrize(
    ("case", "nranks", "options"),
    [
        ("blocking", 2, ()),
        ("in flight", 2, MPI4PY),
        pytest.param("of objects", 4, MPI4PY, marks=pytest.mark.full),
    ],
)
def test_one_rank_says_what_each_called(
    case: str, nranks: int, options: tuple[str, ...], tmp_path: Path
) -> None:
    """With its line and the number that the program counts; the others say that there is such a table."""
    script, which, first, second = TABLES[case]
    text = printed(tmp_path, script, nranks, options)
    assert of_hpcoll(text) == []
    assert "runpy" not in text
    assert "mpi4py" not in text
    sentence = rf"hpcoll\.MismatchError: rank \d: ranks do not call the same, {which} MPI_COMM_WORLD:\n"
    tables = re.findall(rf"{sentence}  rank 0: (.*)\n  ranks? 1[^:]*: (.*)\n", text)
    assert len(tables) == 1
    for row, call in zip(tables[0], (first, second), strict=True):
        assert row.startswith(call)
        assert re.search(r" at \S*program\.py:\d+$", row)
    told = re.findall(
        r"MismatchError: rank \d: .* on MPI_COMM_WORLD; another rank of this node shows more\n", text
    )
    assert len(told) <= nranks - 1  # the launcher may end others before they say anything


@pytest.mark.parametrize(
    "case",
    [
        one
        if one in ("a rank that does not come", "an operator")
        else pytest.param(one, marks=pytest.mark.full)
        for one in OTHERS
    ],
)
def test_frames_of_the_program_alone(case: str, tmp_path: Path) -> None:
    """In whatever has gone wrong; what the error says is there."""
    script, wanted = OTHERS[case]
    text = printed(tmp_path, script)
    assert of_hpcoll(text) == []
    assert 'program.py", line' in text
    for one in wanted:
        assert re.search(one, text), one


def test_bugs_of_hpcoll_keep_their_frames(tmp_path: Path) -> None:
    """An exception that it does not mean to raise."""
    text = printed(
        tmp_path,
        "from hpcoll.comm.context.context import Context\nContext.check = None\ncomm.Allreduce(x, y)",
    )
    assert "TypeError: 'NoneType' object is not callable" in text
    assert len(of_hpcoll(text)) >= 2


@pytest.mark.ci
def test_a_hook_of_the_program_gets_the_error_whole(tmp_path: Path) -> None:
    """Set after hpcoll's, it is called in its place."""
    told = "'hook', error.rank, error.call, len(error.rows), error.rows[1]"
    text = printed(
        tmp_path, f"sys.excepthook = lambda kind, error, trace: print({told}, file=sys.stderr)\n{CALLS}"
    )
    assert re.search(r"hook 1 Bcast\(float64\[8\], root=0\) at \S+:\d+ 2 rank 1: Bcast\(", text)


NUMBERS = """
x, y = np.ones(8), np.empty(8)
def native(one):
    one.Allreduce(x, y, algorithm="native")
def agreed(one):  # ranks tell each other counts
    one.Reduce_scatter(x, y[:4])
def flies(one):
    one.Iallreduce(x, y).Wait()
def blocks(one):
    one.Allreduce(x, y)
def pickles(one):
    one.allreduce(1)
def differ(one):
    one.Bcast(x) if one.rank else one.Allreduce(x, y)
def differ_in_flight(one):
    (one.Ibarrier() if one.rank else one.Iallreduce(x, y)).Wait()
cases = (
    [blocks, differ], [native, native, blocks, differ], [agreed, agreed, differ], [flies, flies, pickles, differ],
    [blocks, flies, agreed, differ],
    [flies, flies, flies, flies, flies, differ_in_flight], [blocks, pickles, flies, differ_in_flight], [blocks, blocks, differ_in_flight],
)
for calls in cases:
    one = world.Dup() if calls is cases[0] else comm.Dup()
    one = hpcoll.Communicator(one)
    for call in calls:
        try:
            call(one)
        except hpcoll.MismatchError as error:
            say(str(error).partition(", in ")[2].partition(" on ")[0])
for _ in range(2):  # the second has the message contexts of the first
    one = comm.Dup()
    blocks(one), flies(one)
    if _:
        try:
            differ(one)
        except hpcoll.MismatchError as error:
            say(str(error).partition(", in ")[2].partition(" on ")[0])
    else:
        one.Free()
"""


def test_numbers_are_those_that_the_program_counts() -> None:
    """Blocking calls and calls in flight by themselves, whatever ranks agree on in between, and whoever served them."""
    said, errors = job(2, NUMBERS)
    right = [f"blocking call {number}" for number in (2, 4, 3, 2, 3)] + [
        f"call {number} in flight" for number in (6, 2, 1)
    ]
    assert said == {rank: "".join(f"{one}\n" for one in [*right, "blocking call 2"]) for rank in range(2)}, (
        errors
    )
