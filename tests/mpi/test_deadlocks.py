"""Ranks that wait for each other in calls on several communicators, or in the MPI library: they raise, unless another thread may come.

Each test starts a job of its own, because the tests' own threads would count.
"""

import re
from pathlib import Path

import pytest
from launching import MESSAGES, STARTS_JOBS, command, finished, spoken
from reference import SOON_S

pytestmark = STARTS_JOBS

BEFORE = """
def works(one):
    one.Allreduce(np.ones(3), total)
    assert (total == one.size).all()
def caught(*calls):
    begun = time.monotonic()
    try:
        for one, *more in calls:
            one.Allreduce(np.ones(3), total, **dict(more))
        say("went on")
    except hpcoll.HpcollError as error:
        say(f"{time.monotonic() - begun:.2f}", type(error).__name__, error)
total, a, b = np.zeros(3), comm.Dup(), comm.Dup()
a.Set_name("a"), b.Set_name("b")
for one in (a, b, comm):
    works(one)
world.Barrier()
"""


def run(script: str, nranks: int, **variables: str) -> tuple[dict[int, str], str]:
    """Return what each rank says; a job may end badly."""
    done = finished(command(nranks, BEFORE + script), {"HPCOLL_WARN": "1s", **variables})
    return {rank: words[-1] for rank, words in spoken(nranks, done.stdout).items() if words}, done.stderr


@pytest.mark.parametrize(
    ("nranks", "way"),
    [(2, {}), *(pytest.param(*one, marks=pytest.mark.full) for one in ((2, MESSAGES), (3, {})))],
)
def test_two_communicators_in_another_order(nranks: int, way: dict[str, str]) -> None:
    said, errors = run(
        "caught(*((a,), (b,)) if comm.rank else ((b,), (a,)))\nworld.Barrier()\nos._exit(0)", nranks, **way
    )
    for rank in (0, nranks - 1):
        found = re.match(
            r"(\d+\.\d\d) MismatchError .*: ranks wait for each other, each in a call to which .*", said[rank]
        )
        assert found, (said, errors)
        assert float(found[1]) < SOON_S
        assert re.search(
            r"rank 0 of MPI_COMM_WORLD in Allreduce\(float64\[3\], op=SUM\) at <string>:\d+ on b", said[rank]
        )
        assert re.search(
            r"rank \d of MPI_COMM_WORLD in Allreduce\(float64\[3\], op=SUM\) at <string>:\d+ on a", said[rank]
        )


def test_another_thread_may_come() -> None:
    """A program of several threads is only warned about: another thread of each rank makes the call that is missing."""
    said, errors = run(
        """
first, second = (a, b) if comm.rank else (b, a)
def late():
    time.sleep(1.8)
    second.Allreduce(np.ones(3), np.zeros(3))
thread = threading.Thread(target=late)
thread.start()
caught((first,))
thread.join()
""",
        2,
    )
    assert said == {0: "went on", 1: "went on"}, errors
    assert re.search(r"has waited for 1 s: rank \d waits for rank \d; rank \d waits in Allreduce", errors), (
        errors
    )


@pytest.mark.parametrize("way", [pytest.param({}, marks=pytest.mark.full), MESSAGES])
def test_the_library_serves_one_of_them(way: dict[str, str], tmp_path: Path) -> None:
    """Who waits in hpcoll raises and says which call it is; who waits in the library cannot be told."""
    said, errors = run(
        f"""
def until_told():
    while not os.path.exists(told):
        time.sleep(0.05)
    os._exit(0)
told = {str(tmp_path / "told")!r}
if comm.rank:
    threading.Thread(target=until_told).start()
caught((comm, ("algorithm", "native")) if comm.rank else (comm,))
open(told, "w").close()
os._exit(0)
""",
        2,
        **way,
    )
    found = re.match(
        r"(\d+\.\d\d) MismatchError .*: rank 0: Allreduce\(.*; rank 1: Allreduce, which the MPI library serves$",
        said[0],
    )
    assert found, (said, errors)
    assert float(found[1]) < SOON_S
