"""Many more ranks than cores: right answers at the first use of each collective, nothing left behind, and who is named that was killed."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import STARTS_JOBS, command, finished, spoken
from mpi4py import MPI
from slowness import IDLE, slowed, slowness

pytestmark = [*STARTS_JOBS, pytest.mark.full]

LIMIT_S, SOON_S = slowed(200), slowed(60)
SHM = Path("/dev/shm")

# Answers are sums or lists of ranks. One element travels in a ring slot, 1,000 are staged.
CALLS = """
n, me = comm.size, comm.rank
ranks, total = np.arange(n, dtype=float), n * (n - 1) / 2

def full(value, *shape):
    return np.full(shape, value, float)

def ramps(count):
    return np.repeat(ranks, count).reshape(n, count)

def check(result, done, answer):
    assert np.array_equal(result, np.broadcast_to(answer, result.shape)), result.ravel()[:4]

def twice(request):
    for _ in range(2):
        request.Start()
        request.Wait()

for count in COUNTS:
    one, each = full(me, count), full(me, n, count)
    counts = [count + rank % 2 for rank in range(n)]
    mine, every = full(me, counts[me]), full(-1, sum(counts))
    y, table, parts = full(-1, count), full(-1, n, count), full(-1, counts[me] * n)
    check(y, comm.Allreduce(one, y), total)
    check(table, comm.Allgather(one, table), ramps(count))
    check(table, comm.Alltoall(each, table), ramps(count))
    check(y, comm.Reduce_scatter_block(each, y), total)
    check(y, comm.Reduce_scatter(each, y, [count] * n), total)
    check(y, comm.Scan(one, y), me * (me + 1) / 2)
    check(y, comm.Exscan(one, y), me * (me - 1) / 2 if me else y)
    check(y, comm.Scatter(ramps(count), y, root=3), me)
    check(every, comm.Allgatherv(mine, [every, counts]), np.repeat(ranks, counts))
    sent = [full(me, sum(counts)), counts]
    check(parts, comm.Alltoallv(sent, [parts, [counts[me]] * n]), np.repeat(ranks, counts[me]))
    check(y, comm.Iallreduce(one, y, op=MPI.MAX).Wait(), n - 1)
    check(y, twice(comm.Allreduce_init(one, y)), total)
    comm.Reduce(one, y, op=MPI.MIN, root=1)
    check(y, comm.Bcast(y, root=1), 0)
    comm.Gather(one, table, root=2)
    check(table, comm.Bcast(table, root=2), ramps(count))
    comm.Barrier()
assert comm.allgather(me) == [*range(n)]
assert comm.allreduce(me) == total
assert comm.bcast({"a": me}, root=5) == {"a": 5}
halves = comm.Split(me % 2)
check(y, halves.Allreduce(full(1, 1000), y), (n + 1 - me % 2) // 2)
halves.Free()
comm.Barrier()
say("right")
"""

KILLED = """
import signal
victim, y = comm.size // 2 + 3, np.zeros(1)
comm.Allreduce(np.ones(1), y)
if comm.rank == victim:
    os.kill(os.getpid(), signal.SIGKILL)
begun = time.monotonic()
try:
    comm.Allreduce(np.ones(1), y)
except hpcoll.PeerFailed as error:
    say("told", "named" if f"rank {victim} (" in str(error) else error, f"{time.monotonic() - begun:.1f}")
os._exit(0)
"""


def unnamed_nbytes() -> int:
    """The bytes of shared memory without a name, which lasts while a process maps it: hpcoll makes no other."""
    room = os.statvfs(SHM)
    named = sum(512 * file.stat().st_blocks for file in SHM.rglob("*"))
    return (room.f_blocks - room.f_bfree) * room.f_frsize - named


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Refuse memory that a job leaves in /dev/shm, be it of a rank that has not ended; other programs may have taken some."""
    most = unnamed_nbytes() + (4 << 20)
    yield
    end = time.monotonic() + SOON_S
    while (
        unnamed_nbytes() > most and slowness() <= IDLE and time.monotonic() < end
    ):  # a launcher may end before its last ranks
        time.sleep(0.1)
    assert unnamed_nbytes() <= most or slowness() > IDLE


@pytest.mark.parametrize(("nranks", "counts"), [(64, (1, 1000)), (128, (1000,))])
@pytest.mark.timeout(2 * LIMIT_S)
def test_first_calls_are_right(nranks: int, counts: tuple[int, ...]) -> None:
    """Every collective, on every rank, where a rank that waits holds up 31 or 63 others of its core."""
    done = finished(command(nranks, f"COUNTS = {counts}\n{CALLS}"), {}, LIMIT_S)
    assert {words for said in spoken(nranks, done.stdout).values() for words in said} == {"right"}
    assert len(re.findall("^rank .* right$", done.stdout, re.MULTILINE)) == nranks
    assert done.returncode == 0


@pytest.mark.skipif(
    MPI.ERR_PROC_FAILED == MPI.ERR_REVOKED, reason="the MPI library knows no failures of ranks"
)
@pytest.mark.parametrize("nranks", [64, 128])
@pytest.mark.timeout(2 * LIMIT_S)
def test_a_rank_that_was_killed_is_named(nranks: int) -> None:
    """All others raise and name it, though each looks at few of them, and seldom."""
    done = finished(command(nranks, KILLED, options=["--with-ft", "ulfm"]), {}, LIMIT_S)
    told = re.findall(r"^rank \d+ told (.*) (\d+\.\d)$", done.stdout, re.MULTILINE)
    assert [words for words, _ in told] == ["named"] * (nranks - 1)
    assert max(float(took) for _, took in told) < SOON_S
