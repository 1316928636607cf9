"""The emulated hosts: the rate of a link, what the script passes on and refuses, and how a job ends."""

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest
from hosts_run import HOSTS, LIMIT_S, command, environment, processes, run, said, traces
from slowness import slowed

pytestmark = pytest.mark.usefixtures("hosts")

# Messages between pairs of ranks at the same time; rate of one direction of the link of host0. The best counts, and more are
# tried while it is poor, as cores are shared; time starts before the barrier, lest bytes are on their way already.
RATE = """
def mbit(pairs):
    blocks, found = {pair: np.ones(NBYTES, "u1") for pair in pairs if world.rank in pair}, []
    through, least = max(sum(pair[way] == 0 for pair in pairs) for way in (0, 1)), 2.1 if pairs == [(0, 1)] else 0.9
    end = time.monotonic() + PATIENCE_S
    while len(found) < 5 or world.bcast(max(found) < least * MBIT and time.monotonic() < end):
        start = time.perf_counter()
        world.Barrier()
        MPI.Request.Waitall([world.Isend(block, b) if a == world.rank else world.Irecv(block, a) for (a, b), block in blocks.items()])
        world.Barrier()
        found.append(through * NBYTES * 8e-6 / (time.perf_counter() - start))
    return max(found)
say("mbit", *(f"{mbit(pairs):.0f}" for pairs in WAYS))
"""

ENDLESS = """
say("up")
x = np.ones(1000)
while True:
    world.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX)
"""

ONE_DIES = """
if world.rank == 1:
    os.kill(os.getpid(), 9)
world.Barrier()
"""


@pytest.fixture
def token() -> Iterator[str]:
    """Something for the environment of a job, of which nothing may be left afterwards: processes, files, mounts, links."""
    one, before, name = uuid.uuid4().hex, traces(), os.uname().nodename
    yield one
    end = time.monotonic() + LIMIT_S
    while processes(one) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes(one) == []
    assert traces() - before == set()
    assert os.uname().nodename == name


def started(options: str, token: str, nranks: int) -> subprocess.Popen[str]:
    """A job that goes on for ever, once every rank is up; it has a process group of its own, as a shell's job has.

    A shell cannot trap what was ignored when it started, as SIGHUP is under nohup and SIGINT in the background of a script.
    """
    running = subprocess.Popen(
        ["env", "--default-signal=HUP,INT,QUIT,TERM", *command(options, ENDLESS)],
        env=environment({"TOKEN": token}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert {running.stdout.readline() for _ in range(nranks)} == {
        f"rank {rank} up\n" for rank in range(nranks)
    }
    return running


@pytest.mark.parametrize(
    ("mbit", "nbytes"), [(200, 1 << 20), pytest.param(1000, 8 << 20, marks=pytest.mark.full)]
)
@pytest.mark.idle
def test_rate(mbit: int, nbytes: int) -> None:
    """A link carries its rate less the headers, to one host, to and from two; memory is not a link."""
    ways = [[(0, 1)], [(0, 2)], [(0, 2), (0, 3)], [(2, 0), (3, 0)]]
    least = (0.75 if mbit < 1000 else 0.6) * mbit  # packets cost time of cores, which others may hold
    if mbit < 1000:  # both ways at once
        ways.append([(0, 2), (2, 0)])
    done = run(
        f"--slots 2,1,1 --rate {mbit}mbit",
        f"MBIT, NBYTES, WAYS, PATIENCE_S = {mbit}, {nbytes}, {ways}, {slowed(15)}\n{RATE}",
    )
    inside, *between = map(float, said(4, done, "mbit")[0].split())
    assert all(least < one < 1.05 * mbit for one in between), (inside, between)
    assert inside > 2 * mbit


def test_status_and_refusals() -> None:
    assert run("-n 2", "sys.exit(5)").returncode == 5
    for options, complaint in {
        "-n 0": "-n must be 1 to 99, got 0",
        "-n": "-n needs a value",
        "--slots 1,,2": "ranks of a host must be 1 or more, got ",
        "--map x": "--map must be block or cyclic, got x",
        "--rate 1g": "--rate must look like 200mbit or 1gbit, got 1g",
        "x": "got x",
        "--library x": "--library must be openmpi, mpich or none, got x",
        "--burst 9999": "--burst must be 10000 bytes or more, got 9999",
    }.items():
        done = run(options, "")
        assert done.returncode == 2, (options, done.stderr)
        assert complaint in done.stderr


def test_any_command_beside_the_switch() -> None:
    """No MPI: names of the hosts, and words that run on them."""
    words = 'for host in $HOSTS_NAMES; do "$HOSTS_SSH" $host "hostname; exit 3"; echo $?; done; exit 4'
    done = subprocess.run(
        [HOSTS, "-n", "3", "--library", "none", "--", "sh", "-c", words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (4, "host0 3 host1 3 host2 3".split()), done.stderr


def test_a_rank_that_dies_ends_the_job(token: str) -> None:
    start = time.monotonic()
    done = run("-n 2 --ranks-per-host 2", ONE_DIES, TOKEN=token)
    assert done.returncode != 0
    noticed = "signal 9|SIGKILL|Killed|EXIT CODE: 9|failed to TCP connect"  # by mpirun, or by the other rank
    assert re.search(noticed, done.stdout + done.stderr), done.stdout + done.stderr
    assert time.monotonic() - start < slowed(30)


@pytest.mark.parametrize(
    "name",
    ["SIGKILL", "SIGINT", *(pytest.param(one, marks=pytest.mark.full) for one in ("SIGTERM", "SIGHUP"))],
)
def test_nothing_is_left_when_the_script_ends(name: str, token: str) -> None:
    with started("--slots 2,1 --rate 1gbit", token, 3) as running:
        assert len(processes(token)) > 2 * 3
        running.send_signal(signal.Signals[name])
        assert running.wait(10) == -signal.Signals[name]
