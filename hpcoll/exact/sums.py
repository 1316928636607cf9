"""Exact sums as vectors of digits, with as many digits as the numbers need."""

from functools import reduce
from math import prod
from typing import Any

import numpy as np

from hpcoll.exact.local import add_products_along, add_term, add_term_products
from hpcoll.exact.rounding import means, roots
from hpcoll.exact.terms import Array, terms
from hpcoll.exact.windows import UNITS, least, needed, union, widened
from hpcoll.kernels.digits import PRODUCTS, DigitWindow, normalise, rounded

_SIGNED = -1  # the word that counts addends other than -0.0


class ExactSums:
    """An array of exact sums.

    Attributes:
        words: In normal form, shape (parts, sums, words): one part, or the real and the imaginary one.
        window: The digits among these words.
        count: The number of elements in each sum.

    Args:
        nparts: 1, or 2 for complex sums.
        nsums: The number of sums; one has all digits from the start.
    """

    def __init__(self, nparts: int, nsums: int, *, single: bool) -> None:
        self.window = PRODUCTS if single else UNITS
        self.words: Array = np.zeros((nparts, nsums, self.window.nwords), np.int64)
        self.count = 0

    def cover(self, window: DigitWindow) -> None:
        """Have at least these digits."""
        whole = union(self.window, window)
        if self.count:
            self.words = widened(self.words, self.window, whole)
        elif whole != self.window:
            self.words = np.zeros((*self.words.shape[:2], whole.nwords), np.int64)
        self.window = whole

    def add(self, x: Array, axes: tuple[int, ...]) -> None:
        """Add the sums of elements over some axes, in ascending order; the others are those of the sums, which cover x."""
        for term in terms(x):
            add_term(self.words[term.part], term.array, axes, self.window)
            normalise(self.words)
        self.count += prod(x.shape[axis] for axis in axes)

    def add_squares(self, x: Array, axes: tuple[int, ...]) -> None:
        """Add the sums of squares, of complex elements those of their size, over axes; as `add`."""
        parts = terms(x)
        for i, term in enumerate(parts):
            for other in parts[i:] if x.dtype.kind in "iu" else [term]:
                for _ in range(1 if other is term else 2):
                    add_products_along(self.words[0], term.array, other.array, axes, self.window)
                    normalise(self.words)
        self.count += prod(x.shape[axis] for axis in axes)

    def add_product(self, x: Array, y: Array) -> None:
        """Add the products of all elements to the only sum."""
        for left in terms(x):
            for right in terms(y):
                add_term_products(self.words[:, 0], left, right, self.window)
                normalise(self.words)
        self.count += prod(x.shape)

    def merge(self, other: "ExactSums") -> None:
        """Add other sums to these."""
        self.cover(other.window)
        self.words += widened(other.words, other.window, self.window)
        normalise(self.words)
        self.count += other.count

    def sum_over(self, comm: Any) -> None:
        """Add the sums of all ranks of a communicator, which have the same window; collective."""
        from mpi4py import MPI

        message: Any = np.append(self.words, self.count)
        comm.Allreduce(MPI.IN_PLACE, message, op=MPI.SUM)
        self.words = message[:-1].reshape(self.words.shape)
        self.count = int(message[-1])
        normalise(self.words)

    def least(self) -> tuple[Array, DigitWindow]:
        """Return the words with the fewest digits, equal for equal sums, and these digits."""
        return least(self.words, self.window)

    def rounded(self, dtype: np.dtype) -> Array:
        """Return the sums, rounded; the sum of nothing is +0.0."""
        return self._parts(
            [rounded(self._counted(part), self.window.first, _real(dtype)) for part in self.words], dtype
        )

    def means(self, dtype: np.dtype) -> Array:
        """Return the sums divided by the count, rounded."""
        return self._parts([means(part, self.window, self.count, _real(dtype)) for part in self.words], dtype)

    def roots(self, dtype: np.dtype) -> Array:
        """Return the square roots of sums of squares, rounded."""
        return roots(self._counted(self.words[0]), self.window, _real(dtype))

    def _counted(self, words: Array) -> Array:
        if self.count == 0:
            words = words.copy()
            words[:, _SIGNED] = 1
        return words

    @staticmethod
    def _parts(parts: list[Array], dtype: np.dtype) -> Array:
        if len(parts) == 1:
            return parts[0].astype(dtype, copy=False)
        both = np.empty(len(parts[0]), dtype)
        both.real, both.imag = parts
        return both


def _real(dtype: np.dtype) -> np.dtype:
    """Return the type of a complex type's parts, or the type itself."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def needed_by(x: Array, power: int = 1) -> DigitWindow:
    """Return the digits that sums of an array's elements, or of their squares, need."""
    return reduce(union, [needed(term.array, power) for term in terms(x)])
