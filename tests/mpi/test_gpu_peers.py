"""GPU arrays when ranks do not call the same, one is gone, or one frees memory in the middle: as with host arrays, and nothing hangs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failed_calls import blocking, caught, in_flight, persistent
from gpu_cases import read
from gpu_double import LONG, SHORT, WORLD, allreduce, communicator
from launching import command, finished
from mpi4py import MPI
from reference import SOON_S, ensure_none, raised, unless

import hpcoll

pytestmark = [pytest.mark.mpi, pytest.mark.double(forgives=("races", "failures")), pytest.mark.once]

FORMS = [blocking, in_flight, persistent]
several = pytest.mark.mpi(min_size=2)


# What the last rank calls otherwise, given the number of elements and what makes arrays: the others' call and its own, and how texts quote
# both.
MISMATCHES: dict[str, tuple[Callable[[int, Any], tuple[Any, Any]], str, str]] = {
    "operator": (
        lambda n, x: (("Allreduce", (x(n), x(n), MPI.SUM)), ("Allreduce", (x(n), x(n), MPI.MAX))),
        "llreduce(float32[{n}], op=SUM)",
        "llreduce(float32[{n}], op=MAX)",
    ),
    "count": (
        lambda n, x: (("Allreduce", (x(n), x(n))), ("Allreduce", (x(n - 1), x(n - 1)))),
        "llreduce(float32[{n}], op=SUM)",
        "llreduce(float32[{less}], op=SUM)",
    ),
    "type of what is moved": (
        lambda n, x: (
            ("Allgather", (x(n), x(n * WORLD.size))),
            ("Allgather", (x(n, "i4"), x(n * WORLD.size, "i4"))),
        ),
        "llgather(float32[{n}])",
        "llgather(int32[{n}])",
    ),
    "root": (
        lambda n, x: (("Bcast", (x(n), 0)), ("Bcast", (x(n), WORLD.size - 1))),
        "cast(float32[{n}], root=0)",
        "cast(float32[{n}], root=",
    ),
    "collective": (
        lambda n, x: (("Allreduce", (x(n), x(n))), ("Bcast", (x(n), 0))),
        "llreduce(float32[{n}], op=SUM)",
        "cast(float32[{n}], root=0)",
    ),
}
FEW = ("operator", "type of what is moved")
KINDS = [(name, count, form) for name in MISMATCHES for count in (LONG, SHORT) for form in FORMS]


def rare(name: str, count: int, form: Callable[..., None]) -> list[pytest.MarkDecorator]:
    return [pytest.mark.full] * (
        count == SHORT or (form is not blocking and name != FEW[0]) or name not in FEW
    )


@several
@pytest.mark.parametrize(
    ("name", "count", "form"), [pytest.param(*case, marks=rare(*case)) for case in KINDS]
)
def test_every_rank_is_told_of_a_mismatch(
    name: str, count: int, form: Callable[..., None], double: Any
) -> None:
    """Soon, on all ranks; other communicators go on, and this one once it is recovered."""
    comm, other = communicator(), communicator()
    assert allreduce(comm, double, count)
    calls, theirs, mine = MISMATCHES[name]
    if comm.size == 2 and name == "root" and form is not persistent:
        pytest.skip("both are roots, and are done")
    method, arguments = calls(count, lambda n, dtype="f4": double.Array(n, np.dtype(dtype)).fill(1))[
        comm.rank == comm.size - 1
    ]
    text, seconds = caught(comm, lambda: form(comm, method, arguments))
    quoted = [
        call.format(n=count, less=count - 1).replace("(", "_init(" if form is persistent else "(", 1)
        for call in (theirs, mine)
    ]
    plain = text.replace("] on the GPU", "]")
    wrong = unless(all(one in plain for one in quoted) and seconds < SOON_S, (text, seconds))
    wrong += unless(allreduce(other, double, count), "wrong")
    comm.recover()
    wrong += unless(allreduce(comm, double, count), "wrong after it")
    ensure_none(wrong)


@several
@pytest.mark.parametrize("form", [blocking, pytest.param(in_flight, marks=pytest.mark.full)])
def test_a_rank_comes_late(form: Callable[..., None], double: Any) -> None:
    """All raise with one text, whoever comes when the others have given up too, and go on once they have recovered."""
    comm, late = communicator(), WORLD.rank == WORLD.size - 1
    assert allreduce(comm, double)
    send, recv = double.Array(LONG).fill(1), double.Array(LONG)
    method = (
        comm.Allreduce
        if form is blocking
        else lambda *given, timeout: comm.Iallreduce(*given, timeout=timeout).Wait()
    )
    if late:
        WORLD.Barrier()
    error = raised(lambda: method(send, recv, timeout=0.5))
    if not late:
        WORLD.Barrier()
    told = rf"(?s)did not end in 0\.5 s:\n  rank \d waits for .*\n  rank {WORLD.size - 1} is in no collective since"
    wrong = unless(isinstance(error, hpcoll.CollectiveTimeout) and re.search(told, str(error)), repr(error))
    comm.recover()
    wrong += unless(allreduce(comm, double), "wrong after it")
    ensure_none(wrong)


@several
@pytest.mark.parametrize("name", ["cuEventQuery", "cuLaunchKernel", "cuEventRecord"])
def test_the_driver_fails_on_one_rank(name: str, double: Any) -> None:
    """That raises its error, the others one that names it; all go on once they have recovered."""
    comm, mine = communicator(), WORLD.rank == WORLD.size - 1
    assert allreduce(comm, double)
    send, recv = double.Array(LONG).fill(1), double.Array(LONG)
    WORLD.Barrier()
    if mine:
        double.fail(name, 700)

    def call() -> None:
        for _ in range(3):  # who was through hears it in the next one
            comm.Allreduce(send, recv, algorithm="two_shot")

    error = raised(call)
    gave_up = isinstance(error, hpcoll.PeerFailed) and f"rank {WORLD.size - 1} gave up: DeviceError" in str(
        error
    )
    wrong = unless(isinstance(error, hpcoll.DeviceError) if mine else gave_up, repr(error))
    comm.recover()
    wrong += unless(allreduce(comm, double), "wrong after it")
    ensure_none(wrong)


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
    wrong = unless(
        isinstance(error, hpcoll.HpcollError) or (error is None and (read(recv) == comm.size).all()),
        repr(error),
    )
    wrong += unless(allreduce(other, double), "wrong")
    ensure_none(wrong)


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
    [
        ("blocking", LONG),
        *(
            pytest.param(form, n, marks=pytest.mark.full)
            for n in (SHORT, LONG)
            for form in ("in_flight", "persistent")
        ),
    ],
)
def test_a_rank_leaves(form: str, count: int) -> None:
    """The others raise soon, with its error, and the job ends."""
    done = finished(command(3, f"COUNT = {count}\n" + GONE.replace("FORM", form)), {})
    told = r"PeerFailed .*rank 1 \(process \d+ on .*\) was ended by OSError: no such file"
    said = re.findall(rf"^rank [02] (\d+\.\d+) {told}$", done.stdout, re.MULTILINE)
    assert len(said) == 2, done.stdout + done.stderr[-3000:]
    assert max(map(float, said)) < SOON_S
    assert done.returncode != 0
