"""A /dev/shm that is full in the middle of a job: errors that say so, on all ranks, or MPI messages instead; never a bus error.

Each test starts a job of its own in a mount namespace with a small /dev/shm, so they run once: where this one has a single rank.
"""

import os
import re
import subprocess

import pytest
from launching import STARTS_JOBS, command, finished
from mpi_run import OPEN_MPI_ROOT, SEGMENTS
from reference import SOON_S

ISOLATED = ["unshare", "--mount" if os.geteuid() == 0 else "-rm"]


def isolated() -> bool:
    """Say whether this system lets us have a /dev/shm of our own."""
    try:
        return (
            subprocess.run(
                [*ISOLATED, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, check=False
            ).returncode
            == 0
        )
    except OSError:
        return False


pytestmark = [*STARTS_JOBS, pytest.mark.skipif(not isolated(), reason="needs a mount namespace")]

FULL = """
FORMS = ("blocking", "in flight", "persistent")
def allreduce(on, count, form="blocking"):
    x, y = np.ones(count), np.zeros(count)
    if form == "blocking":
        on.Allreduce(x, y, algorithm="direct")
    else:
        request = on.Iallreduce(x, y, algorithm="direct") if form == "in flight" else requests[count]
        if form == "persistent":
            x, y = buffers[count]
            request.Start()
        request.Wait()
    return "right" if (y == on.size).all() else "WRONG"
def attempt(name, call):
    begun = time.monotonic()
    try:
        found = call()
    except hpcoll.HpcollError as error:
        found = f"{type(error).__name__}: {error}"
    say(name, "|", found, "|", time.monotonic() - begun < SOON_S)
buffers = {n: (np.ones(n), np.zeros(n)) for n in (8, 50_000)}
kept = [hpcoll.Communicator(world.Dup()) for _ in FORMS]
requests = {n: kept[2].Allreduce_init(*both, algorithm="direct") for n, both in buffers.items()}
for one, form in zip(kept, FORMS):
    for _ in range(30):  # each takes the next staging slot
        allreduce(one, 8, form)
warm = hpcoll.Communicator(world.Dup())
for _ in range(30):
    allreduce(warm, 50_000)
world.Barrier()
if world.rank == 0:
    room = os.statvfs("/dev/shm")
    filler = os.open("/dev/shm/filler", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(filler, 0, room.f_bavail * room.f_frsize)
world.Barrier()
attempt("warm", lambda: allreduce(warm, 50_000))
for one, form in zip(kept, FORMS):
    attempt(f"short, {form}", lambda: allreduce(one, 8, form))
    attempt(f"long, {form}", lambda: allreduce(one, 50_000, form))
attempt("empty", lambda: warm.empty(100_000).size)
attempt("share", lambda: warm.share(np.ones(100_000)).size)
attempt("new", lambda: allreduce(warm.Split(0, -warm.rank), 50_000))
def recovered():
    kept[0].recover()
    return allreduce(kept[0], 50_000)
attempt("recovered", recovered)
world.Barrier()
if world.rank == 0:
    os.ftruncate(filler, 0)
    os.unlink("/dev/shm/filler")
world.Barrier()
attempt("room again", lambda: allreduce(hpcoll.Communicator(world.Dup()), 50_000))
attempt("shares", lambda: warm.empty(1000).size)
"""
WORKS = ["warm", "short, blocking", "short, in flight", "short, persistent", "new", "recovered", "room again"]
REFUSED = r"ArgumentError: rank \d: .* of shared memory cannot be had: .*"
NO_MORE = r"(TransportError|PeerFailed): rank \d: .*the system has no more shared memory for messages between ranks of a node \(/dev/shm\)"


def test_full_in_the_middle() -> None:
    """What has its pages goes on, what needs more fails on all ranks and says why, and new communicators do without."""
    launched = command(3, f"SOON_S = {SOON_S}\n" + FULL)
    inside = ["sh", "-c", 'mount -t tmpfs -o size=160m tmpfs /dev/shm && exec "$@"', "sh", *launched]
    theirs = OPEN_MPI_ROOT | {SEGMENTS: "/tmp"}  # Open MPI's own memory is there, too, and is not asked for
    done = finished([*ISOLATED, *inside], theirs)
    wanted = {
        **dict.fromkeys(WORKS, "right"),
        **{f"long, {form}": NO_MORE for form in ("blocking", "in flight", "persistent")},
        "empty": REFUSED,
        "share": REFUSED,
        "shares": "1000",
    }
    for rank in range(3):
        said = dict(re.findall(rf"^rank {rank} ([\w, ]+) \| (.*) \| True$", done.stdout, re.MULTILINE))
        wrong = {
            name: said.get(name)
            for name, text in wanted.items()
            if not re.fullmatch(text, said.get(name, ""))
        }
        assert wrong == {}, done.stdout + done.stderr[-2000:]
    assert done.returncode == 0
