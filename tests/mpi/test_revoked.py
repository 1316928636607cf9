"""Calls on a revoked communicator raise what the MPI library's own do, on all ranks, though one alone has revoked it."""

import pytest
from launching import STARTS_JOBS, job
from mpi4py import MPI

pytestmark = [
    *STARTS_JOBS,
    pytest.mark.skipif("MPICH" in MPI.Get_library_version(), reason="the MPI library revokes nothing"),
]

CALLS = """
def calls(one):
    x, y = np.ones(4), np.zeros(4)
    yield lambda: one.Allreduce(x, y)
    yield one.Barrier
    yield lambda: one.Iallreduce(x, y).Wait()
    yield lambda: one.Allreduce_init(x, y)
    yield lambda: one.empty(3)
    yield lambda: one.Allreduce(x, y, algorithm="native")  # not first: without ULFM the library tells nobody who waits in it
wrong = []
for used in USED:
    for at in range(5):
        one = comm.Dup()
        planned = None
        if used:
            one.Iallreduce(np.ones(4), np.zeros(4)).Wait()
            planned = one.Allreduce_init(np.ones(4), np.zeros(4))
        world.Barrier()
        if EVERY or comm.rank == 1:
            one.Revoke()
        for call in [list(calls(one))[at], *calls(one), *([planned.Start] if planned else [])]:
            try:
                call()
                wrong.append((used, at, "nothing"))
            except MPI.Exception as error:
                wrong += [] if error.Get_error_class() == MPI.ERR_REVOKED else [(used, at, repr(error))]
        world.Barrier()
        one.Free()
comm.Barrier()
say(wrong)
"""


def test_one_rank_revokes() -> None:
    """Others that wait, or call later, raise the same; all forms of calls do."""
    said, _ = job(2, "EVERY, USED = False, [True]" + CALLS)
    assert said == {0: "[]\n", 1: "[]\n"}


def test_before_the_first_use() -> None:
    """The library tells nobody without ULFM: all ranks revoke it."""
    said, _ = job(2, "EVERY, USED = True, [False]" + CALLS)
    assert said == {0: "[]\n", 1: "[]\n"}
