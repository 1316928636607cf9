"""Calls on derived datatypes again and again: compiled code packs what it stages and unpacks what has come, as Python described once."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import communicator, ensure_none, fresh, unless

from hpcoll.base.errors import ArgumentError
from hpcoll.runtime.engine.object_layout import SUPPORTED

pytestmark = [pytest.mark.mpi, pytest.mark.twice]
SEVERAL_SEGMENTS = 7000  # elements
ROWS = 5  # of a matrix with three columns, of which the first travels
Arguments = tuple[Any, ...]


def column(nbytes: int = 24 * ROWS) -> MPI.Datatype:
    """The first column of a matrix; the next one begins so many bytes behind it."""
    return MPI.DOUBLE.Create_vector(ROWS, 1, 3).Create_resized(0, nbytes).Commit()


def numbers(turn: int, rank: int, nblocks: int, *more: int) -> np.ndarray:
    return np.random.default_rng([turn, rank]).random((nblocks * ROWS, *more))


def cases(
    comm: MPI.Intracomm, turn: int, count: int, one: MPI.Datatype
) -> Iterator[tuple[str, str, Callable[[], Arguments]]]:
    """A name, a method and its arguments, made anew by each call."""
    p, rank, root = comm.size, comm.rank, turn % comm.size
    at_root = rank == root

    def derived(nblocks: int) -> list[Any]:
        return [numbers(turn, rank, count * nblocks, 3), count, one]

    def plain(nblocks: int) -> np.ndarray:
        return numbers(turn, rank, count * nblocks)

    in_place = MPI.IN_PLACE
    yield "all have it", "Bcast", lambda: (derived(1), root)
    yield "the root has it", "Bcast", lambda: (derived(1) if at_root else plain(1), root)
    yield "both sides", "Allgather", lambda: (derived(1), derived(p))
    yield "sent", "Allgather", lambda: (derived(1), plain(p))
    yield "received", "Allgather", lambda: (plain(1), derived(p))
    yield "in place", "Allgather", lambda: (in_place, derived(p))
    yield "both sides", "Gather", lambda: (derived(1), derived(p) if at_root else None, root)
    yield (
        "in place",
        "Gather",
        lambda: (in_place if at_root else derived(1), derived(p) if at_root else None, root),
    )
    yield "both sides", "Scatter", lambda: (derived(p) if at_root else None, derived(1), root)
    yield (
        "in place",
        "Scatter",
        lambda: (derived(p) if at_root else None, in_place if at_root else derived(1), root),
    )
    yield "both sides", "Alltoall", lambda: (derived(p), derived(p))
    yield "received", "Alltoall", lambda: (plain(p), derived(p))
    yield "in place", "Alltoall", lambda: (in_place, derived(p))


def arrays(arguments: Arguments) -> list[np.ndarray]:
    specs = [one[0] if isinstance(one, list) else one for one in arguments]
    return [one for one in specs if isinstance(one, np.ndarray)]


@pytest.mark.parametrize("form", ["{}", "I{}", "{}_init"])
@pytest.mark.parametrize(
    ("way", "algorithm"),
    [("shared memory", None), ("messages", None), ("messages", "native")],
    indirect=["way"],
)
def test_every_method_as_in_mpi4py(algorithm: str | None, form: str, way: str, short: bool) -> None:
    """All bytes of all buffers, gaps included, for counts and roots that change from turn to turn."""
    comm, one, wrong = fresh(), column(), []
    for turn in range(8 if short else 4 * comm.size):
        for name, method, arguments in cases(comm, turn, (1, 2, 3, SEVERAL_SEGMENTS)[turn % 4], one):
            expected, found = arguments(), arguments()
            getattr(MPI.Intracomm, method)(comm, *expected)
            call = getattr(comm, form.format(method.lower() if form[0] == "I" else method))
            request = call(*found, algorithm=algorithm)
            if form.endswith("init"):
                request.Start()
            if request is not None:
                request.Wait()
            alike = all(map(np.array_equal, arrays(expected), arrays(found)))
            wrong += unless(alike, (method, name, turn))
    one.Free()
    comm.Free()
    ensure_none(wrong)


@pytest.mark.skipif(not SUPPORTED, reason="arrays of this NumPy are laid out otherwise")
def test_what_was_seen_is_not_described_again(described: list[str]) -> None:
    """Not even for another array, an offset into one, or a tuple."""
    comm, one = fresh(), column(8)
    matrix = np.zeros((4 * ROWS, 3))
    comm.Bcast([matrix, 2, one])
    described.clear()
    for spec in ([np.zeros((ROWS, 3)), 2, one], [matrix, (2, 1), one], (matrix, 2, one)):
        comm.Bcast(spec)
    one.Free()
    comm.Free()
    ensure_none(described)


def test_what_is_refused_stays_refused() -> None:
    """A datatype that reaches beyond the array, and one that has been freed, after a call that was right."""
    comm, one = communicator().Dup(), column(8)
    matrix = np.zeros((ROWS, 3))
    comm.Bcast([matrix, 3, one])
    with pytest.raises(ArgumentError, match="4 elements"):
        comm.Bcast([matrix, 4, one])
    for spec in ([matrix[1:], 1, one], [matrix, (1 << 59) + 1, one]):
        with pytest.raises((ArgumentError, OverflowError)):
            comm.Bcast(spec)
    one.Free()
    with pytest.raises((ArgumentError, MPI.Exception)):
        comm.Bcast([matrix, 3, one])
    comm.Free()


def test_a_view_inside_its_array() -> None:
    """A datatype may reach before the view, and behind it, on both sides and again and again."""
    comm, around, wrong = fresh(), MPI.DOUBLE.Create_hindexed([1, 1], [-8, 8]).Commit(), []
    for _ in range(3):
        x, y, every = np.arange(10.0), np.zeros(10), np.zeros(2 * comm.size)
        comm.Allgather([x[5:6], 1, around], every)
        comm.Scatter(
            [np.arange(2.0 * comm.size), 2, MPI.DOUBLE] if comm.rank == 0 else None, [y[5:6], 1, around]
        )
        here = [2.0 * comm.rank, 2.0 * comm.rank + 1]
        wrong += unless(
            every.tolist() == [4, 6] * comm.size and y.tolist() == [0] * 4 + [here[0], 0, here[1]] + [0] * 3,
            (every, y),
        )
    around.Free()
    comm.Free()
    ensure_none(wrong)


@pytest.mark.once
@pytest.mark.skipif(not SUPPORTED, reason="objects are laid out otherwise")
def test_datatypes_made_anew_for_each_call_are_known(described: list[str]) -> None:
    """They go with the call, other ones come between, and one that is kept is used again."""
    comm, wrong = fresh(), list[Any]()
    kept, n = MPI.DOUBLE.Create_vector(4, 1, 3).Commit(), comm.size
    for turn in range(12):
        stride, times = 2 + turn % 2, turn % 3 + 1
        made = [MPI.DOUBLE.Create_vector(4, 1, stride).Commit() for _ in range(2 * n)]
        inner = MPI.DOUBLE.Create_vector(2, 1, 2)
        nested = inner.Create_contiguous(times).Commit()
        x, y, z = np.full(12 * n, comm.rank + 1.0), np.zeros(12 * n), np.zeros(12 * n)
        counts, displs = [1] * n, [96 * rank for rank in range(n)]
        comm.Alltoallw([x, counts, displs, made[:n]], [y, counts, displs, made[n:]])
        comm.Allgather([x, 1, made[0]], [z, 1, made[1]])
        comm.Bcast([x, 1, nested])
        comm.Bcast([y, 1, kept], root=n - 1)
        for rank in range(n):
            place = (3 * stride + 1) * rank
            wrong += unless((y[12 * rank :][: 3 * stride + 1 : stride] == rank + 1.0).all(), (turn, y))
            wrong += unless((z[place:][: 3 * stride + 1 : stride] == rank + 1.0).all(), (turn, z))
        wrong += unless([*x[:3], x[3 * times]] == [1, comm.rank + 1, 1, comm.rank + 1], (turn, x))
        for one in (*made, inner, nested):
            one.Free()
    # two vectors, in two methods, three nested ones and the one that is kept; of each kind two are read
    wrong += unless(len(described) <= 16, described)
    kept.Free()
    ensure_none(wrong)
    comm.Free()


@pytest.mark.once
def test_a_program_s_operator_sees_the_program_s_datatype() -> None:
    comm, wrong = fresh(), list[Any]()
    seen: list[str] = []

    def add(a: Any, b: Any, datatype: MPI.Datatype) -> None:
        seen.append(datatype.name)
        np.frombuffer(b, np.float64)[:] += np.frombuffer(a, np.float64)

    op = MPI.Op.Create(add, commute=True)
    for turn in range(4):
        pair = MPI.DOUBLE.Create_contiguous(2).Commit()
        pair.name = f"pair {turn}"
        x, y = np.full(4, comm.rank + 1.0), np.zeros(4)
        comm.Allreduce([x, 2, pair], [y, 2, pair], op)
        wrong += unless((y == comm.size * (comm.size + 1) / 2).all(), (turn, y))
        pair.Free()
    wrong += unless(set(seen) <= {f"pair {turn}" for turn in range(4)}, seen)
    op.Free()
    ensure_none(wrong)
    comm.Free()
