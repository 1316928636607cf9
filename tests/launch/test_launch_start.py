"""Ranks that find each other by variables or by `hpcoll.start`: right answers, who is missing, who is not let in, and what is left."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import (
    LIMIT_S,
    MPICH,
    PROGRAM,
    SHARED,
    SOON_S,
    Launch,
    Rank,
    free_port,
    own_address,
    sums,
    tokens,
    until_gone,
    variables,
)

pytestmark = pytest.mark.skipif(not MPICH, reason="needs MPICH, whose ranks can be started so")
BY_VARIABLES = PROGRAM.format(start="")
START = (
    "import sys; hpcoll.start(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], timeout=float(sys.argv[4]))"
)
BY_START = PROGRAM.format(start=START)
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
is_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"
)


def started(
    launch: Launch, ranks: list[int], nranks: int, limit_s: float = LIMIT_S, **more: str
) -> list[Rank]:
    """Start some of the ranks by variables."""
    program, port = launch.program(BY_VARIABLES), free_port()
    told = {"HPCOLL_START_TIMEOUT": str(limit_s), **more}
    return [launch.rank([program], variables(rank, nranks, port) | told) for rank in ranks]


@pytest.mark.parametrize(
    "nranks", [pytest.param(1, marks=pytest.mark.ci), 2, pytest.param(5, marks=pytest.mark.ci)]
)
def test_variables_of_one_host(nranks: int, launch: Launch) -> None:
    assert tokens(started(launch, list(range(nranks)), nranks)) == sums(nranks)


def test_variables_with_an_address_of_the_network(launch: Launch) -> None:
    """The ranks meet at the port, as on several hosts; rank 0 comes last."""
    program, port, host = launch.program(BY_VARIABLES), free_port(), own_address()
    ranks = []
    for rank in (2, 1, 0):
        ranks.append(launch.rank([program], variables(rank, 3, port, host)))
        time.sleep(0.3)
    assert tokens(ranks[::-1]) == sums(3)


def test_start(launch: Launch) -> None:
    """By arguments alone; the port is free again for others while the ranks run."""
    again = "import socket; comm.rank or socket.create_server(('127.0.0.1', int(sys.argv[3].split(':')[1]))).close()"
    program, port = launch.program(BY_START + again), free_port()
    words = [str(LIMIT_S)]
    ranks = [launch.rank([program, str(rank), "3", f"localhost:{port}", *words], {}) for rank in range(3)]
    assert tokens(ranks) == sums(3)


@pytest.mark.parametrize("there", [[0, 1, 3], [1, 2]], ids=["rank 2", "ranks 0 and 3"])
def test_missing_ranks_are_named(there: list[int], launch: Launch) -> None:
    """By every rank that is there. Where rank 0 has not come, nobody knows of others."""
    for code, _, error in [rank.end() for rank in started(launch, there, 4, 2.0)]:
        assert code == 1
        assert f"rank {2 if 0 in there else 0} has not come within 2 s" in error.splitlines()[-1]


@pytest.mark.ci
def test_another_number_of_ranks_is_refused(launch: Launch) -> None:
    program, port = launch.program(BY_START), free_port()
    for_all = [f"localhost:{port}", "3"]
    right = [launch.rank([program, str(rank), "3", *for_all], {}) for rank in (0, 1)]
    code, _, error = launch.rank([program, "2", "4", *for_all], {}).end()
    assert (code, error.splitlines()[-1]) == (
        1,
        "hpcoll.TransportError: rank 2 of 4: it says 4 ranks, and rank 0 says 3",
    )
    assert ["rank 2 has not come" in rank.end()[2] for rank in right] == [True, True]


@pytest.mark.ci
def test_second_process_of_a_rank_is_refused(launch: Launch) -> None:
    """Whichever comes later, at once; the ranks meet without it."""
    program, port = launch.program(BY_START), free_port()

    def rank(number: int) -> Rank:
        return launch.rank([program, str(number), "3", f"localhost:{port}", str(LIMIT_S)], {})

    first, twins = rank(0), [rank(1), rank(1)]
    end = time.monotonic() + LIMIT_S
    while all(twin.process.poll() is None for twin in twins):
        assert time.monotonic() < end
        time.sleep(0.05)
    twins.sort(key=lambda twin: twin.process.poll() is None)
    assert "there is a rank 1 already: process" in twins[0].end()[2]
    assert tokens([first, twins[1], rank(2)]) == sums(3)


@pytest.mark.ci
def test_another_key_is_refused(launch: Launch) -> None:
    program, port = launch.program(BY_START), free_port()
    words = ["2", f"localhost:{port}", "3"]
    ranks = [launch.rank([program, str(rank), *words], {"HPCOLL_KEY": f"key {rank}"}) for rank in (0, 1)]
    assert "has another key: set HPCOLL_KEY" in ranks[1].end()[2].splitlines()[-1]
    assert "rank 1 has not come" in ranks[0].end()[2]


STRANGER = r"""
exec {fd}<>/dev/tcp/127.0.0.1/"$1"
printf 'cmd=init pmi_version=1 pmi_subversion=1\n%0100d' 0 >&$fd
timeout 2 head -c 64 <&$fd | od -An -v -tx1 | tr -d ' \n'
echo " as $UID"
"""


@is_root
def test_another_user_gets_nothing(launch: Launch) -> None:
    """Whoever speaks PMI to the port hears a nonce, and zeros for a proof that is wrong; the ranks meet as ever."""
    program, port = launch.program(BY_START), free_port()

    def rank(number: int) -> Rank:
        return launch.rank([program, str(number), "3", f"localhost:{port}", str(LIMIT_S)], {})

    first = [rank(0), rank(1)]
    end = time.monotonic() + SOON_S
    while f":{port:04X} " not in Path("/proc/net/tcp").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    told = subprocess.run(
        [*NOBODY, "bash", "-c", STRANGER, "bash", str(port)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    heard, _, who = told.stdout.strip().partition(" ")
    assert (len(heard), heard[64:], who) == (128, 64 * "0", "as 65534")
    assert tokens([*first, rank(2)]) == sums(3)


@pytest.mark.ci
def test_rank_0_that_is_killed_ends_the_wait(launch: Launch) -> None:
    ranks = started(launch, [0, 1], 3, SOON_S)
    time.sleep(1.0)
    ranks[0].process.kill()
    assert "rank 0 has" in ranks[1].end()[2].splitlines()[-1]


@pytest.mark.parametrize("victim", [0, 1])
def test_nothing_is_left_of_ranks_that_are_killed(victim: int, launch: Launch) -> None:
    """After they have met; the fixture looks at processes."""
    rest = "import time; comm.rank == VICTIM and os.kill(os.getpid(), 9); time.sleep(0.5); os.kill(os.getpid(), 9)"
    program, port = (
        launch.program("import os" + BY_VARIABLES + SHARED + rest.replace("VICTIM", str(victim))),
        free_port(),
    )
    ranks = [launch.rank([program], variables(rank, 3, port)) for rank in range(3)]
    ended = [rank.end() for rank in ranks]
    assert [code for code, _, _ in ended] == [-signal.SIGKILL] * 3
    assert "/dev/shm/mpich" in ended[2][1]
    until_gone(ended[2][1].replace(" (deleted)", ""))


def test_abort_ends_all_ranks_of_the_host(launch: Launch) -> None:
    program, port = (
        launch.program(BY_VARIABLES + "import time\nif comm.rank: time.sleep(1000)\ncomm.Abort(3)"),
        free_port(),
    )
    ranks = [launch.rank([program], variables(rank, 3, port)) for rank in range(3)]
    assert [rank.end()[0] for rank in ranks] == [-signal.SIGKILL] * 3


CHILDREN = """
import subprocess, sys
child = "import hpcoll; from mpi4py import MPI; print('child', MPI.COMM_WORLD.size)"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=30).stdout)
"""


def test_children_of_ranks_are_no_ranks(launch: Launch) -> None:
    """They inherit the variables, and are programs of one rank: before MPI has begun, and after."""
    program, port = launch.program("import hpcoll" + CHILDREN + BY_VARIABLES + CHILDREN), free_port()
    ranks = [launch.rank([program], variables(rank, 2, port)) for rank in range(2)]
    said = tokens(ranks)
    assert [one.split("\n") for one in said] == [["child 1", "", token, "child 1"] for token in sums(2)]


@pytest.mark.ci
def test_import_that_comes_too_late_is_said(launch: Launch) -> None:
    program, port = launch.program("from mpi4py import MPI\n" + BY_VARIABLES), free_port()
    code, out, error = launch.rank([program], variables(1, 2, port)).end()
    assert (code, out) == (0, "rank 0 of 1 has 1\n")
    assert (
        "rank 1 of 2 runs alone, since MPI began before hpcoll was imported: import hpcoll before mpi4py.MPI"
        in error
    )


def test_doctor_is_one_of_the_ranks(launch: Launch) -> None:
    """It examines all of them, and finds them well."""
    port, words = free_port(), ["-m", "hpcoll", "doctor"]
    ranks = [launch.rank(words, variables(rank, 2, port) | {"LOCAL_RANK": str(rank)}) for rank in range(2)]
    said, nothing = tokens(ranks)
    assert ("ok    launcher: torchrun or its like, 2 ranks" in said, nothing) == (True, "")


@pytest.mark.ci
def test_program_that_begins_mpi_itself(launch: Launch) -> None:
    """With ``mpi4py.rc.initialize`` false nothing begins at the import."""
    text = "import hpcoll, mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Is_initialized())"
    assert tokens([launch.rank([launch.program(text)], variables(0, 2, free_port()))]) == ["False"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("3, 3, 'localhost:1'", "rank must be from 0 to nranks - 1, got rank 3 of 3"),
        ("0, 2, 'localhost'", "rank 0 of 2: address must be 'host:port', got 'localhost'"),
        ("0, 2, 'localhost:99999'", "address must be 'host:port'"),
    ],
)
def test_wrong_arguments(arguments: str, said: str, launch: Launch) -> None:
    """Refused before anybody listens."""
    program = launch.program(f"import hpcoll; hpcoll.start({arguments})")
    assert said in launch.rank([program], {}).end()[2].splitlines()[-1]


NODES = """
node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
print("node of", comm.allgather(node.rank))
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, for host names"
)
@pytest.mark.parametrize(
    ("hosts", "places"),
    [("aab", [0, 1, 0]), ("abab", [0, 0, 1, 1]), ("abbba", [0, 0, 1, 2, 1])],
    ids=["uneven", "in turn", "apart"],
)
def test_ranks_of_several_hosts(hosts: str, places: list[int], launch: Launch) -> None:
    """The library knows who shares a node, whatever the order of ranks."""
    program, port = launch.program(BY_START + NODES), free_port()
    ranks = []
    for rank, host in enumerate(hosts):
        words = [program, str(rank), str(len(hosts)), f"localhost:{port}", str(LIMIT_S)]
        named = ("unshare", "--uts", "sh", "-c", f'hostname host{host}; exec "$@"', "sh")
        ranks.append(launch.rank(words, {}, named))
    said = tokens(ranks)
    assert [one.splitlines()[0] for one in said] == sums(len(hosts))
    assert said[0].splitlines()[1] == f"node of {places}"
