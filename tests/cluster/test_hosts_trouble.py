"""Between hosts: ranks that do not call the same, that end, stop, or come late; all others are told which, and why."""

import re
from pathlib import Path

import pytest
from hosts_run import run
from slowness import slowed

pytestmark = pytest.mark.usefixtures("hosts")
MORE = [pytest.mark.once, pytest.mark.ci]

# for what is promised in about one: all hosts share this machine's cores, and others may use them, too
SOON_S = slowed(15)
HEAD = """
import signal, hpcoll
comm = hpcoll.Communicator(world)
x, y = np.ones(COUNT), np.zeros(COUNT)
def right(one):
    for _ in range(3):
        one.Allreduce(x, y)
        assert (y == one.size).all()
        one.Iallreduce(x, y).Wait()
        one.Bcast(y, root=one.size - 1)
right(comm)
"""

# What the last rank calls otherwise, on a communicator of its own each; then all go on with it.
MISMATCHES = """
CASES = {
    "count": lambda wrong: one.Allreduce(x[: COUNT // 2] if wrong else x, y[: COUNT // 2] if wrong else y),
    "type": lambda wrong: one.Allreduce(x.view("i8") if wrong else x, y.view("i8") if wrong else y),
    "moved type": lambda wrong: one.Allgather(x.view("i8") if wrong else x, z.view("i8") if wrong else z),
    "bytes": lambda wrong: (one.Bcast([x, MPI.BYTE] if wrong else x), one.Barrier()),
    "operator": lambda wrong: one.Allreduce(x, y, MPI.MAX if wrong else MPI.SUM),
    "root": lambda wrong: (one.Bcast(x, root=1 if wrong else 0), one.Barrier()),
    "blocks": lambda wrong: one.Reduce_scatter(x, z, counts(wrong)),
    "collective": lambda wrong: one.Bcast(x) if wrong else one.Allreduce(x, y),
    "forms": lambda wrong: one.Iallreduce(x, y).Wait() if wrong else one.Allreduce(x, y),
    "in flight": lambda wrong: one.Iallreduce(x, y, MPI.MAX if wrong else MPI.SUM).Wait(),
    "in flight, moved type": lambda wrong: one.Iallgather(x.view("i8") if wrong else x, z.view("i8") if wrong else z).Wait(),
    "in flight, collective": lambda wrong: (one.Ibcast(x) if wrong else one.Iallreduce(x, y)).Wait(),
    "persistent": lambda wrong: persistent(one.Allreduce_init(x, y, MPI.MAX if wrong else MPI.SUM)),
    "persistent, root": lambda wrong: persistent(one.Bcast_init(x, root=1 if wrong else 0)),
    "persistent, moved type": lambda wrong: persistent(one.Bcast_init(x.view("i8") if wrong else x)),
}
def persistent(request):
    request.Start()
    request.Wait()
def counts(wrong):
    found = [COUNT // comm.size] * comm.size
    found[0] += COUNT % comm.size
    found[comm.rank] -= wrong
    found[0] += wrong
    return found
z = np.zeros(COUNT * comm.size)
for name, call in CASES.items():
    one = hpcoll.Communicator(world.Dup())
    right(one)
    begun = time.monotonic()
    try:
        call(comm.rank == comm.size - 1)
    except hpcoll.MismatchError as error:
        say(name, f"{time.monotonic() - begun:.2f}", str(error).partition(": ")[2])
    else:
        say(name, "NOT NOTICED")
    one.recover()
    right(one)
right(comm)
say("right")
"""

LATE = """
world.Barrier()
begun = time.monotonic()
if comm.rank == 1:
    VICTIM
try:
    comm.Allreduce(x, y, timeout=LIMIT)
except hpcoll.HpcollError as error:
    say(f"{time.monotonic() - begun:.2f}", type(error).__name__, error)
    END
say("right", (y == comm.size).all())
END
"""

# What rank 1 does, until the others have given it up; what these hear of it; what all do then; and the limit in seconds.
STOP = "os.system(f'(until [ -e GIVEN_UP ]; do sleep 0.1; done; kill -CONT {os.getpid()}) &'); os.kill(os.getpid(), signal.SIGSTOP)"
GO_ON = "open('GIVEN_UP', 'w').close(); world.Barrier(); os._exit(0)"
LIVES = {
    "comes late": (
        "world.Barrier()",
        r"CollectiveTimeout .*rank 1 is in no collective since \d\d:\d\d:\d\d, after (blocking )?call \d+",
        "comm.rank == 1 or world.Barrier(); world.Barrier(); os._exit(0)",
        1.5,
    ),
    "is stopped": (
        STOP,
        r"CollectiveTimeout .*rank 1 (is stopped|does not answer( since .*)?: it is stopped, or)",
        GO_ON,
        1.5,
    ),
    "is stopped once it has answered": (
        f"time.sleep(1); {STOP}",
        r"CollectiveTimeout .*rank 1 (is stopped|does not answer since .*: it is stopped, or)",
        GO_ON,
        4,
    ),
}

# How rank 1 ends without ``-m mpi4py``, what the others hear where the launcher leaves them alive, and whether it always does.
ENDS = {
    "its program": ("sys.exit(0)", "has ended its program", True),
    "by an exception": ("raise OSError('no such file')", "was ended by OSError: no such file", True),
    "in the middle": ("os._exit(0)", r"has (ended|left by os\._exit)", False),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "has ended", False),
}

NRANKS = {"-n 3": 3, "-n 2 --ranks-per-host 2": 4, "--slots 3,2": 5}


def said(text: str) -> dict[str, str]:
    """Return what each rank said, in lines."""
    found: dict[str, str] = {}
    for rank, line in re.findall(r"^rank (\d+) (.*)$", text, re.MULTILINE):
        found[rank] = found.get(rank, "") + line + "\n"
    return found


@pytest.mark.ci
@pytest.mark.once
@pytest.mark.parametrize(
    "options", [pytest.param(one, marks=[pytest.mark.full] * (NRANKS[one] != 4)) for one in NRANKS]
)
@pytest.mark.parametrize("count", [8, pytest.param(40_000, marks=pytest.mark.full)])
def test_mismatches(options: str, count: int) -> None:
    """Every rank raises soon, with all calls and their lines; the communicator works again once it is recovered; others do meanwhile."""
    done = run(options, HEAD.replace("COUNT", str(count)) + MISMATCHES.replace("COUNT", str(count)))
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    found = said(done.stdout)
    assert len(found) == NRANKS[options], done.stderr[-3000:]
    for rank, text in found.items():
        lines = text.splitlines()
        assert lines[-1] == "right", (rank, text)
        for line in lines[:-1]:
            # with the call, on some ranks, whose line nobody knows then
            through = line.startswith(("root", "bytes"))
            left = "" if through else r" at <string>:\d+"
            told = re.search(rf" (\d+\.\d\d) .*ranks? 0[-, \d]*: \w+\(.*{left}[^;]*; rank \d: \w+\(", line)
            assert told, (rank, line)
            assert float(told[1]) < SOON_S, (rank, line)
        assert len(lines) == 16, (rank, text)


@pytest.mark.parametrize("options", ["-n 3", pytest.param("-n 2 --ranks-per-host 2", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "how", [one if one == "is stopped" else pytest.param(one, marks=MORE) for one in LIVES]
)
def test_a_rank_does_not_come(how: str, options: str, tmp_path: Path) -> None:
    """Named by all others, with what it does."""
    victim, told, end, limit_s = LIVES[how]
    script = HEAD.replace("COUNT", "8") + LATE.replace("VICTIM", victim).replace("END", end).replace(
        "LIMIT", str(limit_s)
    )
    done = run(options, script.replace("GIVEN_UP", str(tmp_path / "given_up")))
    found = said(done.stdout)
    assert {"0", "2"} <= found.keys(), done.stderr[-2000:]
    for rank, text in found.items():
        if rank != "1":
            seconds, _, error = text.partition(" ")
            assert re.search(told, error), (rank, text, done.stderr[-2000:])
            assert float(seconds) < SOON_S, text


@pytest.mark.parametrize("options", ["-n 3", pytest.param("-n 2 --ranks-per-host 2", marks=pytest.mark.full)])
@pytest.mark.parametrize("how", [one if one == "killed" else pytest.param(one, marks=MORE) for one in ENDS])
def test_a_rank_ends(how: str, options: str) -> None:
    """The others hear of it soon, and the job ends with an error, by itself."""
    victim, told, everyone = ENDS[how]
    script = HEAD.replace("COUNT", "8") + LATE.replace("VICTIM", victim).replace("END", "raise").replace(
        ", timeout=LIMIT", ""
    )
    done = run(options, script, aborts=False)
    assert done.returncode != 0, done.stdout
    found = {rank: text for rank, text in said(done.stdout).items() if rank != "1"}
    assert len(found) == NRANKS[options] - 1 or not everyone, (done.stdout, done.stderr[-2000:])
    for rank, text in found.items():
        seconds, _, error = text.partition(" ")
        assert re.search(rf"PeerFailed .*rank 1 \(process \d+ on host\d\) {told}", error), (rank, text)
        assert float(seconds) < SOON_S, text
