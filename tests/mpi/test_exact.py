"""Exact reductions give the same bits for any number of ranks and any cut of the array; ranks that differ are told, all of them."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from exact_reference import exact_sums, hard_numbers
from mpi4py import MPI
from reference import Array, communicator, ensure, raised
from test_operators import bits, block

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
        "dots",
        lambda odd: hpcoll.exact_dot(MPI.COMM_WORLD, np.zeros(3), np.zeros(3 + odd)),
        r"parts of one shape, got \(3,\) and \(4,\)",
    ),
    (
        "lists",
        lambda odd: hpcoll.exact_sum(communicator(), [[1], [1, 2]] if odd else [1]),
        "exact_sum: .* can be read: .*shape",
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


UNASKED = [(collective, None) for collective in ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")]


def inputs(name: str, nranks: int, seed: int = 0, each: int = 18) -> list[Array]:
    """Per rank ``each`` elements for each rank."""
    rng, parts = (
        np.random.default_rng([seed, nranks]),
        {"complex128": "float64", "complex64": "float32"}.get(name),
    )
    found = hard_numbers(parts or name, nranks, each * nranks * (2 if parts else 1), rng)
    return [one.view(name) for one in found] if parts else found


def wanted(collective: str, everything: list[Array], rank: int, root: int = 0) -> Array | None:
    """The result on a rank, None where it gets none."""
    upto = {"scan": rank + 1, "exscan": rank}.get(collective, len(everything))
    if not upto or (collective == "reduce" and rank != root):
        return None
    return block(exact_sums(everything[:upto]), collective, rank, len(everything))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_blocks_of_several_sizes(algorithm: str | None, in_place: bool) -> None:
    comm = communicator()
    counts = [7 * ((rank + 1) % 3) for rank in range(comm.size)]
    everything = [one[: sum(counts)] for one in inputs("float64", comm.size)]
    x, own = everything[comm.rank].copy(), counts[comm.rank]
    y = x if in_place else np.empty(own)
    comm.Reduce_scatter(MPI.IN_PLACE if in_place else x, y, counts, hpcoll.EXACT_SUM, algorithm=algorithm)
    first = sum(counts[: comm.rank])
    expected = exact_sums(everything)[first : first + own]
    ensure(bits(y[:own]) == bits(expected), (y[:own], expected))


def test_long_messages_and_parts_of_arrays() -> None:
    """Several blocks of the kernel, and segments; twice, since the second call is found in the cache."""
    comm = communicator()
    everything = inputs("float64", comm.size, each=40000 // comm.size)
    count = everything[0].size - 7
    expected = exact_sums([one[3 : 3 + count] for one in everything])
    for segment in (None, "8K"):
        for _ in range(2):
            y = np.zeros(count + 2)
            comm.Allreduce(
                [everything[comm.rank][3:], count, MPI.DOUBLE], y[1:-1], hpcoll.EXACT_SUM, segment=segment
            )
            ensure(bits(y[1:-1]) == bits(expected) and not y[0] and not y[-1], segment)


def test_integers_wrap_as_in_a_sum() -> None:
    comm = communicator()
    for algorithm in (None, "ring"):
        x = np.full(5, 100, np.int8)
        comm.Allreduce(MPI.IN_PLACE, x, hpcoll.EXACT_SUM, algorithm=algorithm)
        assert x.tolist() == np.full(5, 100 * comm.size % 256, np.uint8).view(np.int8).tolist()


def test_the_library_never_serves_it() -> None:
    comm, x = communicator(), np.ones(3)
    for what in (x, np.ones(3, ml_dtypes.bfloat16), np.ones(3, np.int32)):
        error = raised(
            lambda what=what: comm.Allreduce(MPI.IN_PLACE, what, hpcoll.EXACT_SUM, algorithm="native")
        )
        assert isinstance(error, hpcoll.ArgumentError)
        assert "allreduce/native cannot serve this call" in str(error)
    refused: Any = raised(lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(3, bool), hpcoll.EXACT_SUM))
    assert "operator exact_sum takes integer, real floating, complex elements, got bool" in str(refused)
