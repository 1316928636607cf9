"""Mismatches that end a program: calls after which no other comes, and ranks that wait for each other on several communicators.

Each test starts a job of its own, so they run once: where this one has a single rank.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest
from launching import MESSAGES, STARTS_JOBS, command, finished
from reference import SOON_S

pytestmark = STARTS_JOBS

HEAD = f"""
x, total, a, b = np.ones(3), np.zeros(3), comm.Dup(), comm.Dup()
a.Set_name("a"), b.Set_name("b")
for one in (a, b, comm):
    one.Bcast(x)
    one.Allreduce(x, total)
def caught(one, **more):
    begun = time.monotonic()
    try:
        one.Allreduce(x, total, **more)
        say("went on")
    except hpcoll.HpcollError as error:
        say(time.monotonic() - begun < {SOON_S}, type(error).__name__, error)
world.Barrier()
"""
ROOTS = "comm.Bcast(x, root=comm.rank)\n"
BOTH_ROOTS = (
    r"MismatchError.*\n  rank 0: Bcast\(float64\[3\], root=0\)\n  rank 1: Bcast\(float64\[3\], root=1\)"
)


class Job(NamedTuple):
    """A job of two ranks.

    Attributes:
        script: What the ranks do.
        told: Patterns of what they print.
        untold: What they do not.
        ends_well: Whether the exit status is 0; None: either may be.
        way: Variables.
    """

    script: str
    told: tuple[str, ...] = ()
    untold: str = "Error"
    ends_well: bool | None = False
    way: Mapping[str, str] = MappingProxyType({})


JOBS = {
    "the program ends": Job(ROOTS, (BOTH_ROOTS,), "went on"),
    "one call more": Job(
        "comm.rank or comm.Bcast(x)",
        (r"MismatchError.*\n  rank 0: Bcast\(float64\[3\], root=0\)\n  rank 1: ",),
        "went on",
    ),
    "MPI is finalised": Job(f"{ROOTS}MPI.Finalize()", (BOTH_ROOTS,), "went on"),
    "a communicator is freed": Job(
        f"comm = comm.Dup()\ncomm.Barrier()\n{ROOTS}comm.Free()", (BOTH_ROOTS,), "went on"
    ),
    # calls that a rank has not made are no other error
    "an exception": Job(
        "comm.rank or comm.Bcast(x)\nif comm.rank:\n    raise KeyError('mine')",
        ("KeyError: 'mine'",),
        "MismatchError",
    ),
    # at different times, and with calls in flight
    "all is right": Job(
        """
for _ in range(20):
    one = comm.Dup()
    one.Bcast(x, root=_ % 2)
    one.Ireduce(x, np.zeros(3)).Wait()
    one.Free()
time.sleep(0.3 * comm.rank)
comm.Bcast(x)
left = comm.Iallreduce(x, np.zeros(3)) if comm.rank else None
""",
        ends_well=True,
        way=MESSAGES,
    ),
    "another order": Job(
        "for one in (a, b) if comm.rank else (b, a):\n    caught(one)\nworld.Barrier()\nos._exit(0)",
        tuple(
            rf"rank {rank} True MismatchError .*: ranks wait for each other, each in a call to which .*"
            rf"rank {other} of MPI_COMM_WORLD in Allreduce\(float64\[3\], op=SUM\) at <string>:\d+ on {name}"
            for rank in (0, 1)
            for other, name in enumerate("ba")
        ),
        "went on",
        None,
    ),
    # another thread of each rank makes the call that is missing: this is only warned about
    "threads": Job(
        """
first, second = (a, b) if comm.rank else (b, a)
def late():
    time.sleep(1.8)
    second.Allreduce(np.ones(3), np.zeros(3))
thread = threading.Thread(target=late)
thread.start()
caught(first)
thread.join()
""",
        (
            "rank 0 went on",
            "rank 1 went on",
            "has waited for 1 s: rank [01] waits for rank [01]; rank [01] waits in Allreduce",
        ),
        ends_well=True,
        way={"HPCOLL_WARN": "1s"},
    ),
    # who waits in the library cannot be told
    "the library serves one": Job(
        """
if comm.rank:
    threading.Thread(target=lambda: (MPI.COMM_SELF.Barrier(), time.sleep(4), os._exit(0))).start()
caught(comm, **({"algorithm": "native"} if comm.rank else {}))
time.sleep(1)
os._exit(0)
""",
        (
            r"rank 0 True MismatchError .*: rank 0: Allreduce\(.*; rank 1: Allreduce, which the MPI library serves",
        ),
        "went on",
        None,
        MESSAGES,
    ),
}


LATER = ("another order", "threads", "the library serves one")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.ci) if one in LATER else one for one in JOBS]
)
def test_what_a_job_says(name: str) -> None:
    job = JOBS[name]
    done = finished(command(2, HEAD + job.script), job.way)
    text = done.stdout + done.stderr
    assert [one for one in job.told if not re.search(one, text)] == []
    assert job.untold not in text
    assert job.ends_well in (None, done.returncode == 0)
