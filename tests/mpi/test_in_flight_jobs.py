"""Whole jobs with collectives in flight and with threads: ends of the interpreter and of MPI, and first communicators.

Each test starts a job of its own.
"""

from pathlib import Path

import pytest
from launching import STARTS_JOBS, command, finished, job
from mpi4py import MPI

pytestmark = STARTS_JOBS

IMPORTS = f"""
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from forms import Case, every, issue, names, prepare
from reference import agreed
"""

# Requests of every kind that nobody waits for or frees; one rank comes late, so that the other's are under way.
LEFT = """
x = np.full(1 << 17, float(comm.rank))
persistent = [comm.Bcast_init(x[:n].copy(), algorithm="chain") for n in (10, 100_000, 100_000)]
for _ in range(3):
    for request in persistent:
        request.Start()
        request.Wait()
if comm.rank:
    time.sleep(0.1)
persistent[0].Start(), persistent[1].Start()
flying = [comm.Ibcast(x.copy(), algorithm="direct", segment="16K") for _ in range(3)] + [comm.Ibarrier(algorithm="dissemination")]
say("left")
"""

FINALIZE = """
rank = comm.rank
MPI.Finalize()
time.sleep(0.1)
print("rank", rank, "finalised", flush=True)
"""

# What is used after MPI has ended, though it may be under way on the other rank.
AFTER = """
rank, x, y = comm.rank, np.ones(300_000), np.zeros(300_000)
short, long = comm.Allreduce_init(x[:8], y[:8]), comm.Allreduce_init(x, y, algorithm="ring")
short.Start(), short.Wait()
if rank:
    time.sleep(0.1)
flying = comm.Iallreduce(x.copy(), y.copy(), algorithm="ring")
long.Start()
MPI.Finalize()
calls = [flying.Wait, flying.Test, long.Wait, long.Start, short.Start, lambda: comm.Iallreduce(x, y), lambda: comm.Allreduce_init(x, y)]
refused = []
for call in calls:
    try:
        refused.append(f"went on: {call()}")
    except hpcoll.ArgumentError as error:
        refused.append("MPI is finalised" in str(error))
print("rank", rank, refused, flush=True)
"""

# The helper waits for work; then a bit of it, after which MPI and the interpreter end.
IDLE = """
time.sleep(0.5)
x = np.ones(5)
comm.Iallreduce(MPI.IN_PLACE, x, algorithm="direct").Wait()
time.sleep(0.5)
again = comm.Iallreduce(MPI.IN_PLACE, x, algorithm="direct")
say(x.tolist() if MPI.Request.Waitall([again]) else "")
"""

# Without a helper: what is ours, waited for on all ranks in the order in which it was started.
ALONE = """
def ours(method):
    return names(method)[-1]
for count in (3, 3000, 30_000):
    cases = every(comm, count, roots=[0])
    requests = [issue(comm, case, algorithm=ours(case.method)) for case in cases]
    wrong = [case for request, case in zip(requests, cases) if not (request.Wait() and case.good())]
    for case in cases:
        case.fill(1)
    requests = [prepare(comm, case, algorithm=ours(case.method)) for case in cases]
    for request in requests:
        request.Start()
    while not all([request.Test() for request in requests]):
        pass
    say(count, "wrong", agreed(wrong + [case for case in cases if not case.good()]))
say("level", MPI.Query_thread(), "helped", any(one.name == "hpcoll-progress" for one in threading.enumerate()))
"""


def complaints(text: str) -> list[str]:
    """Return what is not MPICH's word on persistent requests of its own."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("MPICH: ")]


@pytest.mark.parametrize("end", ["exit", "finalize"])
def test_ends_with_requests_left(end: str) -> None:
    """Nobody hangs, crashes or complains."""
    said, errors = job(2, LEFT + (FINALIZE if end == "finalize" else ""))
    assert said == dict.fromkeys(range(2), "left\n" + ("finalised\n" if end == "finalize" else ""))
    assert complaints(errors) == []


def test_used_after_the_end() -> None:
    """An error of ours, where the MPI library would end the program, or a wait would never end."""
    said, errors = job(2, AFTER)
    assert said == dict.fromkeys(range(2), f"{[True] * 7}\n"), (said, errors)


def test_ends_with_an_idle_helper() -> None:
    said, errors = job(2, IDLE)
    assert said == dict.fromkeys(range(2), "[4.0, 4.0, 4.0, 4.0, 4.0]\n")
    assert complaints(errors) == []


def test_one_thread_may_call_mpi() -> None:
    """Right answers through our Wait and Test, no helper, and a warning."""
    said, errors = job(2, IMPORTS + ALONE, MPI4PY_RC_THREAD_LEVEL="funneled")
    wanted = (
        "".join(f"{count} wrong []\n" for count in (3, 3000, 30_000))
        + f"level {MPI.THREAD_FUNNELED} helped False\n"
    )
    assert said == dict.fromkeys(range(2), wanted)
    assert errors.count("MPI was initialised without MPI_THREAD_MULTIPLE") == 2


FIRST = """
import threading
import numpy as np
from mpi4py import MPI
import hpcoll
world, wrong = MPI.COMM_WORLD, []
raws = [world.Dup() for _ in range(4)]
def work(raw):
    for turn in range(4):
        comm, total = hpcoll.Communicator(raw.Dup()), np.zeros(3)
        comm.Allreduce(np.ones(3), total)
        wrong.extend([] if (total == comm.size).all() else [turn])
        comm.Allreduce_init(np.ones(3), total).Free()
        comm.Free()
threads = [threading.Thread(target=work, args=(raw,)) for raw in raws]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("rank", world.rank, "wrong", wrong, flush=True)
"""


def test_first_communicators() -> None:
    """On two nodes: all are made, and the job ends."""
    done = finished(command(4, FIRST, head=""), {"HPCOLL_SHM_RANKS": "2"})
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} wrong []" for rank in range(4)], (
        done.stdout + done.stderr[-2000:]
    )
    assert done.returncode == 0
