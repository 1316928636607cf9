"""Results of GPU kernels against NumPy: cases, and `launch`, which runs a kernel's compiled text."""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from kernel_numbers import (
    BFLOAT16,
    FLOATS,
    HALVES,
    INTEGERS,
    bits,
    by_numpy,
    check_same,
    numbers,
    placed,
    spread,
)
from ptx_machine import Machine

from hpcoll.base import ops
from hpcoll.base.dtypes import working_dtype
from hpcoll.base.ops import ReduceOp
from hpcoll.kernels import bodies, device
from hpcoll.kernels.device import Capability, Kernel


class Pointer(NamedTuple):
    """A byte of an array, with others before it and behind it."""

    array: np.ndarray
    origin: int


@lru_cache(maxsize=8)
def machine(kernel: Kernel) -> Machine:
    return Machine(kernel.ptx.decode())


class KernelCases(NamedTuple):
    """Cases of kernels that are compiled for one kind of GPU."""

    cc: Capability

    def launch(self, kind: str, what: tuple[Any, ...], *arguments: Any) -> int:
        """Run the compiled text of a kernel, and return how many vectors it loaded."""
        runs = machine(getattr(device, kind)(*what, self.cc))
        before = runs.vector_loads
        given = [one.array.ctypes.data + one.origin if isinstance(one, Pointer) else one for one in arguments]
        runs.launch(2, 3, [one.ctypes.data if isinstance(one, np.ndarray) else one for one in given])
        return runs.vector_loads - before

    def fold(self, op: ReduceOp, targets: list[np.ndarray], sources: list[np.ndarray]) -> int:
        operands = (targets, len(targets)), (sources, len(sources))
        arguments = [
            one for arrays, n in operands for one in (*map(bits, [*arrays, *arrays[-1:] * (8 - n)]), n)
        ]
        return self.launch("fold", (op, targets[0].dtype), *arguments, targets[0].size)

    def check_fold(
        self,
        op: ReduceOp,
        values: list[np.ndarray],
        *,
        shift: int,
        into: int | None,
        further: int = 0,
        apart: bool = False,
    ) -> int:
        """Return how many vectors were loaded."""
        dtype, count = values[0].dtype, values[0].size
        sources = [placed(one, shift + apart * (index == 1)) for index, one in enumerate(values)]
        rooms = [placed(np.zeros(count + 4, dtype), shift) for _ in range(1 + further)]
        targets = [room[:count] for room in rooms]
        if into is not None:
            targets[0] = sources[into]
        nloads = self.fold(op, targets, sources)
        what = f"{op.name} of {len(values)} x {count} {dtype}, start {shift}, into source {into} and {further} further arrays"
        for target in targets:
            check_same(target, by_numpy(op, values), what)
        assert not any(room[count:].any() for room in rooms), f"{what}: wrote behind the end"
        for index, (source, old) in enumerate(zip(sources, values, strict=True)):
            assert index == into or source.tobytes() == old.tobytes(), f"{what}: source {index} was written"
        return nloads

    def check_specials(self) -> None:
        """NaN from every position, zeros of both signs, wrapping, order, values that a half type rounds."""
        for dtype in FLOATS:
            for op in (ops.MIN, ops.MAX, ops.SUM):
                for nsources in (2, 3, 8):
                    values = [np.full(9, i, dtype) for i in range(nsources)]
                    for position in range(nsources):
                        values[position][position] = np.nan
                    for apart in (False, True):  # in vectors, and one by one
                        self.check_fold(op, values, shift=0, into=None, apart=apart)
            zeros = [np.array(row, dtype) for row in ([0.0, -0.0, 0.0, -0.0], [0.0, -0.0, -0.0, 0.0])]
            for op in (ops.MIN, ops.MAX):
                target = np.ones(4, dtype)
                self.fold(op, [target], zeros)
                assert not np.signbit(target).any(), f"{op.name} of zeros of {dtype} has a sign"
        for dtype in HALVES:
            big, small = np.full(9, 1.0, dtype), np.full(9, float(ml_dtypes.finfo(dtype).eps) / 2, dtype)
            # rounded after every sum it would stay 1
            self.check_fold(ops.SUM, [big, small, small, small, small], shift=0, into=None)
        wide = np.float32([1e30, 1.0, -1e30])
        self.check_fold(ops.SUM, [np.full(9, one, np.float32) for one in wide[[0, 2, 1]]], shift=0, into=None)
        self.check_fold(ops.SUM, [np.full(9, one, np.float32) for one in wide], shift=0, into=None)
        rng = np.random.default_rng(8)
        for nsources in range(2, 9):
            # each order rounds differently
            self.check_fold(
                ops.SUM, [spread(wide.dtype, 19, rng) for _ in range(nsources)], shift=0, into=None
            )
        for dtype in INTEGERS:
            limits = np.iinfo(dtype)
            target = np.zeros(17, dtype)
            self.fold(ops.SUM, [target], [np.full(17, limits.max, dtype), np.ones(17, dtype)])
            assert (target == limits.min).all(), f"{dtype} does not wrap"
        difference = ops.reduce_op(lambda a, b: a - b / 2, commutative=False)
        target = np.zeros(9, BFLOAT16)
        self.fold(difference, [target], [np.full(9, i, BFLOAT16) for i in (1, 2, 4)])
        assert (target == -2).all(), "an operator of the user keeps the order of ranks"

    def check_alignment(self) -> None:
        """Vectors are used where all arrays start equally far from a multiple of 16 bytes, and only there."""
        values = [np.full(11, i, np.float32) for i in range(4)]
        for shift in range(4):
            nloads = self.check_fold(ops.SUM, values, shift=shift, into=None, further=1)
            assert nloads == 4 * 2, f"all {shift} elements from a multiple of 16 bytes: {nloads} vector loads"
            nloads = self.check_fold(ops.SUM, values, shift=shift, into=None, further=1, apart=True)
            assert not nloads, "vectors of arrays that start differently"

    def check_scale(self, source: np.dtype, target: np.dtype) -> None:
        """Times and by, and conversion alone, which keeps or rounds every value as NumPy does."""
        rng = np.random.default_rng(4)
        work = working_dtype(source)
        for factor, divides in ((1.0, 0), (0.3, 0), (3.0, 1), (2 + 5j, 0), (1.0, 1)):
            if isinstance(factor, complex) and source.kind != "c":
                continue
            for shift, count in ((0, 37), (1, 37), (0, 0), (0, 1)):
                values = (
                    numbers(source, count, rng) if isinstance(factor, complex) else spread(source, count, rng)
                )
                dst = placed(np.zeros(count, target), shift)
                with np.errstate(all="ignore"):
                    given = values.astype(work)
                    expected = np.divide(given, factor) if divides else given * work.type(factor)
                    expected = expected.astype(target)
                arguments = float(np.real(factor)), float(np.imag(factor)), divides
                self.launch(
                    "scale", (source, target), bits(dst), bits(placed(values, shift)), count, *arguments
                )
                check_same(
                    dst,
                    expected,
                    f"{source} to {target}, factor {factor}, divides {divides}, start {shift}, count {count}",
                )

    def check_rounding(self) -> None:
        """Random bits, ties and what lies beside them, infinities and NaN, from float32 to the half types and back."""
        rng = np.random.default_rng(5)
        some = rng.integers(0, 2**32, 3000, np.uint32)
        some[::3] = (some[::3] & 0xFFFF0000) | 0x8000
        some[1::3] = (
            np.float16(some[1::3].astype(np.uint16).view(np.float16)).astype(np.float32).view(np.uint32)
            + 0x1000
        )
        edges = np.array(
            [np.inf, -np.inf, np.nan, 65504, 65519.9, 65520, 2.0**-24, 2.0**-25, -0.0, 0.0, 3.4e38],
            np.float32,
        )
        nans = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)
        values = np.concatenate([some.view(np.float32), edges, nans.view(np.float32)])
        f4 = np.dtype("f4")
        for dtype in HALVES:
            narrow, wide = np.zeros(values.size, dtype), np.zeros(values.size, f4)
            self.launch("scale", (f4, dtype), bits(narrow), values, values.size, 1.0, 0.0, 0)
            check_same(narrow, values.astype(dtype), f"float32 to {dtype}")
            self.launch("scale", (dtype, f4), wide, bits(narrow), values.size, 1.0, 0.0, 0)
            check_same(wide, narrow.astype(f4), f"{dtype} to float32")

    def strided(self) -> None:
        """Strides of any sign and order, zero among them, items of every size; and what lies between items stays."""
        rng = np.random.default_rng(6)
        shapes = [
            (1, 1, 1, 1, 1, 7),
            (1, 1, 1, 1, 3, 5),
            (1, 1, 1, 2, 3, 4),
            (2, 1, 2, 3, 1, 2),
            (2, 2, 2, 2, 2, 2),
            (1, 1, 1, 0, 3, 2),
            (1,) * 6,
        ]
        for itemsize in (1, 2, 4, 8, 16):
            for shape in shapes:
                for signs in ((1,) * 6, (-1,) * 6, (1, -1, 1, -1, 1, -1)):
                    self.check_strided(itemsize, shape, signs, rng)
            self.check_strided(itemsize, (1, 1, 1, 2, 3, 4), (1, 1, 1, 1, 0, 1), rng)
            self.check_pieces(itemsize, rng)
        far = [2**20 + 7, 2**3, 2**21, 3, 2**10, 2**6]
        for index in (0, 1, prod(far[1:]) * 2**20 + 12345678901):
            strides = [2**33, -(2**35), 48, -16, 2**40 + 16, -(2**37)]
            expected = sum(int(i) * st for i, st in zip(np.unravel_index(index, far), strides, strict=True))
            loops = [word for pair in zip(far, strides, strict=True) for word in pair]
            words = [9, 9, 64, 100, 1 << 50, 1, *loops]
            assert bodies._offset(words, 3, 6, 100 + index) == (1 << 50) + expected

    def check_strided(
        self, itemsize: int, shape: tuple[int, ...], signs: tuple[int, ...], rng: np.random.Generator
    ) -> None:
        """Axes lie in memory in random order, with gaps; a pointer in the middle, because strides may be negative."""
        step, strides = itemsize * 2, [0] * 6
        for axis in rng.permutation(6):
            strides[axis] = step * signs[axis]
            step *= max(shape[axis], 1) + 1
        index = np.indices(shape).reshape(6, -1)
        offsets = (index * np.array(strides)[:, None]).sum(0)[:, None] + np.arange(itemsize)
        step = -(-step // 16) * 16
        loops = [word for pair in zip(shape, strides, strict=True) for word in pair]
        pieces = np.array([[0, 0, itemsize, *loops]])
        self.check_moves(itemsize, pieces, offsets.ravel(), step, rng)

    def check_pieces(self, itemsize: int, rng: np.random.Generator) -> None:
        """Runs of several lengths, alone and in a loop; a piece begins in the middle of what a thread block moves."""
        pieces, offsets, at = [], [np.zeros(0, int)], 0
        for n, run, count in ((0, 3, 1), (1, 1, 5), (2, 4, 2), (3, 2, 1), (4, 7, 3)):
            first, stride = (400 * (4 - n) + n) * itemsize, (run + n % 3) * itemsize
            pieces.append([at * itemsize, first, run * itemsize, count, stride])
            starts = first + np.arange(count) * stride
            offsets.append((starts[:, None] + np.arange(run * itemsize)).ravel())
            at += run * count
        self.check_moves(itemsize, np.array(pieces), np.concatenate(offsets), 0, rng)

    def check_moves(
        self, itemsize: int, pieces: np.ndarray, offsets: np.ndarray, origin: int, rng: np.random.Generator
    ) -> None:
        """Pack bytes that lie at offsets from an origin, and unpack them elsewhere."""
        nbytes = origin + int(offsets.max(initial=0)) + 16
        memory, other = (
            placed(rng.integers(1, 256, nbytes, np.uint8), 0),
            placed(np.zeros(nbytes, np.uint8), 0),
        )
        packed, n = placed(np.zeros(offsets.size + 3, np.uint8), 0), offsets.size // itemsize
        words = pieces, len(pieces), (pieces.shape[1] - 3) // 2, n
        self.launch("move", (itemsize,), packed, Pointer(memory, origin), *words, 0)
        what = f"items of {itemsize}, pieces {pieces.tolist()}"
        assert np.array_equal(packed[: offsets.size], memory[origin + offsets]), what
        assert not packed[offsets.size :].any(), what
        self.launch("move", (itemsize,), packed, Pointer(other, origin), *words, 1)
        assert np.array_equal(other[origin + offsets], memory[origin + offsets]), what
        assert np.count_nonzero(other) == np.unique(offsets).size, what
