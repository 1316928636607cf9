"""Kernels of exact sums: the correctly rounded sum of what is hard to add, from any order of sources, and at the speed of vectors."""

import ctypes
import math
import re
from itertools import permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact_reference import FORMATS, exact_sum, exact_sums, hard_numbers
from numba import njit, types

from hpcoll.base.ops import EXACT_SUM, EXACT_SUM_ODD, SUM
from hpcoll.kernels import exact_bodies
from hpcoll.kernels.host import kernel_address
from hpcoll.kernels.object_code import _compiled

LARGEST, TINIEST = math.ldexp(2 - 2.0**-52, 1023), 2.0**-1074
HAND_PICKED = [
    [1.0, 2.0**-53, 2.0**-53],  # two halves of the last bit
    [1.0, 2.0**-53, TINIEST],  # a tie but for the tiniest number
    [1.0, 2.0**-53, -TINIEST],
    [1 + 2.0**-52, 2.0**-53, 2.0**-106, -(2.0**-160)],
    [1.0, 2.0**-53, 2.0**-160, -(2.0**-320), 2.0**-640],
    [1e300, 1.0, -1e300, 1e-300, -1.0],  # all cancels but the least
    [LARGEST, LARGEST, -LARGEST],  # overflows in the middle
    [LARGEST, -LARGEST, LARGEST, LARGEST],
    [LARGEST, 2.0**969, 2.0**969],  # the least that is too large
    [LARGEST, 2.0**969, 2.0**969, -TINIEST],
    [-LARGEST] * 7,
    [math.ldexp(LARGEST, -1)] * 9,  # 2**63 in the exponent's field and the sign
    [TINIEST, TINIEST, -TINIEST],
    [2.0**-1022, -TINIEST, -TINIEST],
    [0.0, -0.0, -0.0],
    [-0.0, -0.0, -0.0],
    [1.0, -1.0, -0.0],
    [-1.0, 1.0, 0.0, -0.0],
    [math.inf, LARGEST, LARGEST],
    [math.inf, 1.0, -math.inf],
    [-math.inf, -math.inf, 3.0],
    [math.nan, 1.0, math.inf],
    [1.0, 2.0, math.nan],
]


def add(sources: list[np.ndarray], into: int | None = None) -> np.ndarray:
    """Run a kernel through its address, as the engine does; half types as float32, rounded at the end."""
    dtype, work = sources[0].dtype, sources[0].dtype
    if dtype.itemsize == 2:
        work, sources = np.dtype(np.float32), [one.astype(np.float32) for one in sources]
    found = np.empty(sources[0].size, work) if into is None else sources[into]
    pointers = (ctypes.c_void_p * len(sources))(*(one.ctypes.data for one in sources))
    address = kernel_address(EXACT_SUM if work == dtype else EXACT_SUM_ODD, work)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    kernel(found.ctypes.data, ctypes.addressof(pointers), len(sources), found.size)
    with np.errstate(over="ignore"):
        return found.astype(dtype)


@pytest.mark.parametrize("values", HAND_PICKED, ids=str)
def test_hand_picked_sums_in_any_order(values: list[float]) -> None:
    expected = np.array([exact_sum(values, "float64")])
    if all(abs(one) < LARGEST / 9 for one in values):  # else fsum may raise an error
        assert expected[0] == math.fsum(values), "two references"
    orders = list(dict.fromkeys(permutations(values)))[:200]
    sources = [np.array(column) for column in zip(*orders, strict=True)]
    assert add(sources).tobytes() == expected.tobytes() * len(orders)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("nsources", range(2, 10))
def test_numbers_that_are_hard_to_add(name: str, nsources: int) -> None:
    """Blocks of the kernel end within them, so that elements are also told apart there."""
    sources = hard_numbers(name, nsources, 1100, np.random.default_rng([nsources, len(name)]))
    assert add(sources).tobytes() == exact_sums(sources).tobytes()


@pytest.mark.parametrize(("name", "parts"), [("complex128", "float64"), ("complex64", "float32")])
def test_complex_numbers_part_by_part(name: str, parts: str) -> None:
    both = hard_numbers(parts, 5, 1100, np.random.default_rng(5))
    sources = [one.view(name) for one in both]
    assert add(sources).tobytes() == exact_sums(both).tobytes()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("nsources", [2, 3, 4, 5])
def test_the_destination_may_be_any_source(name: str, nsources: int) -> None:
    """An element that takes the slow way needs its sources, of which the destination must not have overwritten one."""
    for into in range(nsources):
        sources = hard_numbers(name, nsources, 1100, np.random.default_rng(into))
        expected = exact_sums(sources)
        assert add(sources, into).tobytes() == expected.tobytes()


def test_nothing_outside_the_destination_is_written() -> None:
    room = np.full(600, 7.0)
    sources = [np.ones(596) for _ in range(3)]
    pointers = (ctypes.c_void_p * 3)(*(one.ctypes.data for one in sources))
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    kernel(kernel_address(EXACT_SUM, room.dtype))(room[2:].ctypes.data, ctypes.addressof(pointers), 3, 596)
    assert set(room[2:598]) == {3.0}
    assert set(room[[0, 1, 598, 599]]) == {7.0}


def test_sums_of_half_types_are_not_rounded_twice() -> None:
    """1 + 2**-8 is a tie of bfloat16, which float32 would make of 1 + 2**-8 + 2**-40."""
    sources = [np.array([value], ml_dtypes.bfloat16) for value in (1.0, 2.0**-8, 2.0**-40)]
    assert float(add(sources)[0]) == 1 + 2.0**-7
    plain = (sources[0].astype(np.float32) + sources[1].astype(np.float32)) + sources[2].astype(np.float32)
    assert float(plain.astype(ml_dtypes.bfloat16)[0]) == 1.0, "else this shows nothing"


def test_integers_have_the_kernel_of_sums() -> None:
    for name in ("int8", "uint64"):
        assert kernel_address(EXACT_SUM, np.dtype(name)) == kernel_address(SUM, np.dtype(name))


@njit
def no_slow_way(srcs: Any, nsrcs: Any, at: Any) -> Any:
    return srcs[0][at]


@pytest.mark.parametrize(("name", "nsources"), [("double", 3), ("double", 5), ("float", 4)])
def test_the_fast_way_is_vectorised(name: str, nsources: int) -> None:
    """Additions of whole vectors: at least those of the formulas."""
    settle, zero = {
        "double": (exact_bodies._settle64, 0.0),
        "float": (exact_bodies._settle32, np.float32(0)),
    }[name]

    def fold(dst: Any, srcs: Any, count: Any) -> None:
        exact_bodies._add_more(exact_bodies._same, settle, no_slow_way, zero, dst, srcs, nsources, count)

    pointer = types.CPointer(getattr(types, f"float{64 if name == 'double' else 32}"))
    text = _compiled(fold, types.void(pointer, types.CPointer(pointer), types.int64)).inspect_llvm()
    found = len(re.findall(rf"= f(?:add|sub)[^\n]*<\d+ x {name}>", text))
    assert found >= 9 + 13 * (nsources - 2)
