"""Memory that a rank has for itself, in jobs of two ranks of their own."""

from launching import STARTS_JOBS, job

pytestmark = STARTS_JOBS
MOST_MB = 45  # 21 with Open MPI 5, 28 with MPICH 5; with LLVM they were 28 and 35, with Numba and its caches 70 and 77
MOST_GROWTH_MB = 8  # 2 were measured

OWN = """
def own():  # MB that no other process has
    lines = [line.split() for line in open("/proc/self/smaps_rollup")]
    return sum(int(words[1]) for words in lines if words[0].startswith("Private_")) / 1024
"""

SOME_CALLS = """
x, y = np.ones(1000, np.float32), np.ones(1000, np.float32)
for call in (comm.Allreduce, comm.Alltoall, comm.Scan):
    call(x, y)
comm.Bcast(x)
comm.Barrier()
comm.Iallreduce(MPI.IN_PLACE, x).Wait()
say(own(), *({"numba", "llvmlite", "subprocess"} & set(sys.modules)))  # json: imported by a rank that waits long for another
"""

MANY_SHAPES_AND_COMMUNICATORS = """
def work(rounds):
    for i in range(rounds):
        other = comm.Dup()
        for one in (comm, other):
            one.Allreduce(MPI.IN_PLACE, np.ones(100 + i))
            one.Bcast(np.ones(2000 + i))
        other.Free()
work(5)
before = own()
work(100)
say(own() - before, len(windows._mapped))
"""


def test_a_rank_that_compiles_nothing() -> None:
    job(2, OWN + SOME_CALLS)  # compiles what nobody has compiled yet
    said, _ = job(2, OWN + SOME_CALLS)
    for text in said.values():
        nmegabytes, *imported = text.split()
        assert (float(nmegabytes) < MOST_MB, imported) == (True, []), said


def test_shapes_and_communicators_that_come_and_go() -> None:
    said, _ = job(2, "from hpcoll.runtime.transports import window as windows" + OWN + MANY_SHAPES_AND_COMMUNICATORS)
    for text in said.values():
        growth, nwindows = text.split()
        assert (float(growth) < MOST_GROWTH_MB, nwindows) == (True, "2"), said  # one is kept for the next duplicate
