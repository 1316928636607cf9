"""`ExactAccumulator`: a sum that takes arrays, and is rounded when it is asked for."""

import operator
from math import prod
from typing import Any

import numpy as np

from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.text import quoted
from hpcoll.exact.arguments import exact_array, sorted_axes
from hpcoll.exact.sums import ExactSums, needed_by
from hpcoll.exact.terms import Array, is_exact_type
from hpcoll.kernels.digits import NCOUNTS, DigitWindow


class ExactAccumulator:
    """An exact sum of numbers, or an array of sums, that arrays are added to; it is rounded when it is asked for.

    In which order numbers were added, and in how many pieces, does not matter. Accumulators are equal when their types, shapes, sums and
    counts are, and then their pickles are equal, too. Threads need a lock to add to the same one, or one each, which are merged.

    >>> total = ExactAccumulator()
    >>> total.add(np.array([1e300, 1.0, -1e300]))
    >>> total.add(np.array([2.0**-52]))
    >>> float(total.round()) - 1, total.count
    (2.220446049250313e-16, 4)

    Args:
        dtype: Element type of results: float16, bfloat16, float32, float64, complex64 or complex128. A real one takes no complex arrays.
        shape: Of the array of sums; ``()``: one sum.

    Attributes:
        dtype: As given.
        shape: As given, a tuple.

    Raises:
        ArgumentError: Another type or shape.
    """

    __hash__: Any = None  # it changes

    def __init__(self, dtype: Any = np.float64, shape: int | tuple[int, ...] = ()) -> None:
        self.dtype = _result_type(dtype, "ExactAccumulator")
        sizes: Any = (shape,) if hasattr(shape, "__index__") else shape
        try:
            self.shape = tuple(map(operator.index, sizes))
        except TypeError:
            self.shape = (-1,)
        if any(n < 0 for n in self.shape):
            raise ArgumentError(f"ExactAccumulator needs a shape of sizes of 0 or more, got {quoted(shape)}")
        self._is_complex = self.dtype.kind == "c"
        self._sums = ExactSums(1 + self._is_complex, prod(self.shape), single=not self.shape)

    @property
    def count(self) -> int:
        """The number of elements, or of products, that were added to each sum."""
        return self._sums.count

    def add(self, x: Any, axis: int | tuple[int, ...] | None = None) -> None:
        """Add an array's elements.

        Args:
            x: Integers or floating-point numbers up to float64, NumPy's or on a GPU, any strides. Not complex where ``dtype`` is real.
            axis: Along which to add; the other axes have the shape of the sums. None: all axes but the last ones, which have.

        Raises:
            ArgumentError: x cannot be added to these sums.
        """
        array = self._taken(x)
        axes = (
            tuple(range(len(array.shape) - len(self.shape)))
            if axis is None
            else sorted_axes(axis, len(array.shape))
        )
        kept = tuple(n for i, n in enumerate(array.shape) if i not in axes)
        if kept != self.shape:
            raise ArgumentError(
                f"add needs an array whose other axes have shape {self.shape}, got {array.shape} and axis {axis}"
            )
        if self.shape:
            self._sums.cover(needed_by(array))
        self._sums.add(array, axes)

    def add_product(self, x: Any, y: Any) -> None:
        """Add the products of the elements of two arrays; complex ones are not conjugated.

        Args:
            x: As of `add`; the accumulator has one sum.
            y: As x, and of its shape.

        Raises:
            ArgumentError: Arrays that cannot be added so, or an accumulator of several sums.
        """
        one = self._taken(x)
        other = self._taken(y)
        if self.shape or one.shape != other.shape:
            raise ArgumentError(
                f"add_product needs one sum and arrays of one shape, got {self.shape}, {one.shape} and {other.shape}"
            )
        self._sums.add_product(one, other)

    def _taken(self, x: Any) -> Array:
        array = exact_array(x)
        if array.dtype.kind == "c" and not self._is_complex:
            raise ArgumentTypeError(f"an accumulator of {self.dtype} needs real numbers, got {array.dtype}")
        return array

    def merge(self, other: "ExactAccumulator") -> None:
        """Add another accumulator's sums to these.

        Raises:
            ArgumentError: It has another shape, or one of the two is complex.
        """
        got = type(other).__name__
        alike = False
        if isinstance(other, ExactAccumulator):
            got = f"{other.dtype} of shape {other.shape}"
            alike = (other.shape, other._is_complex) == (self.shape, self._is_complex)
        if not alike:
            raise ArgumentError(
                f"merge needs an accumulator like this one, {self.dtype} of shape {self.shape}, got {got}"
            )
        self._sums.merge(other._sums)

    def round(self, dtype: Any = None) -> Any:
        """Return the sums, rounded to nearest, ties to even: a scalar for shape ``()``, else an array.

        Args:
            dtype: Element type of the result, complex as the accumulator's; None: that of the accumulator.

        Raises:
            ArgumentError: No such type.
        """
        wanted = self.dtype if dtype is None else _result_type(dtype, "round")
        if (wanted.kind == "c") != self._is_complex:
            raise ArgumentTypeError(
                f"round of an accumulator of {self.dtype} needs a type of that kind, got {wanted}"
            )
        return self._sums.rounded(wanted).reshape(self.shape)[()]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExactAccumulator):
            return NotImplemented
        return self.__getstate__() == other.__getstate__()

    def __getstate__(self) -> tuple[Any, ...]:
        words, window = self._sums.least()
        return self.dtype.name, self.shape, self.count, tuple(window), words.astype("<i8").tobytes()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        name, shape, count, window, words = state
        self.__init__(_named(name), shape)  # type: ignore[misc]
        sums = ExactSums(1 + self._is_complex, prod(self.shape), single=False)
        sums.window = DigitWindow(*window)
        sums.count = count
        nwords = sums.window.end - sums.window.first + NCOUNTS
        sums.words = np.frombuffer(words, "<i8").astype(np.int64).reshape(*sums.words.shape[:2], nwords)
        self._sums.merge(sums)

    def __repr__(self) -> str:
        return f"ExactAccumulator({self.dtype.name}, shape={self.shape}, count={self.count})"


def _named(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


def _result_type(dtype: Any, subject: str) -> np.dtype:
    try:
        result = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        raise ArgumentTypeError(f"{subject} needs an element type, got {quoted(dtype)}") from None
    if not is_exact_type(result) or result.kind in "biu":
        raise ArgumentTypeError(
            f"{subject} needs a floating type up to float64, real or complex, got {result}"
        )
    return result
