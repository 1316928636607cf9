"""`hpcoll.run` and the command ``hpcoll run``, with whatever MPI library there is: results, errors of ranks, and what is left."""

import os
import re
import signal
import sys
import time
from typing import Any

import pytest
from conftest import (
    LIMIT_S,
    MPICH,
    PROGRAM,
    SHARED,
    Launch,
    free_port,
    interrupt,
    sums,
    tokens,
    until_gone,
    variables,
)
from slowness import slowed

import hpcoll

RUN = ("-m", "hpcoll", "run")


def total(*values: float) -> tuple[int, float]:
    from mpi4py import MPI

    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    return comm.rank, comm.allreduce(sum(values) + comm.rank)


def fails(how: str) -> Any:
    """Fail on rank 1, while the others wait for it."""
    from mpi4py import MPI

    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    comm.Barrier()
    if comm.rank == 1:
        if how == "raise":
            raise LookupError("rank 1 has lost it")
        if how == "exit":
            sys.exit(7)
        if how == "odd error":
            raise type("Odd", (Exception,), {"__reduce__": lambda self: 1 / 0})("cannot travel")
        if how == "odd result":
            return lambda: 0
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()
    return None


def test_results_in_rank_order(launch: Launch) -> None:
    assert hpcoll.run(total, 3, 1.0, 2.0) == [(0, 12.0), (1, 12.0), (2, 12.0)]
    assert hpcoll.run(total, nranks=1) == [(0, 0)]


def test_more_ranks_than_cores_without_ssh(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have none: Open MPI 5 then takes a slot for each core, and none that it is told of."""
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    nranks = min((os.cpu_count() or 1) + 1, 9)
    assert hpcoll.run(total, nranks=nranks) == [(rank, sum(range(nranks))) for rank in range(nranks)]


def test_variables_of_ranks(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own stay, whatever their names begin with; those of the launcher around it go."""
    monkeypatch.setenv("RANKING", "x")
    monkeypatch.setenv("RANK", "7")
    assert hpcoll.run(os.getenv, 1, "RANKING") == ["x"]
    assert hpcoll.run(os.getenv, 1, "RANK") == [None]


def test_error_of_a_rank(launch: Launch) -> None:
    """Its own class and text, where it was raised, and what the others say."""
    with pytest.raises(LookupError, match="rank 1 has lost it") as caught:
        hpcoll.run(fails, 3, "raise")
    told = str(caught.value.__cause__)
    assert "in fails" in told
    assert "launch/child.py" not in told
    if MPICH:  # mpirun ends the others at once
        assert re.search(r"PeerFailed: rank [02]: Barrier\(\)", told)


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("exit", SystemExit, "7"),
        ("odd error", RuntimeError, "Odd: cannot travel"),
        ("kill", hpcoll.PeerFailed, "rank 1" if MPICH else "rank"),  # mpirun tells its own user which one
    ],
)
def test_other_ends_of_a_rank(how: str, kind: type[BaseException], said: str, launch: Launch) -> None:
    with pytest.raises(kind, match=said):
        hpcoll.run(fails, 2, how)


def test_ranks_that_do_not_end(launch: Launch) -> None:
    begun = time.monotonic()
    with pytest.raises(hpcoll.TransportError, match="ranks 0-1 did not end within 2 s"):
        hpcoll.run(time.sleep, 2, 1000, timeout=2)
    assert time.monotonic() - begun < slowed(20)


def test_wrong_arguments() -> None:
    with pytest.raises(hpcoll.ArgumentError, match="nranks must be a number of ranks, at least 1, got 0"):
        hpcoll.run(total, 0)
    with pytest.raises(hpcoll.ArgumentError, match="must be picklable"):
        hpcoll.run(total, 2, (one for one in "ab"))


UNGUARDED = """
import hpcoll
def two():
    return 2
print(hpcoll.run(two, 2))
"""


@pytest.mark.ci
@pytest.mark.parametrize("has", [True, False], ids=["with cloudpickle", "without it"])
def test_script_without_a_condition(has: bool, launch: Launch) -> None:
    """Without cloudpickle ranks import the script; that it starts ranks again is refused, and said."""
    hidden = "" if has else "import sys; sys.modules['cloudpickle'] = None\n"
    if has:
        pytest.importorskip("cloudpickle")
    code, out, error = launch.rank([launch.program(hidden + UNGUARDED)], {}).end()
    if has:
        assert (code, out) == (0, "[2, 2]\n")
    else:
        assert code == 1
        assert "call it below if __name__ == '__main__'" in error


def test_command(launch: Launch) -> None:
    """All ranks, with their lines marked; the program gets its own options."""
    program = launch.program(
        PROGRAM.format(start="import sys; assert sys.argv[1:] == ['-n', '5', '--prefix']")
    )
    (said,) = tokens([launch.rank([*RUN, "-n", "3", "--prefix", program, "-n", "5", "--prefix"], {})])
    lines = sorted(line.partition("rank")[1:] for line in said.splitlines())
    assert ["".join(line) for line in lines] == sums(3)
    marks = {line.partition(" ")[0] for line in said.splitlines()}
    assert marks == {"[0]", "[1]", "[2]"}


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("comm.Abort(4)", 4)]
)
def test_exit_code_is_that_of_the_rank_that_fails(end: str, code: int, launch: Launch) -> None:
    """The others are ended, whatever they wait for."""
    program = launch.program(
        PROGRAM.format(start="") + f"import os, sys, time\nif comm.rank == 1: {end}\ntime.sleep(1000)"
    )
    begun = time.monotonic()
    found, _, error = launch.rank([*RUN, "-n", "2", program], {"HPCOLL_WARN": "0"}).end()
    assert found == code, error
    assert time.monotonic() - begun < LIMIT_S / 2


@pytest.mark.skipif(not MPICH, reason="for ranks that hpcoll starts one by one")
def test_exit_code_is_that_of_mpi_abort(launch: Launch) -> None:
    """Though the library that called it finds its connection closed, and ends with another code."""
    aborts = """
import os, socket
connection = socket.socket(fileno=int(os.environ["PMI_FD"]))
connection.sendall(b"cmd=abort exitcode=3\\n")
assert connection.recv(1) == b""
os._exit(15)
"""
    assert launch.rank([*RUN, "-n", "1", launch.program(aborts)], {}).end()[0] == 3


WAITS = "import time; print('waits', flush=True); time.sleep(1000)"


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_ranks_end_with_the_command(how: str, launch: Launch) -> None:
    """At Ctrl-C, and where it is killed; the fixture looks at processes."""
    program = launch.program(PROGRAM.format(start="") + SHARED + WAITS)
    command = launch.rank([*RUN, "-n", "2", program], {})
    assert command.process.stdout
    said = ""
    while "waits" not in said:
        said += command.process.stdout.readline()
    if how == "kill":
        command.process.kill()
    else:
        interrupt(command.process)
    command.end()
    until_gone(said)


ALONE = "import hpcoll; from mpi4py import MPI; print(MPI.COMM_WORLD.size)"


@pytest.mark.skipif(MPICH, reason="for libraries that their own launcher alone starts")
def test_library_that_cannot_be_started_so_says_what_to_do(launch: Launch) -> None:
    """Under variables of torchrun's the program runs as it does without hpcoll, and is told; `hpcoll.start` refuses."""
    code, out, error = launch.rank([launch.program(ALONE)], variables(1, 2, free_port())).end()
    assert (code, out) == (0, "1\n")
    assert "rank 1 of 2 runs alone: mpi4py has loaded Open MPI" in error
    assert "pip install 'hpcoll[mpich]'" in error
    text = "import hpcoll; hpcoll.start(0, 2, 'localhost:1')"
    assert (
        "ArgumentError: rank 0 of 2: mpi4py has loaded Open MPI"
        in launch.rank([launch.program(text)], {}).end()[2]
    )


@pytest.mark.full
def test_many_more_ranks_than_cores(launch: Launch) -> None:
    assert hpcoll.run(total, 64)[63] == (63, 64 * 63 / 2)


def test_demo(launch: Launch) -> None:
    """Every step ends well, in another folder than any checkout; the mistake is explained, and the library is measured beside hpcoll."""
    code, said, error = launch.rank(["-m", "hpcoll", "demo"], {}).end()
    assert code == 0, error
    assert said.count("\n$ hpcoll ") == 4
    assert "all correct" in said
    assert re.search(r"^  1 KiB +[\d.]+ us +[\d.]+ us +[\d.]+ +\w+$", said, re.MULTILINE), said
    assert re.search(r"^  rank 1: Bcast\(float64\[8\], root=0\) at mistake.py:\d+$", said, re.MULTILINE)
    assert "afterwards, the sum of all: [4. 4. 4. 4. 4. 4. 4. 4.]" in said


def test_demo_that_fails_says_where(launch: Launch) -> None:
    """Ranks without MPI: the steps that need none are shown all the same."""
    code, said, error = launch.rank(["-m", "hpcoll", "demo"], {"MPI4PY_LIBMPI": "/none/libmpi.so"}).end()
    assert code == 1
    assert "all correct" in said
    assert len(re.findall("hpcoll: failed: hpcoll run -n 4 .*; hpcoll doctor says what is wrong", error)) == 2
