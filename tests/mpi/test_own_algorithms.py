"""Algorithms of the program's own: right answers by row and by name; refused on all ranks before any message where they are wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_cases import read
from gpu_double import LONG, communicator
from mpi4py import MPI
from reference import ensure_none, unless

import hpcoll
from hpcoll import Writer, inputs, outputs
from hpcoll.schedules.builders.allreduce_ring import allreduce_ring as ring

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD


def pipeline(w: Writer) -> None:
    """A chain from the root, chunk by chunk."""
    for chunk in range(w.nchunks):
        if w.vrank:
            w.recv(w.peer(w.vrank - 1), outputs(chunk))
        if w.vrank + 1 < w.nranks:
            w.send(w.peer(w.vrank + 1), outputs(chunk))


def half_of_a_ring(w: Writer) -> None:
    """A ring whose results do not come home."""
    ring(w)
    del w.channels[0][-2:]


def another_on_the_last_rank(w: Writer) -> None:
    """A ring that a rank understands in its own way: the second half is first a wait."""
    if WORLD.rank == WORLD.size - 1:
        w.copy(inputs(0), outputs(0))
    ring(w)


def summed(comm: hpcoll.Communicator, count: int, algorithm: object, **more: object) -> None:
    """An allreduce of so many elements, out of place and in place."""
    x, want, y = np.arange(count, dtype="f8") + comm.rank, np.empty(count), np.full(count, -1.0)
    WORLD.Allreduce(x, want)
    comm.Allreduce(x, y, algorithm=algorithm, **more)
    assert np.array_equal(y, want)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm, **more)
    assert np.array_equal(x, want)


@pytest.mark.smoke
def test_a_decorated_algorithm_serves_calls_of_all_kinds(registering: hpcoll.Communicator) -> None:
    """By its row and by its name, of any count, in segments, in flight, persistent; the ledger has it."""
    row = hpcoll.algorithm("allreduce", name="mine", chunks="p", pipelined=True)(ring)
    for count in (0, 1, registering.size + 1, 1000, 300_000):
        summed(registering, count, row)
    summed(registering, 5000, "mine", segment="4K")
    x, y = np.full(100, 1.0), np.zeros(100)
    registering.Iallreduce(x, y, algorithm=row).Wait()
    assert (y == registering.size).all()
    request = registering.Allreduce_init(x, y, algorithm="mine")
    for value in (2, 3):
        x[:] = value
        request.Start()
        request.Wait()
        assert (y == value * registering.size).all()
    request.Free()
    assert {line.algorithm for line in registering.ledger.rows()} == {"mine"}


@pytest.mark.double
@pytest.mark.usefixtures("registering")
def test_a_decorated_algorithm_serves_gpu_arrays(double: Any) -> None:
    """Long ones by programs for GPU memory, short ones by host copies."""
    on_gpu, wrong = communicator(), list[int]()
    row = hpcoll.algorithm("allreduce", name="mine", chunks="p", pipelined=True)(ring)
    for count in (5, LONG):
        send, recv = double.Array(count).fill(on_gpu.rank + 1), double.Array(count).fill(-1)
        on_gpu.Allreduce(send, recv, algorithm=row)
        wrong += unless((read(recv) == on_gpu.size * (on_gpu.size + 1) / 2).all(), count)
    on_gpu.Free()
    ensure_none(wrong)


def test_a_pipeline_takes_any_number_of_chunks_from_any_root(registering: hpcoll.Communicator) -> None:
    row = hpcoll.algorithm("bcast", name="pipeline", chunked=True)(pipeline)
    for root in range(registering.size):
        for count in (1, 1000, 100_000):
            x = np.arange(count, dtype="i4") * (1 if registering.rank == root else -1)
            registering.Bcast(x, root, algorithm=row, segment="8K")
            assert np.array_equal(x, np.arange(count))


@pytest.mark.parametrize("builder", [half_of_a_ring, another_on_the_last_rank])
def test_what_is_wrong_or_not_the_same_is_refused_everywhere(
    registering: hpcoll.Communicator, builder: Callable[[Writer], None]
) -> None:
    """Every rank raises, again at a second try, and the communicator serves the next call."""
    expected = {
        half_of_a_ring: (hpcoll.ScheduleError, "is refused on"),
        another_on_the_last_rank: (hpcoll.ArgumentError, f"rank {WORLD.size - 1}: schedules of digest"),
    }
    kind, text = expected[builder]
    hpcoll.algorithm("allreduce", name="bad", chunks="p")(builder)
    x, y = np.ones(10), np.zeros(10)
    for _ in range(2):
        with pytest.raises(kind, match=text):
            registering.Allreduce(x, y, algorithm="bad")
        assert not y.any()
    summed(registering, 10, None)


def test_ranks_whose_plans_differ_agree_on_the_first_use(registering: hpcoll.Communicator) -> None:
    """A call in flight, in place on one rank only, is the first use on all; the next call, new to that rank alone, compares nothing."""
    row = hpcoll.algorithm("allreduce", name="mine", chunks="p")(ring)
    x, y = np.ones(10), np.ones(10)
    registering.Iallreduce(x if registering.rank else MPI.IN_PLACE, y, algorithm=row).Wait()
    summed(registering, 10, row)


def test_who_names_another_algorithm_is_told(registering: hpcoll.Communicator) -> None:
    """The first use of an algorithm of one's own meets no call of another one."""
    hpcoll.algorithm("allreduce", name="mine", chunks="p")(ring)
    x, y = np.ones(10), np.zeros(10)
    with pytest.raises(hpcoll.MismatchError):
        registering.Allreduce(x, y, algorithm="mine" if registering.rank else "ring")


def test_ranks_must_register_the_same(registering: hpcoll.Communicator) -> None:
    """A communicator that is made afterwards is refused on all ranks, because the model would choose differently."""
    summed(registering, 10, None)
    if registering.rank == 0:
        hpcoll.algorithm("allreduce", name="lonely", chunks="p")(ring)
    with pytest.raises(hpcoll.ArgumentError, match="algorithm allreduce/lonely must be equal on all ranks"):
        hpcoll.Communicator(WORLD.Dup()).Barrier()
    summed(registering, 10, None)
