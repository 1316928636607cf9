"""GPU kernels on the GPU itself against NumPy: every operator, element type and number of sources, aligned and not."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_cases import read
from kernel_numbers import COMPLEX, DTYPES, FLOATS, HALVES, by_numpy, check_same, numbers

from hpcoll.base.dtypes import kind, working_dtype
from hpcoll.base.ops import BUILTIN, ReduceOp, reduce_op
from hpcoll.kernels import MAX_DESTINATIONS, MAX_SOURCES
from hpcoll.kernels import device as kernels
from hpcoll.runtime.gpu.cuda import Driver
from hpcoll.runtime.gpu.device import Gpu, Memory

pytestmark = pytest.mark.gpu
FOLDS = [(op, dtype) for op in BUILTIN.values() for dtype in DTYPES if kind(dtype) in op.kinds]
COUNTS = (1, 35, 4096, 1_000_003)


class Cells:
    """Values on the GPU, ``shift`` elements behind where memory starts."""

    def __init__(self, gpu: Gpu, values: np.ndarray, shift: int = 0) -> None:
        self._memory = Memory(gpu, values.nbytes + shift * values.itemsize)
        self.address = self._memory.address + shift * values.itemsize
        self._dtype = values.dtype
        bytes_ = {
            "shape": (values.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }
        self.__cuda_array_interface__ = bytes_
        put(gpu.driver, self.address, values)

    def values(self) -> np.ndarray:
        return read(self, np.uint8).view(self._dtype)


def put(driver: Driver, address: int, values: np.ndarray) -> None:
    driver.copy(address, values.ctypes.data, values.nbytes, 0)
    driver("cuStreamSynchronize", 0)


def launch(gpu: Gpu, kernel: Any, values: list[int], count: int) -> None:
    gpu.launch(gpu.function(kernel), values, -(-max(count, 1) // kernels.BLOCK), kernels.BLOCK, 0)
    gpu.driver("cuStreamSynchronize", 0)


def fold(
    gpu: Gpu, op: ReduceOp, sources: list[np.ndarray], shift: int, into: int | None, further: int = 0
) -> tuple[np.ndarray, list[np.ndarray]]:
    cells = [Cells(gpu, one, shift) for one in sources]
    targets = [Cells(gpu, np.zeros_like(sources[0]), shift) for _ in range(1 + further)]
    targets[0] = targets[0] if into is None else cells[into]
    count, values = sources[0].size, list[int]()
    for operands, most in ((targets, MAX_DESTINATIONS), (cells, MAX_SOURCES)):
        addresses = [one.address for one in operands]
        values += [*addresses, *addresses[-1:] * (most - len(addresses)), len(addresses)]
    launch(gpu, kernels.fold(op, sources[0].dtype, gpu.cc), [*values, count], count)
    found = targets[0].values()
    assert all(one.values().tobytes() == found.tobytes() for one in targets)
    return found, [one.values() for one in cells]


@pytest.mark.parametrize(("op", "dtype"), FOLDS, ids=lambda one: getattr(one, "name", str(one)))
def test_folds(op: ReduceOp, dtype: np.dtype, gpu: Gpu) -> None:
    rng = np.random.default_rng(7)
    for count in COUNTS:
        for nsources in (2, 3, 8) if count < 5000 else (2,):
            sources = [numbers(dtype, count, rng) for _ in range(nsources)]
            for shift, into in ((0, None), (1, nsources - 1), (1, None), (0, 0)):
                found, after = fold(gpu, op, sources, shift, into, further=shift * (nsources - 1))
                check_same(found, by_numpy(op, sources), f"{count} x {nsources}, {shift}, {into}")
                for i, (one, old) in enumerate(zip(after, sources)):
                    assert i == into or one.tobytes() == old.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_not_a_number_passes_through(dtype: np.dtype, gpu: Gpu) -> None:
    rng = np.random.default_rng(8)
    for name in ("min", "max", "sum"):
        for position in range(3):
            sources = [numbers(dtype, 41, rng) for _ in range(3)]
            sources[position][[0, 17]] = np.nan
            check_same(fold(gpu, BUILTIN[name], sources, 0, None)[0], by_numpy(BUILTIN[name], sources), name)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_rounded_once(dtype: np.dtype, gpu: Gpu) -> None:
    half_a_step = float(ml_dtypes.finfo(dtype).eps) / 2
    sources = [np.full(33, 1.0, dtype), *[np.full(33, half_a_step, dtype)] * 4]
    found, _ = fold(gpu, BUILTIN["sum"], sources, 0, None)
    assert found.tobytes() == np.full(33, 1 + 4 * half_a_step).astype(dtype).tobytes()


def test_an_operator_of_the_user(gpu: Gpu) -> None:
    op = reduce_op(lambda a, b: a - b / 2, commutative=False, name="less half")
    sources = [np.full(5001, value, np.float32) for value in (1, 2, 4)]
    found, _ = fold(gpu, op, sources, 0, None)
    assert (found == -2).all()
    thirds = reduce_op(lambda a, b: a * 0.3 + b, commutative=False, name="thirds")
    x, y, z = (np.random.default_rng(seed).standard_normal(5001) for seed in range(3))
    found, _ = fold(gpu, thirds, [x, y, z], 0, None)
    assert found.tobytes() == ((x * 0.3 + y) * 0.3 + z).tobytes()  # each product is rounded, as on hosts


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_scaling(dtype: np.dtype, gpu: Gpu) -> None:
    values = numbers(dtype, 5003, np.random.default_rng(9))
    for factor, divides in ((2.0, 0), (4.0, 1), (1.0, 0)):
        source, target = Cells(gpu, values), Cells(gpu, np.zeros_like(values))
        bits = [int(np.float64(part).view(np.int64)) for part in (factor, 0.0)]
        words = [target.address, source.address, values.size, *bits, divides]
        launch(gpu, kernels.scale(dtype, dtype, gpu.cc), words, values.size)
        wide = values.astype(working_dtype(dtype))
        expected = (wide / factor if divides else wide * factor).astype(dtype)
        check_same(target.values(), expected, f"{factor}, divides {divides}")


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_packing(itemsize: int, gpu: Gpu) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (7, 11, 13, itemsize), np.uint8)
    part = raw[1::2, :, ::3]
    shape, strides = part.shape[:3], part.strides[:3]
    offset = part.ctypes.data - raw.ctypes.data
    loops = [word for pair in zip(shape, strides) for word in pair]
    pieces = Cells(gpu, np.array([0, offset, itemsize, *loops]))
    whole, packed = Cells(gpu, raw), Cells(gpu, np.zeros(part.size, np.uint8))
    words, n = [pieces.address, 1, 3, part.size // itemsize], part.size
    launch(gpu, kernels.move(itemsize, gpu.cc), [packed.address, whole.address, *words, 0], n)
    assert packed.values().tobytes() == part.tobytes()
    back = Cells(gpu, np.zeros_like(raw))
    launch(gpu, kernels.move(itemsize, gpu.cc), [packed.address, back.address, *words, 1], n)
    assert back.values().reshape(raw.shape)[1::2, :, ::3].tobytes() == part.tobytes()
