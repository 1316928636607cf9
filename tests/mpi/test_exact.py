"""Exact reductions give the same bits for any number of ranks and any cut of the array; ranks that differ are told, all of them."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from mpi4py import MPI
from reference import Array, communicator

import hpcoll

pytestmark = [pytest.mark.mpi]
RANK, NRANKS = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = [np.float64, np.float32, np.float16, BF16, np.complex128, np.complex64]


def numbers(n: int, dtype: Any) -> Array:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(2 * n) * 10.0 ** rng.uniform(-4, 4, 2 * n)).clip(-60000, 60000)
    return (x[:n] + 1j * x[n:] if np.dtype(dtype).kind == "c" else x[:n]).astype(dtype)


def cuts(n: int) -> list[slice]:
    """This rank's part, of an array that is cut evenly, unevenly, and so that one rank has it all."""
    even = np.linspace(0, n, NRANKS + 1).astype(int)
    uneven = np.sort(np.concatenate([[0, n], np.random.default_rng(2).integers(0, n, NRANKS - 1)]))
    last = np.array([0] * NRANKS + [n])
    return [slice(ends[RANK], ends[RANK + 1]) for ends in (even, uneven, last)]


@pytest.mark.parametrize(
    "comm", [MPI.COMM_WORLD, communicator(), communicator("reversed")], ids=["mpi4py", "hpcoll", "reversed"]
)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_the_same_bits_for_any_cut(comm: Any, dtype: Any) -> None:
    x, y = numbers(3000, dtype), numbers(3000, dtype)[::-1]
    matrix = x.reshape(60, 50)
    for part in cuts(3000):
        assert hpcoll.exact_sum(comm, x[part]) == hpcoll.exact_sum(None, x)
        assert hpcoll.exact_mean(comm, x[part]) == hpcoll.exact_mean(None, x)
        assert hpcoll.exact_norm(comm, x[part]) == hpcoll.exact_norm(None, x)
        assert hpcoll.exact_dot(comm, x[part], y[part]) == hpcoll.exact_dot(None, x, y)
    for part in cuts(60):
        for function in (hpcoll.exact_sum, hpcoll.exact_mean, hpcoll.exact_norm):
            assert np.array_equal(function(comm, matrix[part], 0), function(None, matrix, 0))
            assert np.array_equal(function(comm, matrix.T[:, part], 1), function(None, matrix, 0))


def test_numbers_of_other_sizes_on_each_rank() -> None:
    """The digits of an array of sums are agreed, also where a rank has nothing, zeros, infinities or all zeros of one sign."""
    comm = communicator()
    x = np.full((4, 6), 2.0 ** (300 - 150 * RANK))
    x[:, 1], x[:, 2], x[:, 3], x[:, 4] = -0.0, 0.0, (-1.0) ** RANK * math.inf, RANK
    x[:, 5] = 1.5 if RANK == 0 else -0.0
    whole = np.concatenate(MPI.COMM_WORLD.allgather(x))
    assert np.array_equal(hpcoll.exact_sum(comm, x, 0), hpcoll.exact_sum(None, whole, 0), equal_nan=True)
    assert np.signbit(hpcoll.exact_sum(comm, x, 0))[1]
    empty = x[:0] if RANK == NRANKS - 1 and NRANKS > 1 else x
    whole = np.concatenate(MPI.COMM_WORLD.allgather(empty))
    assert np.array_equal(
        hpcoll.exact_mean(comm, empty, 0), hpcoll.exact_mean(None, whole, 0), equal_nan=True
    )
    nothing = hpcoll.exact_sum(comm, x[:0])
    assert nothing == 0
    assert not np.signbit(nothing)


def test_integers_wrap_as_those_of_numpy() -> None:
    x = np.arange(10, dtype=np.int64) * 2**61 + RANK
    whole = np.concatenate(MPI.COMM_WORLD.allgather(x))
    assert hpcoll.exact_sum(communicator(), x) == whole.sum()
    assert hpcoll.exact_dot(communicator(), x, x) == (whole * whole).sum()
    assert hpcoll.exact_mean(communicator(), x) == float(sum(map(int, whole)) / len(whole))
    assert np.array_equal(
        hpcoll.exact_sum(communicator(), x.astype(np.int8)[None], 0),
        whole.reshape(NRANKS, 10).astype(np.int8).sum(0),
    )


def test_an_accumulator_travels_between_ranks() -> None:
    x = numbers(100 * NRANKS, np.float64)
    mine, whole = hpcoll.ExactAccumulator(), hpcoll.ExactAccumulator()
    mine.add(x[RANK::NRANKS])
    whole.add(x)
    total = hpcoll.ExactAccumulator()
    for one in MPI.COMM_WORLD.allgather(mine):
        total.merge(one)
    assert total == whole


def test_gpu_arrays_and_arrays_on_the_host_together(double: Double) -> None:
    x = numbers(600, np.float64).reshape(60, 10)
    part = x[cuts(60)[0]]
    mine = double.Array(part.shape, part.dtype).fill(part) if RANK % 2 == 0 else part
    assert hpcoll.exact_sum(MPI.COMM_WORLD, mine) == math.fsum(x.ravel())
    assert np.array_equal(hpcoll.exact_sum(MPI.COMM_WORLD, mine, 0), hpcoll.exact_sum(None, x, 0))


class Odd:
    """Has no elements to read."""

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("nobody may")


DIFFERENT: list[tuple[str, Callable[[bool], Any], str]] = [
    (
        "types",
        lambda odd: hpcoll.exact_sum(MPI.COMM_WORLD, np.zeros(3, np.float32 if odd else np.float64)),
        "exact_sum of float32",
    ),
    (
        "axes",
        lambda odd: hpcoll.exact_sum(MPI.COMM_WORLD, np.zeros((3, 3)), 1 if odd else 0),
        r"along \(1,\)",
    ),
    (
        "shapes",
        lambda odd: hpcoll.exact_mean(MPI.COMM_WORLD, np.zeros((3, 4 if odd else 3)), 0),
        r"other axes of \(4,\)",
    ),
    (
        "functions",
        lambda odd: (hpcoll.exact_norm if odd else hpcoll.exact_sum)(MPI.COMM_WORLD, np.zeros(3)),
        "exact_norm of float64",
    ),
    (
        "dots",
        lambda odd: hpcoll.exact_dot(MPI.COMM_WORLD, np.zeros(3), np.zeros(3 + odd)),
        r"parts of one shape, got \(3,\) and \(4,\)",
    ),
    (
        "arrays",
        lambda odd: hpcoll.exact_sum(communicator(), "a" if odd else 1.0),
        "exact_sum: exact sums need .*, got <U1",
    ),
    (
        "lists",
        lambda odd: hpcoll.exact_sum(communicator(), [[1], [1, 2]] if odd else [1]),
        "exact_sum: .* can be read: .*shape",
    ),
    (
        "objects",
        lambda odd: hpcoll.exact_dot(communicator(), [1.0], Odd() if odd else [1.0]),
        "exact_dot: .* can be read: nobody may",
    ),
    (
        "pairs",
        lambda odd: hpcoll.exact_dot(MPI.COMM_WORLD, np.zeros(3, BF16), np.zeros(3, "f2" if odd else BF16)),
        "bfloat16 and float16",
    ),
]


@pytest.mark.skipif(NRANKS == 1, reason="one rank")
@pytest.mark.parametrize(("call", "text"), [pytest.param(*row[1:], id=row[0]) for row in DIFFERENT])
def test_ranks_that_differ_are_named_on_all(call: Callable[[bool], Any], text: str) -> None:
    with pytest.raises(hpcoll.ArgumentError, match=rf"rank {NRANKS - 1}: .*{text}"):
        call(RANK == NRANKS - 1)
    assert hpcoll.exact_sum(communicator(), [1.0]) == NRANKS  # and go on
