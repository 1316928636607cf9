"""Ghost layers are those of the whole array, for any grid, width and element type; what cannot be exchanged is refused by all ranks."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from mpi4py import MPI
from reference import Array, communicator, ensure_none, unless

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.grids import packed_parts

pytestmark = [pytest.mark.mpi]
NRANKS = MPI.COMM_WORLD.size
GRIDS = sorted(
    {
        (NRANKS,),
        tuple(MPI.Compute_dims(NRANKS, 2)),
        (1, NRANKS),
        (NRANKS, 1, 1),
        tuple(MPI.Compute_dims(NRANKS, 3)),
    }
)
LEFT = -7  # in ghost layers that nobody fills


def grid_of(dims: Sequence[int], periods: Sequence[bool]) -> Any:
    return communicator().Create_cart(dims, periods)


def expected(
    grid: Any, width: Sequence[Any], corners: bool, dtype: Any, components: tuple[int, ...] = ()
) -> Array:
    """Return this rank's block of an array with numbered points, and with `LEFT` in ghost layers that nobody fills.

    Along dimension 0 blocks grow by a point from rank to rank.
    """
    index, ghost, beyond, total = [], [], [], []
    for d, periodic, at, n, one in zip(grid.dims, grid.periods, grid.coords, (5, 4, 3), width, strict=False):
        low, high = (one, one) if isinstance(one, int) else one
        grows = not index
        first, owned = n * at + grows * at * (at - 1) // 2, n + grows * at
        total.append(n * d + grows * d * (d - 1) // 2)
        points = np.arange(first - low, first + owned + high)
        index.append(points % total[-1])
        ghost.append((points < first) | (points >= first + owned))
        beyond.append((points != index[-1]) & (not periodic))
    whole = np.arange(np.prod((*total, *components))).reshape(*total, *components).astype(dtype)
    found = whole[np.ix_(*index)]
    layers, outside = (sum(np.ix_(*(np.asarray(one, int) for one in masks))) for masks in (ghost, beyond))
    found[(outside > 0) | (layers > (len(index) if corners else 1))] = np.array(LEFT).astype(dtype)
    return found


def filled(
    grid: Any,
    width: Sequence[Any],
    corners: bool,
    order: Any = "C",
    dtype: Any = np.float64,
    components: Any = (),
) -> list[Any]:
    """Exchange twice; return what is wrong."""
    want = expected(grid, width, corners, dtype, components)
    array = np.full(want.shape, np.array(LEFT).astype(dtype), order=order)
    wrong = []
    with hpcoll.Halo(
        grid, array, width, corners=corners, axes=range(len(width)) if components else None
    ) as halo:
        array[halo.owned] = want[halo.owned]
        halo.exchange()
        wrong += unless((array == want).all(), ("first", array, want))
        array[halo.owned] *= 2
        halo.start()
        halo.wait()
        wrong += unless((array[want != LEFT] == 2 * want[want != LEFT]).all(), ("again", array, want))
        times = np.zeros(array.shape, int)
        for part in (halo.inner, *halo.rim):
            times[part] += 1
        once = np.zeros(array.shape, int)
        once[halo.owned] = 1
        wrong += unless((times == once).all(), ("parts", times))
    return wrong


@pytest.mark.parametrize("dims", GRIDS)
def test_ghost_layers(dims: tuple[int, ...]) -> None:
    """Open and periodic edges, with corners and without; neighbours on both sides may be one rank, or this one."""
    wrong = []
    for periods in product((False, True), repeat=len(dims)):
        grid = grid_of(dims, periods)
        wrong += [
            (periods, corners, one)
            for corners in (False, True)
            for one in filled(grid, [1] * len(dims), corners)
        ]
        grid.Free()
    ensure_none(wrong)


@pytest.mark.parametrize(
    "more",
    [
        {"width": [(2, 1), (0, 1)], "corners": True, "order": "F"},
        {"width": [3, (1, 0)], "corners": True, "dtype": np.complex64},
        {"width": [(0, 2), 0], "corners": False},
        {"width": [1, 2], "corners": True, "dtype": np.int16, "components": (2, 3)},
        {"width": [1, 1], "corners": False, "dtype": "datetime64[s]"},
    ],
)
def test_widths_and_elements(more: dict[str, Any]) -> None:
    """One-sided and wide layers, Fortran order, several components, and elements that MPI does not know."""
    grid = grid_of(MPI.Compute_dims(NRANKS, 2), [True, False])
    wrong = filled(grid, **more) if "datetime" not in str(more) else times_filled(grid)
    grid.Free()
    ensure_none(wrong)


def times_filled(grid: Any) -> list[Any]:
    want = expected(grid, [1, 1], False, np.int64).view("datetime64[s]")
    array = np.full(want.shape, LEFT).view("datetime64[s]")
    with hpcoll.Halo(grid, array) as halo:
        array[halo.owned] = want[halo.owned]
        halo.exchange()
    return unless((array == want).all(), array)


def test_a_grid_of_mpi4py() -> None:
    """With other calls between start and wait, and an exchange that `free` ends."""
    comm, wrong = communicator(), []
    grid = MPI.COMM_WORLD.Create_cart([NRANKS], [True])
    array = np.full(3, float(grid.rank))
    halo = hpcoll.Halo(grid, array)
    halo.start()
    total = comm.allreduce(1)
    halo.free()
    halo.free()
    wrong += unless(
        (total, *array) == (NRANKS, (grid.rank - 1) % NRANKS, grid.rank, (grid.rank + 1) % NRANKS), array
    )
    wrong += unless(halo.nbytes == 16, halo.nbytes)
    with pytest.raises(ArgumentError, match=rf"rank {grid.rank}: Halo needs to be in use, was freed"):
        halo.exchange()
    grid.Free()
    ensure_none(wrong)


def test_without_persistent_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an MPI library of version 3, each exchange is begun anew."""

    def lacking(*_: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(hpcoll.DistGraphCommunicator, "Neighbor_alltoallw_init", lacking)
    grid = grid_of([NRANKS], [True])
    wrong = filled(grid, [1], False)
    grid.Free()
    ensure_none(wrong)


def test_turns() -> None:
    grid = grid_of([NRANKS], [True])
    with hpcoll.Halo(grid, np.zeros(3)) as halo:
        with pytest.raises(ArgumentError, match="Halo needs start before wait, got wait alone"):
            halo.wait()
        halo.start()
        with pytest.raises(ArgumentError, match="Halo needs wait before the next start, got two starts"):
            halo.start()
        halo.wait()
    grid.Free()


# --- what is refused

LAST = NRANKS - 1


def read_only() -> Array:
    array = np.zeros((5, 5))
    array.flags.writeable = False
    return array


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "list": ({"array": [[0.0]]}, "Halo needs an array of NumPy, or one in GPU memory, got list"),
    "objects": ({"array": np.zeros((5, 5), object)}, "Halo needs elements of fixed size, got object"),
    "read-only": ({"array": read_only()}, "Halo needs an array that can be written, got a read-only one"),
    "gaps": (
        {"array": np.zeros((5, 10))[:, ::2]},
        "contiguous in C or Fortran order, got strides (80, 16) for shape (5, 5)",
    ),
    "dimensions": (
        {"array": np.zeros((5, 5, 5))},
        "Halo needs an array with 2 axes, as the grid has dimensions, or axes= for them, got 3",
    ),
    "axes": ({"axes": [0, 2]}, "Halo needs axes= with different axes of an array that has 2, got [0, 2]"),
    "small": (
        {"array": np.zeros((5, 2))},
        "at least 3 points along dimension 1 for a width of (1, 1), ghost layers included, got 2",
    ),
    "negative": (
        {"width": [1, -1]},
        "Halo needs a width of 0 or more, or 2 of them or of pairs, got [1, -1]",
    ),
}
DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "width": (
        {"array": np.zeros((6, 6)), "width": [1, (1, 2)]},
        "width of Halo must be equal on all ranks, expected ((1, 1), (1, 1)) as on rank 0",
    ),
    "type": (
        {"array": np.zeros((5, 5), np.float32)},
        "dtype of Halo must be equal on all ranks, expected 'float64' as on rank 0, got 'float32'",
    ),
    "corners": (
        {"corners": True},
        "corners of Halo must be equal on all ranks, expected False as on rank 0, got True",
    ),
    "axes of the array": (
        {"array": np.zeros((5, 5, 1)), "axes": [0, 1]},
        "ndim of Halo must be equal on all ranks, expected 2 as on rank 0, got 3",
    ),
    "shape": ({"array": np.zeros((6, 5))}, "array of Halo needs 5 points along axis 0, as on rank 0, got 6"),
}


@pytest.mark.parametrize("name", [*REFUSED, *DIFFERENT])
def test_refused(name: str) -> None:
    """One rank's arguments are wrong, or differ: all raise the same before any message leaves, and the grid is as before."""
    if name in DIFFERENT and NRANKS == 1:
        pytest.skip("one rank differs from nobody")
    grid = grid_of([1, NRANKS], [True, True])
    wrong, text = (REFUSED | DIFFERENT)[name]
    right: dict[str, Any] = {"array": np.zeros((5, 5)), "width": 1}
    given = right | wrong if grid.rank == LAST else right
    with pytest.raises(ArgumentError) as caught:
        hpcoll.Halo(grid, **given)
    assert f"rank {LAST}: " in str(caught.value)
    assert text in str(caught.value)
    hpcoll.Halo(grid, **right).free()
    grid.Free()


def test_no_grid() -> None:
    with pytest.raises(
        ArgumentError, match=r"rank \d+: Halo needs a communicator with cartesian topology, got <hpcoll"
    ):
        hpcoll.Halo(communicator(), np.zeros(3))  # type: ignore[arg-type]


# --- GPU arrays


@pytest.mark.once
@pytest.mark.parametrize("short", [True, False])
def test_gpu_arrays(short: bool, either: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the driver's double: one kernel packs what goes to all neighbours, one unpacks what has come, behind the work of the stream."""
    monkeypatch.setattr(packed_parts, "SHORT_NBYTES", 1 << 16 if short else 0)
    comm, wrong = hpcoll.Communicator(MPI.COMM_WORLD.Dup()), []
    for dims, dtype in ((2, np.float64), (3, np.int16)):
        grid = comm.Create_cart(MPI.Compute_dims(NRANKS, dims), [True] * (dims - 1) + [False])
        want = expected(grid, [1] * dims, True, dtype)
        array = either.Array(want.shape, dtype, stream=either.stream()).fill(LEFT)
        with hpcoll.Halo(grid, array, corners=True) as halo:
            for turn in range(3):
                mine = np.full_like(want, LEFT)
                mine[halo.owned] = want[halo.owned] + turn * (want[halo.owned] != LEFT)
                either.later(array.stream, array.address, mine)
                before = either.calls.copy()
                halo.start() if turn else halo.exchange()
                halo.wait() if turn else None
                right = array.get() == want + turn * (want != LEFT)
                wrong += unless(right.all(), (dims, turn, array.get(), want))
                made = either.calls - before
                counts = made["cuLaunchKernel"], made["cuMemcpyAsync"] == 0
                wrong += unless(counts == (2, short) or (NRANKS == 1 and counts[0] == 2), (dims, turn, made))
        grid.Free()
    comm.Free()
    ensure_none(wrong)


@pytest.mark.once
def test_no_page_locked_memory_on_one_rank(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks exchange by programs for GPU memory then, however short the parts are."""
    grid = grid_of([1, NRANKS], [True, True])
    array = double.Array((5, 5)).fill(grid.rank)
    if grid.rank == LAST:
        monkeypatch.setattr(packed_parts, "pinned", lambda cuda, nbytes: np.empty(nbytes, np.uint8))
    halo = hpcoll.Halo(grid, array)
    before = double.calls["cuMemcpyAsync"]
    halo.exchange()
    assert double.calls["cuMemcpyAsync"] > before
    assert (array.get()[2] == [(grid.rank - 1) % NRANKS, *[grid.rank] * 3, (grid.rank + 1) % NRANKS]).all()
    halo.free()
    grid.Free()


@pytest.mark.once
def test_a_gpu_array_without_neighbours(double: Double) -> None:
    """Of a rank behind open edges: nothing is launched, and no other rank waits."""
    grid = grid_of([1, NRANKS], [False, False])
    array = double.Array((3, 3)).fill(grid.rank)
    with hpcoll.Halo(grid, array, width=[1, 0]) as halo:
        halo.exchange()
        halo.start()
        halo.wait()
    assert (array.get() == grid.rank).all()
    assert not double.calls["cuLaunchKernel"]
    grid.Free()


@pytest.mark.once
def test_bad_gpu_arrays(double: Double) -> None:
    """Read-only and with gaps: refused as host arrays are."""
    grid = grid_of([1, NRANKS], [True, True])
    bad = double.Array((5, 5), readonly=True), double.Array((5, 10))[:, ::2]
    for array, text in zip(bad, ("got a read-only one", "C or Fortran order, got strides (40, 8)")):
        with pytest.raises(ArgumentError) as caught:
            hpcoll.Halo(grid, array)
        assert text in str(caught.value)
    grid.Free()
