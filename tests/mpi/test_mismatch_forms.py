"""Calls that have no messages for each other: ranks that wait in such for one another raise, soon and all.

One blocking and one in flight or persistent, one that makes an array, one with an array in GPU memory.
"""

import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from failed_calls import blocking, caught, in_flight, made, not_refused, persistent, x
from gpu_double import LONG
from gpu_double import communicator as over_double
from mpi4py import MPI
from reference import SOON_S, ensure, ensure_none, raised

import hpcoll
from hpcoll import MismatchError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.twice]

WORLD = MPI.COMM_WORLD
LAST = WORLD.rank == WORLD.size - 1


def allreduce(form: Callable[..., None]) -> Callable[[hpcoll.Communicator], None]:
    return lambda comm: form(comm, "Allreduce", (x(8), x(8)))


FORMS: dict[str, tuple[Callable[[hpcoll.Communicator], object], str]] = {
    "blocking": (allreduce(blocking), r"Allreduce\(float64\[8\], op=SUM\) at "),
    "in flight": (allreduce(in_flight), r"Iallreduce\(float64\[8\], op=SUM\) at "),
    "persistent": (allreduce(persistent), r"Allreduce_init\(float64\[8\], op=SUM\) at "),
    "zeros": (lambda comm: comm.zeros(3), r"zeros with shape \(3,\) of float64 at "),
}


FEW = "blocking-in flight", "in flight-persistent", "zeros-blocking"
MORE = "persistent-blocking", "in flight-zeros", "in flight-blocking"


either_way = pytest.mark.parametrize(
    "way", ["shared memory", pytest.param("messages", marks=pytest.mark.once)], indirect=True
)


@either_way
@pytest.mark.parametrize("pair", [*FEW, *(pytest.param(one, marks=pytest.mark.full) for one in MORE)])
def test_every_rank_raises(pair: str, way: str) -> None:
    """With what each calls, and the line."""
    comm, (others, last) = made(way), pair.split("-")
    for run, _ in FORMS.values():
        for _ in range(2):
            run(comm)
    text, seconds = caught(comm, lambda: FORMS[last if LAST else others][0](comm))
    wrong = [
        name for name in (others, last) if not re.search(rf"ranks? [^;]*: {FORMS[name][1]}\S+\.py:\d+", text)
    ]
    ensure_none([(wrong, text, seconds)] if wrong or seconds > SOON_S else [])


@either_way
def test_a_first_persistent_request(way: str) -> None:
    """What ranks agree on before it is such a call, too."""
    comm = made(way)
    text, seconds = caught(comm, lambda: FORMS["persistent" if LAST else "blocking"][0](comm))
    right = (
        re.search(rf"rank {WORLD.size - 1}: a persistent request at \S+\.py:\d+", text)
        and "Allreduce(float64[8], op=SUM)" in text
    )
    ensure(right and seconds < SOON_S, (text, seconds))


@pytest.mark.double(forgives=("races", "failures"))
@pytest.mark.once
@pytest.mark.parametrize("form", [blocking, in_flight, persistent])
@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.full)])
def test_kinds_of_memory(form: Callable[..., None], double: Any, *, warm: bool) -> None:
    """One rank passes an array in GPU memory where the others' are on the host, on a communicator that was not made for that."""
    comm = over_double()
    host, gpu = (
        (np.ones(LONG, np.float32), np.zeros(LONG, np.float32)),
        (double.Array(LONG).fill(1), double.Array(LONG).fill(0)),
    )
    comm.Barrier()
    for arrays in (host, gpu) * (2 * warm):
        form(comm, "Allreduce", arrays)
    text, seconds = caught(comm, lambda: form(comm, "Allreduce", gpu if LAST else host))
    right = re.search("on the GPU|arrays in GPU memory at", text) and re.search(
        rf"llreduce\w*\(float32\[{LONG}\], op", text
    )
    ensure(right and seconds < SOON_S, (text, seconds))


@pytest.mark.once
@pytest.mark.parametrize(
    "way", ["shared memory", pytest.param("messages", marks=pytest.mark.full)], indirect=True
)
def test_functions_as_operators(way: str) -> None:
    """Told apart by what they do: both have the name that every lambda has."""
    comm, total = made(way), np.zeros(8)
    comm.Allreduce(x(8), total, hpcoll.reduce_op(lambda a, b: a + b))
    op = hpcoll.reduce_op(lambda a, b: a * b) if LAST else hpcoll.reduce_op(lambda a, b: a + b)
    text, seconds = caught(comm, lambda: comm.Allreduce(x(8), total, op))
    ensure("op=a function" in text and seconds < SOON_S, (text, seconds))


@either_way
def test_a_root_without_room(way: str) -> None:
    """That has sent what there is room for, and can send no more before the others come to its call."""
    comm = made(way)
    others = partial(in_flight, comm, "Allreduce", (x(8), x(8)))
    text, seconds = caught(
        comm, others if comm.rank else lambda: comm.Bcast(x(300_000), algorithm="binomial")
    )
    right = "Bcast(float64[300000], root=0)" in text and "Iallreduce(float64[8], op=SUM)" in text
    ensure(right and seconds < SOON_S, (text, seconds))


@either_way
@pytest.mark.parametrize("form", ["in flight", "persistent"])
def test_waitall(form: str, way: str) -> None:
    """A rank in the MPI library's own wait, which says nothing of itself."""
    comm = made(way)
    planned = comm.Allreduce_init(x(8), x(8)) if form == "persistent" else None
    begun = time.monotonic()
    if LAST:
        if planned is not None:
            planned.Start()
        requests = [comm.Iallreduce(x(8), x(8)) if planned is None else planned]
        error, expected = raised(lambda: MPI.Request.Waitall(requests)), MPI.Exception
    else:
        error, expected = raised(lambda: comm.Bcast(x(8), WORLD.size - 1)), MismatchError
    seconds, quoted = time.monotonic() - begun, LAST or re.search(FORMS[form][1], str(error))
    ensure(isinstance(error, expected) and quoted and seconds < SOON_S, (repr(error), seconds))
    ensure_none(not_refused(raised(comm.Barrier)))


@pytest.mark.once
@either_way
@pytest.mark.parametrize("meanwhile", ["computes", "waits for something else"])
def test_in_flight_that_nobody_waits_for_yet(meanwhile: str, way: str) -> None:
    """A rank that does something else while its call is in flight comes to the others' blocking one later: nothing is wrong."""
    comm = made(way)
    total, sums = np.zeros(8), np.zeros(8)
    if LAST:
        request = comm.Iallreduce(x(8), total)
        if meanwhile == "computes":
            time.sleep(0.6)
        else:
            threading.Timer(0.6, lambda: MPI.COMM_SELF.Send(x(1), 0)).start()
            requests = [MPI.COMM_SELF.Irecv(x(1))]
            MPI.Request.Waitall(requests)
    comm.Allreduce(x(8), sums)
    if not LAST:
        request = comm.Iallreduce(x(8), total)
    request.Wait()
    ensure((total == comm.size).all() and (sums == comm.size).all(), (total, sums))
