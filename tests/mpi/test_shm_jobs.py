"""Whole jobs and the memory that their ranks share: its limits, ranks that are killed, more ranks than cores.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import LIMIT_S, MESSAGES, STARTS_JOBS, command, environment, finished, job

pytestmark = STARTS_JOBS

NAMED_BY_MPI = ("sm_segment", "vader_segment", "mpich_shm", "ucx_shm", "psm", "sem.", "cma_shm")

# Algorithms with messages of all kinds, in place and not; what was wrong.
MANY = f"""
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from reference import ALGORITHMS, REPRESENTATIVE, agreed
from test_collectives import run, run_in_place
cases = [(runner, collective, count, comm.size - 1, dict(algorithm=algorithm, segment=segment)) for runner in (run, run_in_place)
         for collective, algorithm in ALGORITHMS if f"{{collective}}/{{algorithm}}" in REPRESENTATIVE
         for count, segment in ((7, None), (1009, 640), (20_001, None))]
wrong = [(collective, count, more) for runner, collective, count, root, more in cases if not runner(comm, collective, count, root, **more)]
say("wrong", agreed(wrong))
say("rings", nrings, "local peers", sorted(node.local_peers))
"""

# Ranks compute until somebody ends it.
ENDLESS = """
windows = [line.split()[-2] for line in open("/proc/self/maps") if "/dev/shm/" in line and "(deleted)" in line]
say("pid", os.getpid(), "windows", len(windows), "rings", nrings)
x, y = np.ones(5), np.ones(100_000)
if comm.rank == int(os.environ.get("VICTIM", "-1")):
    threading.Timer(0.5, os.kill, (os.getpid(), 9)).start()
while True:
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX, algorithm="direct")
    comm.Allreduce(MPI.IN_PLACE, y, op=MPI.MAX, algorithm="ring")
"""

# Short and long messages by ranks that share cores.
CROWD = """
x, y, start = np.zeros(1), np.zeros(100_000), time.perf_counter()
for i in range(100):
    x[0], y[:] = comm.rank + i, comm.rank + i
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="recursive_doubling")
    if i % 10 == 0:
        comm.Allreduce(MPI.IN_PLACE, y, algorithm="ring")
    assert x[0] == sum(range(comm.size)) + i * comm.size
    assert (y == sum(range(comm.size)) + i * comm.size).all() or i % 10
say("took", time.perf_counter() - start)
"""

# Rank 0 lends its memory for a broadcast and does not keep it; where it ends, the launcher would end rank 1, too, but for a moment.
LOST = """
import ctypes, mmap, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
assert node.own_memory is not None
if comm.rank == 0:
    x = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    request = comm.Ibcast(x)
    time.sleep(0.3)
    if ENDS:
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes), 0)
    world.send("freed", 1)
    world.recv(source=1)
else:
    memory = f"/proc/{node.own_memory.pids[0]}/maps"
    def has_memory():
        try:
            return open(memory).read() != ""
        except OSError:
            return False
    if ENDS:
        while has_memory():
            time.sleep(0.01)
    else:
        world.recv(source=0)
    try:
        comm.Ibcast(np.zeros(1 << 20, np.uint8)).Wait()
    except hpcoll.TransportError as error:
        open(TOLD, "w").write(str(error))  # the launcher may listen no more
    if not ENDS:
        world.send("done", 0)
os._exit(0)
"""


@pytest.fixture
def _nothing_remains() -> Iterator[None]:
    """No name in /dev/shm but those that MPI libraries give, theirs and other jobs'."""
    before = names()
    yield
    assert names() - before == set()


def names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if not name.startswith(NAMED_BY_MPI)}


def warnings(text: str) -> list[str]:
    return [line for line in text.splitlines() if "hpcoll" in line or "exchange MPI messages" in line]


@pytest.mark.usefixtures("_nothing_remains")
@pytest.mark.parametrize(
    ("nranks", "variables", "local_peers", "warned"),
    [
        (2, MESSAGES, [[1], [0]], 0),
        (2, {"HPCOLL_SHM": "1"}, [[1], [0]], 1),
        (5, {"HPCOLL_SHM_RANKS": "2"}, [[1], [0], [3], [2], []], 0),
    ],
)
def test_limits(nranks: int, variables: dict[str, str], local_peers: list[list[int]], warned: int) -> None:
    """No shared memory, too little (which is said once), and for neighbours only: everything works."""
    said, complaints = job(nranks, MANY, **variables)
    for rank, text in said.items():
        uses = "HPCOLL_SHM" not in variables and local_peers[rank]
        rings, peers = "[1-9]" if uses else "0", re.escape(str(local_peers[rank]))
        assert re.fullmatch(rf"wrong \[\]\nrings {rings} local peers {peers}\n", text), (rank, text)
    assert len(warnings(complaints)) == warned, complaints
    if warned:
        assert re.search(
            r"ranks of this node exchange MPI messages: .*shared memory.*limit is 1 B \(HPCOLL_SHM\)",
            complaints,
        )


def alive(pid: int) -> bool:
    """Say whether a process runs; one that ended and was not collected does not, and maps nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.usefixtures("_nothing_remains")
@pytest.mark.parametrize("killed", ["one", "all"])
def test_killed_in_the_middle_of_collectives(killed: str) -> None:
    """The job ends and its memory is gone: it never had a name, and nobody maps it."""
    nranks = 3
    variables = {"VICTIM": "1"} if killed == "one" else {}
    with subprocess.Popen(
        command(nranks, ENDLESS),
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            assert running.stdout is not None
            found = [
                re.search(r"pid (\d+) windows (\d+) rings (\d+)", running.stdout.readline())
                for _ in range(nranks)
            ]
            assert all(found), found
            pids = [int(match[1]) for match in found if match]
            assert all(min(int(match[2]), int(match[3])) >= 1 for match in found if match)
            if killed == "all":
                time.sleep(0.5)
                assert all(map(alive, pids))
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            _, errors = running.communicate(timeout=LIMIT_S)
            assert running.returncode != 0, errors
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert [pid for pid in pids if alive(pid)] == []


@pytest.mark.parametrize(("ends", "cause"), [(True, "No such process"), (False, "Bad address")])
def test_memory_that_is_lent_and_lost(ends: bool, cause: str, tmp_path: Path) -> None:
    """Who reads a message in the memory of a process that has ended, or has given that memory back, gets an error and does not crash."""
    told = tmp_path / "told"
    done = finished(command(2, f"ENDS, TOLD = {ends}, {str(told)!r}\n{LOST}"), {"HPCOLL_SHM_COPY": "cma"})
    assert told.exists(), done.stdout + done.stderr[-2000:]
    assert f": the memory of local rank 0 cannot be read ({cause})" in told.read_text()


@pytest.mark.usefixtures("_nothing_remains")
def test_eight_ranks_on_few_cores() -> None:
    """Ranks that wait let the others run: a second or two where it is right, minutes where it is not."""
    said, _ = job(8, CROWD)
    seconds = [float(text.removeprefix("took ")) for text in said.values()]
    assert max(seconds) < LIMIT_S / 3
