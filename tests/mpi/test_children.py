"""Children of a rank, by multiprocessing or os.fork, have no MPI of their own: hpcoll refuses to use it there, and the job ends.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import pytest
from launching import STARTS_JOBS, command, finished, spoken

pytestmark = [*STARTS_JOBS, pytest.mark.once]

JOB = """
import multiprocessing
from mpi4py import MPI
BEFORE
def work(number):
    import hpcoll
    return hpcoll.Communicator(MPI.COMM_WORLD).allreduce(number)
if __name__ == "__main__":
    world = MPI.COMM_WORLD
    with multiprocessing.get_context("fork").Pool(2) as pool:
        try:
            said = pool.map(work, range(4))
        except ValueError as error:
            said = error
    world.Barrier()
    print("rank", world.rank, type(said).__name__, said, flush=True)
"""
REFUSED = {
    "import hpcoll": "this process is a fork: MPI belongs to its parent",
    "import hpcoll; hpcoll.Communicator(MPI.COMM_WORLD)": "this process is a fork: MPI belongs to its parent",
    "": "this process is a child of rank {} (process ",
}


@pytest.mark.parametrize("before", REFUSED, ids=["imported before", "used before", "imported in the child"])
def test_communicators_in_a_pool_are_refused(before: str) -> None:
    said = spoken(2, finished(command(2, JOB.replace("BEFORE", before), head=""), {}).stdout)
    for rank, words in said.items():
        assert words[0].startswith(
            "ArgumentError Communicator cannot be made: " + REFUSED[before].format(rank)
        ), said
