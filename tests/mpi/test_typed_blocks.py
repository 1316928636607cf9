"""Alltoallw: blocks that have datatypes of their own, in every form as plain mpi4py has it, and recognised when they come again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import ensure, ensure_none, fresh, unless

from hpcoll.base.errors import ArgumentError
from hpcoll.runtime.engine.object_layout import SUPPORTED

pytestmark = [pytest.mark.mpi, pytest.mark.twice]
SHAPE = (4, 5, 6)
NBYTES = 8 * 4 * 5 * 6
# lengths and firsts, of twelve numbers each
FACES = {
    0: ([1, 3, 4], (1, 1, 1)),
    1: ([2, 1, 6], (0, 3, 0)),
    2: ([4, 3, 1], (0, 1, 5)),
}


def faces(n: int) -> list[MPI.Datatype]:
    """A face for each rank, in turn across the three axes."""
    return [MPI.DOUBLE.Create_subarray(SHAPE, *FACES[i % 3]).Commit() for i in range(n)]


def places(n: int, axis: int) -> list[MPI.Datatype]:
    """For each rank the face across an axis of a cube of its own."""
    lengths, firsts = FACES[axis]
    return [MPI.DOUBLE.Create_subarray((n, *SHAPE), (1, *lengths), (i, *firsts)).Commit() for i in range(n)]


def cube(comm: MPI.Intracomm, turn: int, *more: int) -> np.ndarray:
    return np.random.default_rng([turn, comm.rank]).random((*more, *SHAPE))


def specs(
    comm: MPI.Intracomm, kinds: list[MPI.Datatype], same: list[MPI.Datatype], turn: int
) -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Send and receive buffers, made anew by each call, by name."""
    p, here = comm.size, comm.rank
    ones, zeros = [1] * p, [0] * p
    plain, runs, column = (
        [MPI.DOUBLE] * p,
        MPI.DOUBLE.Create_contiguous(3).Commit(),
        MPI.DOUBLE.Create_vector(12 * 3000, 1, 2).Commit(),
    )
    long = np.random.default_rng([turn, here]).random((p, 3000, 12))
    given: dict[str, Callable[[], tuple[Any, Any]]] = {
        "faces": lambda: ([cube(comm, turn), ones, zeros, kinds], [cube(comm, 9, p), ones, zeros, same]),
        "pairs": lambda: (
            [cube(comm, turn), (ones, zeros), tuple(kinds)],
            (cube(comm, 9, p), (ones, zeros), same),
        ),
        "types alone": lambda: ([cube(comm, turn), kinds], [cube(comm, 9, p), same]),
        "plain": lambda: (
            [cube(comm, turn), [12] * p, list(range(0, 96 * p, 96)), plain],
            [cube(comm, 9), [4] * p, [96 * i for i in range(p)], [runs] * p],
        ),
        "packed for faces": lambda: (
            [np.arange(12.0 * p) + turn, [12] * p, np.arange(0, 96 * p, 96), plain],
            [cube(comm, 9, p), ones, zeros, same],
        ),
        "nothing for some": lambda: (
            [cube(comm, turn), [int(i > 0) for i in range(p)], zeros, kinds],
            [cube(comm, 9, p), [int(here > 0)] * p, zeros, same],
        ),
        "in place": lambda: (
            MPI.IN_PLACE,
            [cube(comm, turn, p), ones, [NBYTES * i for i in range(p)], kinds[:1] * p],
        ),
        "long": lambda: (
            [long, [36000] * p, [36000 * 8 * i for i in range(p)], plain],
            [np.zeros((p, 36000, 2)), ones, [16 * 36000 * i for i in range(p)], [column] * p],
        ),
    }
    return given


def run(comm: MPI.Intracomm, form: str, given: tuple[Any, Any]) -> np.ndarray:
    request = getattr(comm, form)(*given)
    if form.endswith("init"):
        request.Start()
    if request is not None:
        request.Wait()
    result: np.ndarray = given[1][0]
    return result


@pytest.mark.parametrize("form", ["Alltoallw", "Ialltoallw", "Alltoallw_init"])
def test_as_in_mpi4py(form: str, way: str) -> None:
    """All bytes of the receive buffer, again and again, whoever carries the messages."""
    comm, wrong = fresh(), []
    kinds, same = faces(comm.size), places(comm.size, comm.rank % 3)
    for turn in range(3):
        for name, make in specs(comm, kinds, same, turn).items():
            expected = run(MPI.Intracomm(comm), "Alltoallw", make())
            wrong += unless(np.array_equal(run(comm, form, make()), expected), (name, turn))
    comm.Free()
    ensure_none(wrong)


def test_changed_by_one(described: list[str]) -> None:
    """Another array is no other call; another count, place or datatype in the same lists is, and one that was freed."""
    if not SUPPORTED:
        pytest.skip("arrays of this NumPy are laid out otherwise")
    if MPI.COMM_WORLD.size == 1:
        pytest.skip("Open MPI 5.0.11 leaves the displacement out where a rank is alone")
    comm, wrong = fresh(), []
    p = comm.size
    x, y, received = cube(comm, 1), cube(comm, 2, p), [[1] * p, [0] * p, places(p, 0)]
    counts, displs, types = [1] * p, [0] * p, faces(1) * p

    def told(what: str, times: int) -> None:
        described.clear()
        expected = y.copy()
        MPI.Intracomm(comm).Alltoallw([x, counts, displs, types], [expected, *received])
        comm.Alltoallw([x, counts, displs, types], [y, *received])
        wrong.extend(
            [] if np.array_equal(y, expected) and len(described) == times else [(what, described.copy())]
        )

    told("first", 1)
    told("again", 0)
    x, y = cube(comm, 3), cube(comm, 4, p)
    told("another array", 0)
    displs[:] = [8] * p
    told("another place", 1)
    types[0].Free()
    types[:] = places(1, 2) * p
    told("another datatype", 1)
    counts[:], types[:] = [12] * p, [MPI.DOUBLE] * p
    told("another count", 1)
    told("again", 0)
    comm.Free()
    ensure_none(wrong)


@pytest.mark.parametrize("first", [False, True], ids=["known", "first"])
def test_freed_in_flight(first: bool) -> None:
    """Datatypes that the program frees while the call is in flight, also where the communicator's context is made meanwhile."""
    comm = fresh()
    ours, p = comm.Dup() if first else comm, comm.size
    expected, found, kinds, same = (
        np.zeros((p, *SHAPE)),
        np.zeros((p, *SHAPE)),
        faces(p),
        places(p, comm.rank % 3),
    )
    x, ones, zeros = cube(comm, 5), [1] * p, [0] * p
    MPI.Intracomm(comm).Alltoallw([x, ones, zeros, kinds], [expected, ones, zeros, same])
    request = ours.Ialltoallw([x, ones, zeros, kinds], [found, ones, zeros, same])
    for one in kinds + same:
        one.Free()
    request.Wait()
    ensure(np.array_equal(found, expected), found)
    if first:
        ours.Free()
    comm.Free()


def test_refused() -> None:
    """Blocks that reach outside the array, a block of this rank's own that has two sizes, and counts that are none."""
    comm, (face,) = fresh(), faces(1)
    p = comm.size
    ones, zeros, types = [1] * p, [0] * p, [face] * p
    comm.Alltoallw(
        [cube(comm, 0), ones, zeros, types], [cube(comm, 0, p), ones, [NBYTES * i for i in range(p)], types]
    )
    short = np.zeros(40)
    for spec in (
        [short, ones, zeros, types],
        [cube(comm, 0), ones, [NBYTES] * p, types],
        [cube(comm, 0), ones, [-1000] * p, types],
    ):
        with pytest.raises(ArgumentError, match=r"needs bytes -?\d+ to -?\d+ of its array"):
            comm.Alltoallw([cube(comm, 0), ones, zeros, types], spec)
    for counts in (2, None, [*ones, 1], ["1"] * p, [1.5] * p):
        with pytest.raises(ArgumentError, match=f"rank {comm.rank}: recvbuf needs (integer )?counts"):
            comm.Alltoallw([cube(comm, 0), ones, zeros, types], [cube(comm, 0, p), counts, zeros, types])
    with pytest.raises(ArgumentError, match="block"):
        comm.Alltoallw(
            [cube(comm, 0), [2] * p, zeros, [MPI.DOUBLE] * p], [short, ones, zeros, [MPI.DOUBLE] * p]
        )
    face.Free()
    comm.Free()
