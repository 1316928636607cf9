"""Host reduction kernels against NumPy: every operator with every element type, and the rules that the module's docstring promises."""

import ctypes
import re
from typing import Any

import numpy as np
import pytest
from kernel_numbers import COMPLEX, INTEGERS, by_numpy, numbers
from numba import njit, types

from hpcoll.base import canonical, ops
from hpcoll.base.dtypes import kind
from hpcoll.base.ops import BUILTIN, ReduceOp, reduce_op
from hpcoll.kernels.host import kernel_address
from hpcoll.kernels.host_bodies import BLOCK, _fold
from hpcoll.kernels.object_code import _compiled
from hpcoll.kernels.operators import OPERATORS

FLOATS = [np.dtype(name) for name in ("float32", "float64")]
DTYPES = [np.dtype(bool), *INTEGERS, *FLOATS, *COMPLEX]
PAIRS = [(op, dtype) for op in BUILTIN.values() for dtype in DTYPES if kind(dtype) in op.kinds]
LENGTHS = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5000)

# Each pair is compiled, which takes a second or two. `.ci/run` has every operator with a type that has all its paths, and sums of each
# kind of type, signed and not, narrow and wide; the short run some of these.
SHORT = {
    (ops.SUM, "int8"),
    (ops.SUM, "float64"),
    (ops.PROD, "complex128"),
    (ops.MIN, "float64"),
    (ops.LAND, "bool"),
}
LATER = {(ops.SUM, name) for name in ("uint64", "float32", "complex64", "complex128")} | {
    (ops.MAX, "float64")
}
every_float = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(one, id=str(one), marks=() if one.name == "float64" else pytest.mark.full)
        for one in FLOATS
    ],
)
every_pair = pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(
            op,
            dtype,
            id=f"{op.name}-{dtype}",
            marks=()
            if (op, dtype.name) in SHORT
            else pytest.mark.ci
            if dtype.name == "int32" or (op, dtype.name) in LATER
            else pytest.mark.full,
        )
        for op, dtype in PAIRS
    ],
)


def fold(op: ReduceOp, dst: np.ndarray, *srcs: np.ndarray) -> np.ndarray:
    """Run a kernel through its address, as the engine does."""
    assert all(one.dtype == dst.dtype and one.size == dst.size and one.flags.c_contiguous for one in srcs)
    pointers = (ctypes.c_void_p * len(srcs))(*(src.ctypes.data for src in srcs))
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        kernel_address(op, dst.dtype)
    )
    kernel(dst.ctypes.data, ctypes.addressof(pointers), len(srcs), dst.size)
    return dst


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.tobytes() == b.tobytes()


@every_pair
def test_agrees_with_numpy(op: ReduceOp, dtype: np.dtype) -> None:
    rng = np.random.default_rng(7)
    for nsrcs in (2, 3, 5):
        for length in LENGTHS:
            srcs = [numbers(dtype, length, rng) for _ in range(nsrcs)]
            before = [src.copy() for src in srcs]
            room = numbers(dtype, length + 8, rng)
            edges = room[:4].copy(), room[-4:].copy()
            assert np.array_equal(fold(op, room[4 : length + 4], *srcs), by_numpy(op, srcs))
            assert all(same_bits(src, old) for src, old in zip(srcs, before, strict=True)), (
                "a source was written"
            )
            assert same_bits(room[:4], edges[0])
            assert same_bits(room[-4:], edges[1]), "wrote outside the destination"


@every_pair
def test_the_destination_may_be_any_source(op: ReduceOp, dtype: np.dtype) -> None:
    rng = np.random.default_rng(8)
    for nsrcs in (2, 3, 5):
        for position in range(nsrcs):
            srcs = [numbers(dtype, BLOCK + 5, rng) for _ in range(nsrcs)]
            expected = by_numpy(op, srcs)
            assert np.array_equal(fold(op, srcs[position], *srcs), expected)


@every_float
@pytest.mark.parametrize("op", [ops.MIN, ops.MAX], ids=lambda op: op.name)
def test_nan_comes_through_from_every_position(op: ReduceOp, dtype: np.dtype) -> None:
    for nsrcs in (2, 3, 5):
        for position in range(nsrcs):
            srcs = [np.full(11, i, dtype) for i in range(nsrcs)]
            srcs[position][3] = np.nan
            expected = np.full(11, 0 if op is ops.MIN else nsrcs - 1, dtype)
            expected[3] = np.nan
            rest = [i for i in range(11) if i != 3]
            result = fold(op, np.empty(11, dtype), *srcs)
            assert np.isnan(result[3])
            assert not np.isnan(result[rest]).any()
            assert np.array_equal(result, by_numpy(op, srcs), equal_nan=True)


@every_float
@pytest.mark.parametrize("op", [ops.MIN, ops.MAX, ops.SUM, ops.PROD], ids=lambda op: op.name)
def test_swapped_operands_give_the_same_bits(op: ReduceOp, dtype: np.dtype) -> None:
    special = np.array(
        [
            0.0,
            -0.0,
            1.0,
            -1.0,
            np.inf,
            -np.inf,
            np.finfo(dtype).tiny,
            np.finfo(dtype).smallest_subnormal,
            0.1,
        ],
        dtype,
    )
    left, right = (grid.ravel().copy() for grid in np.meshgrid(special, special))
    one, other = fold(op, np.empty_like(left), left, right), fold(op, np.empty_like(left), right, left)
    numeric = ~np.isnan(one)
    assert np.array_equal(numeric, ~np.isnan(other))
    assert same_bits(one[numeric], other[numeric])
    if op in (ops.MIN, ops.MAX):
        assert not np.signbit(one[one == 0]).any(), "zeros of both signs give +0.0"


@pytest.mark.parametrize("position", [None, 0, 1, -1], ids=["apart", "first", "second", "last"])
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("complex128")], ids=str)
def test_many_sources_fold_as_the_canonical_expression(dtype: np.dtype, position: int | None) -> None:
    """Whatever the count, the place of the operands, and the source that the result replaces."""
    rng = np.random.default_rng(9)
    for nsrcs in (*range(2, 18), 23, 32, 33, 64, 101):
        count, shift = rng.choice([1, 17, BLOCK, BLOCK + 5, 2 * BLOCK + 1]), rng.integers(0, 8)
        rows = rng.standard_normal((nsrcs, shift + count)) * 10.0 ** rng.integers(
            -8, 8, (nsrcs, shift + count)
        )
        srcs = [row[shift:].astype(dtype) for row in rows]
        expected = canonical.fold(np.add, [src.copy() for src in srcs])
        assert same_bits(
            fold(ops.SUM, np.empty_like(srcs[0]) if position is None else srcs[position], *srcs), expected
        ), nsrcs


@pytest.mark.ci
def test_what_an_operator_of_the_user_computes_in_between_has_the_element_type() -> None:
    """So a reduction of several sources gives the bits of one after another."""
    mean = reduce_op(lambda a, b: (a + b) / 3.0, commutative=False)
    for dtype in (np.dtype("float32"), np.dtype("int8")):
        srcs = [(np.arange(37) * (i + 3) % 61).astype(dtype) for i in range(11)]
        expected = canonical.fold(lambda a, b: fold(mean, np.empty_like(a), a, b), srcs)
        assert same_bits(fold(mean, np.empty_like(srcs[0]), *srcs), expected)


def test_average_and_premultiplied_sum_are_sums_here() -> None:
    address = kernel_address(ops.SUM, np.dtype(np.float32))
    assert (
        kernel_address(ops.AVG, np.dtype(np.float32))
        == kernel_address(ops.premul_sum(3.0), np.dtype(np.float32))
        == address
    )


def test_an_operator_of_the_user_keeps_left_and_right_apart() -> None:
    first = reduce_op(lambda a, b: a, commutative=False, name="first")
    last = reduce_op(lambda a, b: b, commutative=False, name="last")
    halves = reduce_op(lambda a, b: a - b / 2, commutative=False, name="halves")
    srcs = [np.full(BLOCK + 1, float(i)) for i in (1, 2, 4)]
    assert set(fold(first, np.empty_like(srcs[0]), *srcs)) == {1.0}
    assert set(fold(last, np.empty_like(srcs[0]), *srcs)) == {4.0}
    assert set(fold(halves, srcs[1], *srcs)) == {-2.0}


@pytest.mark.ci
def test_an_operator_of_the_user_is_compiled_once() -> None:
    absmax = reduce_op(lambda a, b: a if abs(a) > abs(b) else b, name="absmax")
    dtype = np.dtype(np.int32)
    a, b = np.array([1, -5, 3], dtype), np.array([-2, 4, 3], dtype)
    assert fold(absmax, np.empty_like(a), a, b).tolist() == [-2, -5, 3]
    assert (
        kernel_address(absmax, dtype)
        == kernel_address(absmax, dtype)
        != kernel_address(absmax, np.dtype(np.int64))
    )


def vector_additions(nsrcs: int) -> int:
    """Additions of whole vectors in the compiled fold of a number of sources."""
    add = njit(OPERATORS["sum"])

    def fold(dst: Any, srcs: Any, count: Any) -> None:
        _fold(add, dst, srcs, nsrcs, count)

    pointer = types.CPointer(types.float32)
    text = _compiled(fold, types.void(pointer, types.CPointer(pointer), types.int64)).inspect_llvm()
    return len(re.findall(r"= fadd[^\n]*<\d+ x float>", text))


@pytest.mark.ci
def test_folds_of_several_sources_are_vectorised() -> None:
    """Two sources have three loops, for a result of its own and in place of either; each further source has one, and all are alike."""
    of_two = vector_additions(2)
    assert of_two > 0
    assert [vector_additions(n) for n in (3, 4, 5)] == [of_two * n // 3 for n in (2, 3, 4)]
