"""Exact sums of elements in GPU memory: launches that add them to vectors of digits, which come to the host.

Each launch leaves a fourth of the numbers, or fewer, until few threads are left: see `hpcoll.kernels.digit_device_bodies`.
"""

from typing import Any, NamedTuple

import numpy as np

from hpcoll.kernels.digits import DigitWindow, normalise
from hpcoll.runtime.gpu.device import Gpu, Temporary, kernels

MOST_ELEMENTS = (
    2**28
)  # of a vector in one launch: no digit overflows, though a product adds to one several times
_WORDS_NBYTES = 64 << 20  # of vectors at a time
_FIRST_SHARE, _SHARE = (
    64,
    16,
)  # elements of a thread, at least: in the first launch, which reads most, and in the others, which wait
_FEW = 1024  # threads of a vector that add to its digits in turn
_FLOAT64 = np.dtype(np.float64)


class GpuMatrix(NamedTuple):
    """Real floating elements in GPU memory: k of vector v lies ``v * across + k * along`` elements behind the first."""

    pointer: int
    dtype: np.dtype
    nvectors: int
    length: int
    across: int
    along: int

    def part(self, vector: int, nvectors: int, start: int, length: int) -> "GpuMatrix":
        """Return some elements of some vectors."""
        offset = (vector * self.across + start * self.along) * self.dtype.itemsize
        return self._replace(pointer=self.pointer + offset, nvectors=nvectors, length=length)


def digit_sums(gpu: Gpu, x: GpuMatrix, within: DigitWindow) -> np.ndarray[Any, Any]:
    """Return the sum of each vector as digits, in normal form, once the work on ``gpu.stream`` has ended.

    Args:
        gpu: Where the elements are.
        x: The elements.
        within: The digits that the result has: room for all sums.

    Returns:
        int64, shape ``(x.nvectors, within.nwords)``.
    """
    found = np.zeros((x.nvectors, within.nwords), np.int64)
    most = max(1, _WORDS_NBYTES // (8 * within.nwords))
    for vector in range(0, x.nvectors, most):
        n = min(most, x.nvectors - vector)
        for start in range(0, x.length, MOST_ELEMENTS):
            part = x.part(vector, n, start, min(MOST_ELEMENTS, x.length - start))
            found[vector : vector + n] += _launched(gpu, [part], within)
            normalise(found)
    return found


def digit_products(gpu: Gpu, x: GpuMatrix, y: GpuMatrix, within: DigitWindow) -> np.ndarray[Any, Any]:
    """Return the sum of products of the elements of two vectors of one type and length, as `digit_sums`."""
    found = np.zeros((1, within.nwords), np.int64)
    for start in range(0, x.length, MOST_ELEMENTS):
        n = min(MOST_ELEMENTS, x.length - start)
        found += _launched(gpu, [x.part(0, 1, start, n), y.part(0, 1, start, n)], within)
        normalise(found)
    return found


def _launched(gpu: Gpu, factors: list[GpuMatrix], within: DigitWindow) -> np.ndarray[Any, Any]:
    """Return digits, not in normal form, of the sums of elements, or of products of those of two vectors."""
    made, stream, share = kernels(), gpu.stream, _FIRST_SHARE
    found = np.empty((factors[0].nvectors, within.nwords), np.int64)
    with gpu.entered():
        words, keep = gpu.temporary(found.nbytes), list[Temporary]()
        gpu.driver("cuMemsetD8Async", words.address, 0, found.nbytes, stream)
        last = False
        while not last:
            one = factors[0]
            threads = max(1, gpu.most_blocks * made.BLOCK // one.nvectors)
            slices = max(1, min(threads, -(-one.length // share)))
            last = slices <= _FEW
            keep.append(words if last else gpu.temporary(32 * slices * one.nvectors))
            many = len(factors) == 1
            kernel = (made.digit_sums if many else made.digit_products)(one.dtype, gpu.cc)
            sizes = (
                (one.nvectors, one.length, one.across, one.along)
                if many
                else (one.length, *(factor.along for factor in factors))
            )
            pointers = words.address, keep[-1].address, *(factor.pointer for factor in factors)
            values = [*pointers, *sizes, slices, int(last), within.first, within.ndigits]
            gpu.launch(
                gpu.function(kernel), values, -(-one.nvectors * slices // made.BLOCK), made.BLOCK, stream
            )
            factors, share = (
                [GpuMatrix(keep[-1].address, _FLOAT64, one.nvectors, 4 * slices, 1, one.nvectors)],
                _SHARE,
            )
        gpu.driver.copy(found.ctypes.data, words.address, found.nbytes, stream)
        gpu.finish(stream)
    return found
