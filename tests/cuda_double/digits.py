"""What kernels that add to digits do, by Python's integers: all goes to digits at once, and nothing is left for the next launch."""

from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

LOWEST, BITS, NCOUNTS = -2176, 32, 4
NPARTIALS = 4


class Strided:
    """Elements at constant steps: k of vector v is ``v * across + k * along`` elements behind the first."""

    def __init__(
        self, address: int, dtype: np.dtype, nvectors: int, length: int, across: int, along: int
    ) -> None:
        at = np.add.outer(np.arange(nvectors) * across, np.arange(length) * along)
        low = int(at.min(initial=0))
        self._index, self._dtype = at - low, dtype
        self.start = address + low * dtype.itemsize
        self.nbytes = (int(at.max(initial=0)) - low + 1) * dtype.itemsize if at.size else 0

    def values(self, view: Callable[[int, int], np.ndarray]) -> np.ndarray:
        """float64, a row for each vector."""
        if not self.nbytes:
            return np.zeros(self._index.shape)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return view(self.start, self.nbytes).view(self._dtype)[self._index].astype(np.float64)


def add(words: np.ndarray, factors: Sequence[np.ndarray], first: int) -> None:
    """Add the sum of a row's elements, or of products of two rows', to a vector of digits."""
    ndigits = words.size - NCOUNTS
    total, counts = 0, [0] * NCOUNTS  # in units of the lowest digit
    for pair in zip(*(one.tolist() for one in factors), strict=True):
        x, y = (*pair, 1.0)[:2]
        if isfinite(x) and isfinite(y):
            (a, b), (c, d) = x.as_integer_ratio(), y.as_integer_ratio()
            total += (a * c << -LOWEST) // (b * d)
            counts[3] += x * y != 0 or not np.signbit(x) ^ np.signbit(y)
        else:
            value = x * y
            counts[3] += 1
            counts[2 if value != value else 0 if value > 0 else 1] += 1
    rest = total >> BITS * first
    assert rest << BITS * first == total, "digits below the first"
    for i in range(ndigits):
        digit = rest if i == ndigits - 1 else rest & (1 << BITS) - 1
        words[i] += digit
        rest >>= BITS
    words[ndigits:] += counts
