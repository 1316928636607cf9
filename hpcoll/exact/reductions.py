"""Exact reductions of distributed arrays: each rank has a part, and all get the same bits, however the array was cut.

A call sends two messages: a short one, by which ranks compare types and axes and agree on digits, and the sums.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.exact.agreement import agreed
from hpcoll.exact.arguments import exact_array, sorted_axes
from hpcoll.exact.sums import ExactSums, needed_by
from hpcoll.exact.terms import Array
from hpcoll.exact.windows import UNITS

Axis = int | tuple[int, ...] | None


class _Operand(NamedTuple):
    """A rank's part of an array."""

    array: Array
    axes: tuple[int, ...]  # in ascending order

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(n for i, n in enumerate(self.array.shape) if i not in self.axes)

    @property
    def dtype(self) -> np.dtype:
        """The element type in native byte order."""
        return self.array.dtype.newbyteorder("=")

    @property
    def is_integer(self) -> bool:
        """True for integers and bool."""
        return self.dtype.kind in "biu"

    @property
    def floating(self) -> np.dtype:
        """The element type; float64 for integers."""
        return np.dtype(np.float64) if self.is_integer else self.dtype


def exact_sum(comm: Any, x: Any, axis: Axis = None) -> Any:
    """Return the correctly rounded sum of a distributed array's elements: the same bits however it is cut; collective.

    Infinities and NaN count as in any sum. A zero sum is +0.0, but -0.0 where all elements are, and there are some.

    Args:
        comm: Communicator, hpcoll's or mpi4py's; None: x is the whole array.
        x: This rank's part: integers or floating-point numbers up to float64, real or complex, NumPy's or on a GPU. Any strides and byte
            order, no mask; it may be empty. The element type is equal on all ranks.
        axis: None: the sum of all elements, whatever the shapes of the parts. One axis or several: along these, and the parts are stacked
            along the first of them. The other axes are equal on all ranks.

    Returns:
        A scalar of x's type for ``axis=None``, else an array of the axes that are left. Integers: of ``np.sum``'s type, in which they wrap.

    Raises:
        ArgumentError: On all ranks, before elements are read: an argument cannot be used, or ranks differ.

    >>> float(exact_sum(None, [1e100, 1.0, -1e100]))
    1.0
    >>> exact_sum(None, np.array([[0.1, 0.2], [0.2, 0.1]]), axis=0).tolist()
    [0.30000000000000004, 0.30000000000000004]
    """
    operand, sums = _prepared("exact_sum", comm, x, axis)
    if operand.is_integer:
        return _summed(comm, np.sum(operand.array, axis=operand.axes))
    sums.add(operand.array, operand.axes)
    return _result(comm, sums, operand.kept, lambda: sums.rounded(operand.dtype))


def exact_mean(comm: Any, x: Any, axis: Axis = None) -> Any:
    """Return the correctly rounded mean of a distributed array's elements: the exact sum, divided by their number; collective.

    Args:
        comm: As of `exact_sum`.
        x: As of `exact_sum`.
        axis: As of `exact_sum`.

    Returns:
        As `exact_sum`, but float64 for integers. The mean of nothing is NaN.

    Raises:
        ArgumentError: As `exact_sum`.

    >>> float(exact_mean(None, [1e308, 1e308, 1e308]))
    1e+308
    """
    operand, sums = _prepared("exact_mean", comm, x, axis)
    sums.add(operand.array, operand.axes)
    return _result(comm, sums, operand.kept, lambda: sums.means(operand.floating))


def exact_norm(comm: Any, x: Any, axis: Axis = None) -> Any:
    """Return the 2-norm of a distributed array: the correctly rounded square root of the exact sum of squares; collective.

    No square over- or underflows.

    Args:
        comm: As of `exact_sum`.
        x: As of `exact_sum`.
        axis: As of `exact_sum`; several axes are as one long one.

    Returns:
        As `exact_sum`, but real for complex elements, and float64 for integers.

    Raises:
        ArgumentError: As `exact_sum`.

    >>> float(exact_norm(None, [3e-320, 4e-320])), float(exact_norm(None, [3e300, 4e300]))
    (5e-320, 5e+300)
    """
    operand, sums = _prepared("exact_norm", comm, x, axis, power=2)
    sums.add_squares(operand.array, operand.axes)
    return _result(comm, sums, operand.kept, lambda: sums.roots(operand.floating))


def exact_dot(comm: Any, x: Any, y: Any) -> Any:
    """Return the correctly rounded sum of the products of two distributed arrays' elements; collective.

    No product is rounded, over- or underflows by itself. Complex elements are not conjugated, as in ``np.dot``.

    Args:
        comm: As of `exact_sum`.
        x: As of `exact_sum`, any shape.
        y: This rank's part of the other array, of the same shape; its type may be another.

    Returns:
        A scalar of the type that NumPy gives products of these types. Integers: of ``np.sum``'s type, in which they wrap.

    Raises:
        ArgumentError: As `exact_sum`, and for parts of different shapes.

    >>> float(exact_dot(None, [1e200, 1e-200, -1e200], [1e200, 1e-200, 1e200]))
    0.0
    """
    problem = ""
    description = ""
    pair = list[Array]()
    dtype = np.dtype(float)
    try:
        pair = [exact_array(x), exact_array(y)]
        description = " and ".join(array.dtype.name for array in pair)
        if pair[0].shape != pair[1].shape:
            problem = f"exact_dot needs parts of one shape, got {pair[0].shape} and {pair[1].shape}"
        dtype = np.result_type(*(array.dtype for array in pair)).newbyteorder("=")
    except ArgumentError as error:
        problem = f"exact_dot: {error}"
    except TypeError:
        problem = f"exact_dot needs types whose product has one in NumPy, got {description}"
    agreed(comm, "exact_dot", problem, description, UNITS)
    if dtype.kind in "biu":
        wide = np.sum(np.empty(0, dtype)).dtype
        return _summed(comm, np.sum(pair[0] * pair[1].astype(wide)))
    sums = ExactSums(2 if dtype.kind == "c" else 1, 1, single=True)
    sums.add_product(*pair)
    return _result(comm, sums, (), lambda: sums.rounded(dtype))


def _prepared(name: str, comm: Any, x: Any, axis: Axis, power: int = 1) -> tuple[_Operand, ExactSums]:
    """Return this rank's part, and sums of nothing with the digits that all ranks' parts need; collective."""
    problem = ""
    description = ""
    operand = _Operand(np.empty(0), (0,))
    window = UNITS
    try:
        array = exact_array(x)
        ndim = len(array.shape)
        operand = _Operand(array, tuple(range(ndim)) if axis is None else sorted_axes(axis, ndim))
    except ArgumentError as error:
        problem = f"{name}: {error}"
    else:
        description = operand.dtype.name
        if axis is not None:
            others = tuple(n for i, n in enumerate(operand.array.shape) if i != operand.axes[0])
            description += f" along {operand.axes} with other axes of {others}"
        if operand.kept and not (operand.is_integer and name == "exact_sum"):
            window = needed_by(operand.array, power)
    window = agreed(comm, name, problem, description, window)
    sums = ExactSums(
        2 if operand.dtype.kind == "c" and power == 1 else 1, prod(operand.kept), single=not operand.kept
    )
    if operand.kept:
        sums.cover(window)
    return operand, sums


def _result(comm: Any, sums: ExactSums, shape: tuple[int, ...], rounded: Callable[[], Array]) -> Any:
    if comm is not None:
        sums.sum_over(comm)
    return rounded().reshape(shape)[()]


def _summed(comm: Any, partial: Any) -> Any:
    """Return the sum of all ranks' integers, or of arrays of them; collective."""
    total = np.array(partial, order="C")
    if comm is not None:
        from mpi4py import MPI

        comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    return total[()]
