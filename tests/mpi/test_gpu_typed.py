"""GPU arrays with derived datatypes: one kernel packs what is sent, one unpacks what has come, over the driver's double."""

from typing import Any

import numpy as np
import pytest
from gpu_cases import read
from gpu_double import WORLD, communicator
from mpi4py import MPI
from reference import ensure_none, raised, unless

pytestmark = [pytest.mark.mpi, pytest.mark.double]
RANK, P = WORLD.rank, WORLD.size
N = 5
LONG = 20_000  # rows of a matrix whose columns are longer than what goes by the host


def blocks(shape: tuple[int, int], axis: int) -> list[Any]:
    """A datatype for each rank's block of a matrix of doubles, cut along an axis; the last column of the matrix is nobody's."""
    firsts = [[i * N if one == axis else 0 for one in range(2)] for i in range(P)]
    return [MPI.DOUBLE.Create_subarray(shape, (N, N), first).Commit() for first in firsts]


def numbered(rank: int, turn: int = 0) -> np.ndarray:
    """The matrix that a rank sends, which is cut along its columns."""
    return np.arange(N * (N * P + 1), dtype=float).reshape(N, -1) + 10_000 * rank + 100_000 * turn


def gathered(rank: int, turn: int = 0) -> np.ndarray:
    """The matrix that a rank gets: its columns of all, row after row, and a column that stays."""
    columns = [numbered(i, turn)[:, rank * N : (rank + 1) * N] for i in range(P)]
    return np.concatenate([np.concatenate(columns), np.full((N * P, 1), -1)], axis=1)


class Exchange:
    """Two arrays of the double and their specs; the work of a stream comes first."""

    def __init__(self, double: Any) -> None:
        self.double, self.stream = double, double.stream()
        self.sent = double.Array((N, N * P + 1), np.float64, stream=self.stream).fill(0)
        self.received = double.Array((N * P, N + 1), np.float64, stream=self.stream).fill(-1)
        ones, zeros = [1] * P, [0] * P
        self.send = [self.sent, ones, zeros, blocks((N, N * P + 1), 1)]
        self.recv = [self.received, ones, zeros, blocks((N * P, N + 1), 0)]

    def after(self, run: Any, turn: int) -> tuple[list[Any], Any]:
        """Return what is wrong after a run, and how often functions of the driver were called in it."""
        self.double.later(self.stream, self.sent.address, numbered(RANK, turn))
        before = self.double.calls.copy()
        run()
        made = self.double.calls - before
        return unless((read(self.received) == gathered(RANK, turn)).all(), (turn, read(self.received))), made


def test_two_kernels(double: Any) -> None:
    """In every form; from the second call on the driver is asked no more than whether peers may map packed memory."""
    comm, one, wrong = communicator(), Exchange(double), []
    planned = comm.Alltoallw_init(one.send, one.recv)

    def started() -> None:
        planned.Start()
        planned.Wait()

    forms = {
        "blocking": lambda: comm.Alltoallw(one.send, one.recv),
        "in flight": lambda: comm.Ialltoallw(one.send, one.recv).Wait(),
        "persistent": started,
    }
    for form, run in forms.items():
        for turn in range(3):
            problem, made = one.after(run, turn)
            wrong += [(form, *problem)] if problem else []
            wrong += unless(made["cuLaunchKernel"] == 2, (form, turn, made))
            asked = made["cuPointerGetAttribute"] if turn else 0
            wrong += unless(asked <= 3, (form, turn, made))
    planned.Free()
    comm.Free()
    ensure_none(wrong)


def test_a_spec_that_changes(double: Any) -> None:
    """Lists that are the same objects and have other items; a datatype that was freed, and one that is made where it was."""
    comm, one, wrong = communicator(), Exchange(double), []
    for turn in range(2):
        wrong += one.after(lambda: comm.Alltoallw(one.send, one.recv), turn)[0]
    one.recv[3][0].Free()
    error = raised(lambda: comm.Alltoallw(one.send, one.recv))
    wrong += unless(isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_TYPE, error)
    one.recv[3][:] = blocks((N * P, N + 1), 0)
    wrong += one.after(lambda: comm.Alltoallw(one.send, one.recv), 2)[0]
    one.recv[2] = [8] * P  # a column further on
    comm.Alltoallw(one.send, one.recv)
    wrong += unless((read(one.received)[:, 1:] == gathered(RANK, 2)[:, :-1]).all(), read(one.received))
    comm.Free()
    ensure_none(wrong)


def test_in_place(double: Any) -> None:
    comm, one = communicator(), Exchange(double)
    one.sent.fill(numbered(RANK))
    comm.Alltoallw(MPI.IN_PLACE, one.send)
    want = numbered(RANK)
    want[:, :-1] = np.concatenate([numbered(i)[:, RANK * N : (RANK + 1) * N] for i in range(P)], axis=1)
    ensure_none(unless((read(one.sent) == want).all(), read(one.sent)))
    comm.Free()


def test_columns(double: Any) -> None:
    """Of other collectives, where messages are long; ranks may describe the same elements differently."""
    comm, wrong = communicator(), []
    column = MPI.DOUBLE.Create_vector(LONG, 1, 3).Create_resized(0, 8).Commit()
    values = np.arange(3.0 * LONG).reshape(LONG, 3)
    matrix, want = double.Array((LONG, 3), np.float64).fill(values + RANK), values + RANK
    comm.Bcast([matrix, 1, column], P - 1)
    want[:, 0] = values[:, 0] + P - 1
    wrong += unless((read(matrix) == want).all(), "Bcast")
    every, plain = double.Array((LONG, P), np.float64).fill(-1), double.Array(LONG, np.float64)
    plain.fill(values[:, 0] + RANK)
    columns = MPI.DOUBLE.Create_vector(LONG, 1, P).Create_resized(0, 8).Commit()
    comm.Allgather(plain, [every, 1, columns])
    wrong += unless((read(every) == values[:, :1] + np.arange(P)).all(), "Allgather")
    places = list(range(P))[::-1]
    comm.Allgatherv(plain, [every, [1] * P, places, columns])
    wrong += unless((read(every)[:, ::-1] == values[:, :1] + np.arange(P)).all(), "Allgatherv")
    mine = double.Array(LONG, np.float64).fill(-1)
    comm.Scatter([every, 1, columns], mine, P - 1)
    wrong += unless((read(mine) == values[:, 0] + P - 1 - RANK).all(), "Scatter")
    comm.Free()
    ensure_none(wrong)


@pytest.mark.parametrize("make", ["hindexed", "struct", "Fortran", "bytes"])
def test_layouts(make: str, double: Any) -> None:
    """Runs of several lengths at odd places, pairs, and elements in a Fortran array: as the host's array is afterwards."""
    comm, n = communicator(), 4 * P
    types = {
        "hindexed": MPI.BYTE.Create_hindexed([3, 1, 8], [1, 6, 16]).Create_resized(0, 32),
        "struct": MPI.Datatype.Create_struct([2, 1], [0, 24], [MPI.DOUBLE, MPI.INT]).Create_resized(0, 32),
        "Fortran": MPI.INT.Create_subarray([2, 4], [1, 3], [1, 1], MPI.ORDER_F),
        "bytes": MPI.BYTE.Create_contiguous(32),
    }
    datatype = types[make].Commit()
    values = np.random.default_rng(RANK).integers(0, 256, 32 * n, np.uint8)
    host, gpu = np.zeros_like(values), double.Array(32 * n, np.uint8).fill(0)
    source = double.Array(32 * n, np.uint8).fill(values)
    shape = [4] * P, [4 * 32 * i for i in range(P)], [datatype] * P
    comm.Alltoallw([values, *shape], [host, *shape])
    comm.Alltoallw([source, *shape], [gpu, *shape])
    comm.Free()
    ensure_none(unless((read(gpu) == host).all() and (host != 0).any(), (read(gpu), host)))


def test_very_many_runs(double: Any) -> None:
    """Their table is in GPU memory once, however often the call is made."""
    comm, n = communicator(), 3000
    places = np.cumsum(np.random.default_rng(5).integers(2, 9, n))
    datatype = MPI.DOUBLE.Create_indexed_block(1, places.tolist()).Commit()
    size, wrong = int(places[-1]) + 1, []
    sent, received = (double.Array(size, np.float64).fill(-1) for _ in range(2))
    for turn in range(3):
        values = np.arange(size, dtype=float) + turn
        sent.fill(values)
        before = double.calls["cuMemAlloc_v2"]
        shape = [int(i == RANK) for i in range(P)], [0] * P, [datatype] * P
        comm.Alltoallw([sent, *shape], [received, *shape])
        got = read(received)
        wrong += unless((got[places] == values[places]).all() and (got == -1).sum() == size - n, turn)
        wrong += unless(not turn or double.calls["cuMemAlloc_v2"] == before, (turn, "a table more"))
    comm.Free()
    ensure_none(wrong)
