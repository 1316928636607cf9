"""Calls that differ and after which no other comes: `Free` and the end of the program say so, and the job ends with an error.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import pytest
from launching import MESSAGES, STARTS_JOBS, command, finished

pytestmark = STARTS_JOBS

BOTH_ROOTS = (
    "comm.Bcast(x, root=comm.rank)",
    "  rank 0: Bcast(float64[3], root=0)\n  rank 1: Bcast(float64[3], root=1)",
)
ONE_MORE = "comm.rank or comm.Bcast(x)", "  rank 0: Bcast(float64[3], root=0)\n  rank 1: "
IN_FLIGHT = (
    "comm.Ibcast(x, root=comm.rank).Wait()",
    "  rank 0: Ibcast(float64[3], root=0)\n  rank 1: Ibcast(float64[3], root=1)",
)
BEFORE = "x = np.ones(3)\ncomm.Bcast(x)\ncomm.Allreduce(x, np.zeros(3))\n"


@pytest.mark.parametrize("way", [{}, pytest.param(MESSAGES, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("call", "said"), [BOTH_ROOTS, ONE_MORE, pytest.param(*IN_FLIGHT, marks=pytest.mark.full)]
)
def test_the_program_ends(call: str, said: str, way: dict[str, str]) -> None:
    """The error names the calls, and the job has a status that is not 0."""
    done = finished(command(2, BEFORE + call), way)
    assert done.returncode != 0
    assert "MismatchError" in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("end", ["MPI.Finalize()", "comm = comm.Dup(); comm.Barrier(); {}; comm.Free()"])
def test_other_ends(end: str) -> None:
    """MPI may be finalised by the program, and a communicator be freed in the midst of it."""
    call, said = BOTH_ROOTS
    done = finished(command(2, BEFORE + (end.format(call) if "{" in end else f"{call}\n{end}")), {})
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("way", [pytest.param({}, marks=pytest.mark.full), MESSAGES])
def test_right_programs(way: dict[str, str]) -> None:
    """Ranks end and free at different times, and with calls in flight: nothing is said, and the status is 0."""
    script = """
for _ in range(20):
    one = comm.Dup()
    one.Bcast(x, root=_ % 2)
    one.Ireduce(x, np.zeros(3)).Wait()
    one.Free()
time.sleep(0.3 * comm.rank)
comm.Bcast(x)
left = comm.Iallreduce(x, np.zeros(3)) if comm.rank else None
"""
    done = finished(command(2, BEFORE + script), way)
    assert done.returncode == 0
    assert "Error" not in done.stderr


def test_an_exception_is_told_alone() -> None:
    """Where it ends a rank's program, calls that this rank has not made are no other error."""
    done = finished(
        command(2, BEFORE + "comm.rank or comm.Bcast(x)\nif comm.rank:\n    raise KeyError('mine')"), {}
    )
    assert done.returncode != 0
    assert "KeyError: 'mine'" in done.stderr
    assert "MismatchError" not in done.stderr
