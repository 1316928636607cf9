"""Ranks that end, stop or are late in the middle of a job: the others are told which and why, and the job ends by itself.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import LIMIT_S, MESSAGES, STARTS_JOBS, command, finished, spoken
from mpi4py import MPI
from reference import SOON_S

pytestmark = STARTS_JOBS

NRANKS = 3
CALLS = """
import signal
x, y = np.ones(COUNT), np.zeros(COUNT)
FORMS = {
    "blocking": lambda: comm.Allreduce(x, y),
    "in flight": lambda: comm.Iallreduce(x, y).Wait(),
    "persistent": lambda: (request.Start(), request.Wait()),
    "first use": lambda: hpcoll.Communicator(others.pop()).Allreduce(x, y),
    "planned": lambda: (y.fill(comm.size), [comm.Allreduce_init(np.ones(n), np.zeros(n)) for n in range(1, 9)]),
}
request = comm.Allreduce_init(x, y)
for _ in range(3):
    FORMS[FORM]()
    assert (y == comm.size).all()
comm.Barrier()
on = comm._context.resources
on.config = on.config._replace(**SETTINGS)  # not earlier: ranks take their time to start, and to compile
world.Barrier()
if comm.rank != 1:
    world.send("out of the barrier", 1)
begun = time.monotonic()
if comm.rank == 1:
    others = [world.recv() for _ in range(world.size - 1)]  # the MPI library's barrier would fail where this one is killed
    VICTIM
try:
    FORMS[FORM]()
except hpcoll.HpcollError as error:
    say(f"{time.monotonic() - begun:.2f}", type(error).__name__, error)
    AFTER
else:
    say("right", (y == comm.size).all())
"""
FORMS = ("blocking", "in flight", "persistent")
FIRST: tuple[str, dict[str, str]] = (FORMS[0], {})
ENDINGS = {
    "an exception": ("raise OSError('no such file')", "was ended by OSError: no such file"),
    "sys.exit": ("sys.exit(0)", "has ended its program"),
    "the program's end": ("os.environ.get('NEVER') or sys.exit()", "has ended its program"),
}


# What ranks do when others have yet to come, or to hear of it: the one that is waited for, and the others. All that is sent to the first
# may be there when it comes, but not the news that the others have given up: then it hears that in its next call.
UNTIL_GIVEN_UP = "world.Barrier(); once = FORMS[FORM]; FORMS[FORM] = lambda: [once() for _ in range(4)]"
GIVEN_UP = "comm.rank == 1 or world.Barrier(); world.Barrier(); os._exit(0)"


def job(
    form: str,
    victim: str,
    after: str = "raise",
    count: int = 8,
    before: str = "",
    options: tuple[str, ...] = (),
    settings: dict[str, float] | None = None,
    **variables: str,
) -> tuple[dict[int, list[str]], str, int]:
    """Return what each rank said, what was complained of, and the exit status.

    Args:
        form: Of the call.
        victim: What rank 1 does instead, or before.
        after: What a rank does with an error.
        count: Elements.
        before: What all ranks do first.
        options: Of the launcher.
        settings: Of hpcoll, for the calls from the victim's on.
        variables: Of the environment.
    """
    script = f"FORM, COUNT, SETTINGS = {form!r}, {count}, {settings or {}}\n{before}\n"
    script += CALLS.replace("VICTIM", victim).replace("AFTER", after)
    done = finished(command(NRANKS, script, options=options), variables)
    launcher_said = re.sub(r"^rank \d+ .*\n", "", done.stdout, flags=re.MULTILINE)
    return spoken(NRANKS, done.stdout), done.stderr + launcher_said, done.returncode


@pytest.mark.parametrize(
    ("ending", "form", "way"),
    [
        ("an exception", "blocking", {}),
        ("sys.exit", "in flight", MESSAGES),
        pytest.param("the program's end", "persistent", {}, marks=pytest.mark.full),
    ],
)
def test_a_rank_leaves(ending: str, form: str, way: dict[str, str]) -> None:
    """In Python, by whatever way, without ``-m mpi4py``: the others raise soon, and the job ends with an error."""
    victim, told = ENDINGS[ending]
    said, errors, status = job(form, victim, count=8 if form == "blocking" or way else 40_000, **way)
    for rank in (0, 2):
        assert len(said[rank]) == 1, (said, errors)
        found = re.fullmatch(
            rf"(\d+\.\d+) PeerFailed rank {rank}: .*rank 1 \(process \d+ on .*\) {told}", said[rank][0]
        )
        assert found, said[rank]
        assert float(found[1]) < SOON_S
    assert status != 0


@pytest.mark.parametrize(
    ("form", "way"),
    [("blocking", {}), pytest.param("persistent", MESSAGES, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_a_rank_is_gone(end: str, form: str, way: dict[str, str]) -> None:
    """Where the launcher leaves the others alive they raise; else it ends them: nobody hangs, or says that all is right, or ends well."""
    said, others, status = job(form, end, **way)
    told = [text for rank in (0, 2) for text in said[rank]]
    assert [text for text in told if "PeerFailed" not in text] == []
    assert said[1] == []
    # hpcoll lets them hear of it before its launcher ends them
    if "_exit" in end and "MPICH" in MPI.Get_library_version():
        assert len([one for one in told if re.search(r"rank 1 .* has left by os\._exit\(0\)", one)]) == 2, (
            told,
            others,
        )
    if "_exit" not in end:
        assert told or re.search(r"signal 9|SIGKILL|Killed|KILLED|EXIT CODE: 9", others), others
    assert status != 0


@pytest.mark.ci
@pytest.mark.once
def test_a_rank_ends_before_its_first_communicator() -> None:
    """Which others of its node make: there is nothing yet by which it could tell them."""
    end, told = ENDINGS["an exception"]
    script = f"""
import os, sys, time
from mpi4py import MPI
import hpcoll
world = MPI.COMM_WORLD
world.Barrier()
if world.rank == 1:
    {end}
begun = time.monotonic()
try:
    hpcoll.Communicator(world)
except hpcoll.PeerFailed as error:
    sys.stdout.write(f"rank {{world.rank}} {{time.monotonic() - begun:.2f}} {{error}}\\n")
    raise
"""
    done = finished(command(NRANKS, script, head=""), {})
    said = spoken(NRANKS, done.stdout)
    for rank in (0, 2):
        found = re.fullmatch(
            rf"(\d+\.\d+) rank {rank}: .*: rank 1 \(process \d+ on .*\) {told}", "".join(said[rank])
        )
        assert found, said[rank]
        assert float(found[1]) < SOON_S
    assert done.returncode != 0


@pytest.mark.ci
@pytest.mark.once
@pytest.mark.parametrize(
    ("form", "way"),
    [
        ("in flight", {}),
        pytest.param("blocking", MESSAGES, marks=pytest.mark.full),
    ],
)
def test_a_rank_that_does_not_come(form: str, way: dict[str, str]) -> None:
    """Warned about, then given up by all with one text; whoever comes later hears it, too."""
    said, errors, _ = job(form, UNTIL_GIVEN_UP, GIVEN_UP, settings={"warn": 0.5, "timeout": 2.5}, **way)
    texts = {re.sub(r"^\S+ CollectiveTimeout rank \d+: ", "", text) for rank in said for text in said[rank]}
    assert [len(said[rank]) for rank in range(NRANKS)] == [1] * NRANKS, (said, errors)
    assert len(texts) == 1, said
    call = r"I?[aA]llreduce(_init)?\(float64\[8\], op=SUM\) at .*:\d+, (blocking call \d+ |call \d+ in flight )?on MPI_COMM_WORLD,"
    told = rf"{call} did not end in 2\.5 s: rank [02] waits for rank 1; rank 1 is in no collective since \d\d:\d\d:\d\d"
    assert re.search(told, texts.pop())
    seconds = [float(said[rank][0].split()[0]) for rank in (0, 2)]
    assert all(2.4 < one < SOON_S for one in seconds), seconds
    warned = [
        line
        for line in errors.splitlines()
        if " on MPI_COMM_WORLD, has waited for" in line and "CollectiveTimeout" not in line
    ]
    assert 1 <= len(warned) <= 2, errors  # one, where rank 2 hears in time that rank 0 waits
    assert re.search(rf"{call} has waited for \d+ s: rank [02] ", warned[0])


@pytest.mark.ci
@pytest.mark.once
def test_a_stopped_rank_is_named() -> None:
    """SIGSTOP, as under a debugger; it goes on when the others have given it up, and hears that."""
    before = f"""
import signal
pids = world.allgather(os.getpid())
goes_on = threading.Timer({LIMIT_S - 30}, os.kill, (pids[1], signal.SIGCONT))  # in any case
goes_on.daemon = True
goes_on.start()
"""
    victim, after = (
        "goes_on.cancel(); os.kill(os.getpid(), signal.SIGSTOP)",
        "os.kill(pids[1], signal.SIGCONT)",
    )
    said, errors, _ = job("blocking", victim, after, before=before, settings={"timeout": 1})
    assert all(len(texts) == 1 and "CollectiveTimeout" in texts[0] for texts in said.values()), (said, errors)
    assert "rank 1 is stopped" in said[0][0]


@pytest.mark.ci
@pytest.mark.once
def test_a_rank_waits_on_another_communicator() -> None:
    """It is named as it is called since; the chain of waits goes on there. Nobody raises: another thread of rank 1 may come."""
    before = "other = hpcoll.Communicator(world.Dup())\nother.Barrier(algorithm='dissemination')\nother.Set_name('the other')"
    victim = """
    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
    other.Reduce(x, y, root=1)
    """
    said, errors, _ = job(
        "blocking", victim, "os._exit(0)", before=before, settings={"warn": 0.5, "timeout": 2}
    )
    chain = r"rank 1 waits in Reduce\(float64\[8\], op=SUM, root=1\) at <string>:\d+ on the other since [\d:]+ for ranks? (0|2|0, 2)"
    assert re.search(rf"rank 0 waits for rank 1; {chain}; rank [02] ", errors + str(said)), (said, errors)
    assert "MismatchError" not in errors + str(said)


@pytest.mark.ci
@pytest.mark.once
def test_one_rank_gives_up() -> None:
    """Ctrl-C, or anything else that ends a call on one rank only."""
    victim = """
    def give_up(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, give_up)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        FORMS["blocking"]()
    except KeyboardInterrupt:
        say("gave up")
        world.send(None, 2)
        world.Barrier()
        os._exit(0)
elif comm.rank == 2:
    world.recv(source=1)
    """
    said, errors, _ = job("blocking", victim, after="world.Barrier(); os._exit(0)")
    assert said[1] == ["gave up"], (said, errors)
    for rank in (0, 2):
        assert re.search(r"PeerFailed .*rank 1 gave up", said[rank][0]), (said, errors)


@pytest.mark.ci
@pytest.mark.once
def test_records(tmp_path: Path) -> None:
    """Each rank leaves one when a call fails and at SIGUSR2, and ``hpcoll inspect`` says of them what happened."""
    victim = """
    os.kill(os.getpid(), signal.SIGUSR2)
    try:
        comm.Bcast(x)
        comm.Allreduce(x, y)
    except hpcoll.MismatchError:
        say("told")
        world.Barrier()
        os._exit(0)
    """
    said, errors, _ = job(
        "blocking", victim, after="world.Barrier(); os._exit(0)", HPCOLL_RECORD=str(tmp_path)
    )
    assert said[1] == ["told"], (said, errors)
    assert f"rank 1: its calls are recorded in {tmp_path}/rank1.json" in errors
    shown = subprocess.run(
        [sys.executable, "-m", "hpcoll", "inspect", *tmp_path.iterdir()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 1, shown.stderr
    last = shown.stdout.rstrip().rpartition("\n\n")[2].replace("\n  ", " ")
    told = (
        r"rank 1 called Bcast where the others called Allreduce, their \d+th blocking call on MPI_COMM_WORLD"
    )
    assert re.fullmatch(told, last), shown.stdout
    assert re.search(
        r"ranks 0, 2 +Allreduce\(float64\[8\], op=SUM\) by \w+ +waiting +<string>:\d+", shown.stdout
    ), shown.stdout


@pytest.mark.once
def test_an_agreement_is_watched() -> None:
    """What ranks agree on before hpcoll runs anything: a rank that does not come is warned about, and given up; if it comes, it is told."""
    said, errors, _ = job(
        "planned", UNTIL_GIVEN_UP, GIVEN_UP, settings={"warn": 0.2, "timeout": 1.5}, **MESSAGES
    )
    call = r"a persistent request at \S+:\d+, on MPI_COMM_WORLD,"
    for rank in range(NRANKS):
        told = rf"\S+ CollectiveTimeout rank {rank}: {call} did not end in 1\.5 s: .*; rank 1 is in no coll"
        assert len(said[rank]) == 1, (said, errors)
        assert re.match(told, said[rank][0]), said
    assert re.search(rf"{call} has waited for \d+ s: rank \d waits for", errors), errors


@pytest.mark.full
def test_a_slow_rank_is_waited_for() -> None:
    """Without a limit nothing is given up; a warning is all."""
    said, errors, status = job("blocking", "time.sleep(2)", settings={"warn": 0.5})
    assert (said, status) == ({rank: ["right True"] for rank in range(NRANKS)}, 0), errors
    assert len([line for line in errors.splitlines() if "waits for" in line]) in (1, 2)
