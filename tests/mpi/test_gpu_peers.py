"""GPU arrays when ranks do not call the same, one is gone, or one frees memory in the middle: as with host arrays, and nothing hangs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from failed_calls import blocking, caught, in_flight, persistent
from gpu_cases import read
from gpu_double import LONG, SHORT, WORLD, allreduce, communicator
from launching import command, finished
from mpi4py import MPI
from reference import SOON_S, agreed, raised

import hpcoll

pytestmark = [pytest.mark.mpi, pytest.mark.double(forgives=("races", "failures")), pytest.mark.once]

FORMS = [blocking, in_flight, persistent]
several = pytest.mark.mpi(min_size=2)


@several
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [LONG, pytest.param(SHORT, marks=pytest.mark.full)])
def test_every_rank_is_told_of_a_mismatch(count: int, form: Callable[..., None], double: Any) -> None:
    """Soon, on all ranks; other communicators go on."""
    comm, other = communicator(), communicator()
    assert allreduce(comm, double, count)
    send, recv = double.Array(count).fill(1), double.Array(count)
    op = MPI.MAX if comm.rank == comm.size - 1 else MPI.SUM
    text, seconds = caught(comm, lambda: form(comm, "Allreduce", (send, recv, op)), form)
    wrong = [] if "op=SUM" in text and "op=MAX" in text and seconds < SOON_S else [(text, seconds)]
    wrong += [] if allreduce(other, double, count) else ["wrong"]
    assert agreed(wrong) == []


@several
@pytest.mark.parametrize("form", FORMS[1:])
def test_memory_that_is_freed_in_flight(form: Callable[..., None], double: Any) -> None:
    """By one rank, too early: every rank gets an error or what is right, and the others' other communicators go on."""
    comm, other = communicator(), communicator()
    assert allreduce(comm, double)
    assert allreduce(other, double)
    send, recv = double.Array(LONG).fill(1), double.Array(LONG).fill(-1)
    WORLD.Barrier()
    if form is persistent:
        request: Any = comm.Allreduce_init(send, recv)
        request.Start()
    else:
        request = comm.Iallreduce(send, recv)
    if comm.rank == comm.size - 1:
        send.free()
    error = raised(request.Wait)
    wrong = [] if isinstance(error, hpcoll.HpcollError) or (error is None and (read(recv) == comm.size).all()) else [repr(error)]
    wrong += [] if allreduce(other, double) else ["wrong"]
    assert agreed(wrong) == []


GONE = f"""
sys.path[:0] = [{str(Path(__file__).parents[1])!r}, {str(Path(__file__).parent)!r}]
from cuda_double import installed
from failed_calls import blocking, in_flight, persistent
from gpu_cases import read
place = installed(forgives=("races", "failures"))
double = place.__enter__()
comm = hpcoll.Communicator(world.Dup())
x, y = double.Array(COUNT).fill(1), double.Array(COUNT)
for _ in range(3):
    FORM(comm, "Allreduce", (x, y))
    assert (read(y) == comm.size).all()
request = comm.Allreduce_init(x, y) if FORM is persistent else None
world.Barrier()
begun = time.monotonic()
if comm.rank == 1:
    raise OSError("no such file")
try:
    if request is None:
        FORM(comm, "Allreduce", (x, y))
    else:
        request.Start()
        request.Wait()
except hpcoll.HpcollError as error:
    say(f"{{time.monotonic() - begun:.2f}}", type(error).__name__, error)
    raise
say("went on")
"""


@pytest.mark.smoke
@pytest.mark.skipif(WORLD.size > 1, reason="starts jobs of its own: enough in the run on one rank")
@pytest.mark.parametrize(
    ("form", "count"),
    [("blocking", LONG), *(pytest.param(form, n, marks=pytest.mark.full) for n in (SHORT, LONG) for form in ("in_flight", "persistent"))],
)
def test_a_rank_leaves(form: str, count: int) -> None:
    """The others raise soon, with its error, and the job ends."""
    done = finished(command(3, f"COUNT = {count}\n" + GONE.replace("FORM", form)), {})
    told = r"PeerFailed .*rank 1 \(process \d+ on .*\) was ended by OSError: no such file"
    said = re.findall(rf"^rank [02] (\d+\.\d+) {told}$", done.stdout, re.MULTILINE)
    assert len(said) == 2, done.stdout + done.stderr[-3000:]
    assert max(map(float, said)) < SOON_S
    assert done.returncode != 0
