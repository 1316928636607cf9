"""Exact sums, products, norms and means of one fixed global array, cut among ranks in every way and laid out in several."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from right_bits import BF16, FORMS, PARTS, SQUARE, UNIT, Array, bits, exact, integer, nearest, quotient, root

import hpcoll

SHAPE = (1003, 5)  # of the global array
DTYPES = tuple(
    map(
        np.dtype,
        ("float64", "float32", "float16", BF16, "complex128", "complex64", "int32", "uint8", "int64"),
    )
)
Parts = Sequence[Array]


class Function(NamedTuple):
    """A function of hpcoll's for distributed arrays, and its right result for a global array of one axis."""

    name: str
    kinds: str
    right: Callable[[Array], Any]
    axes: bool = True


def form_of(dtype: np.dtype) -> Any:
    return FORMS[PARTS.get(dtype, dtype)]


def integers(values: Array) -> list[int]:
    return [integer(value) for value in values.astype(np.float64).tolist()]


def _sum(values: Array) -> Any:
    if values.dtype.kind in "iu":
        return values.sum()
    return exact(values)[()] if values.dtype.kind != "V" else exact(values)


def _dot(values: Array) -> Any:
    """Return the product of an array and itself backwards."""
    n = sum(a * b for a, b in zip(integers(values), integers(values[::-1])))
    return np.float64(nearest(n, SQUARE, form_of(values.dtype))).astype(values.dtype)


def _norm(values: Array) -> Any:
    parts = [values.real, values.imag] if values.dtype.kind == "c" else [values]
    n = sum(one * one for part in parts for one in integers(part))
    return np.float64(root(n, form_of(values.dtype))).astype(PARTS.get(values.dtype, values.dtype))


def _mean(values: Array) -> Any:
    if values.dtype.kind == "c":
        return values.dtype.type(complex(_mean(values.real), _mean(values.imag)))
    if values.dtype.kind in "iu":
        return np.float64(
            quotient(int(values.sum(dtype=object)) << -UNIT, values.size, FORMS[np.dtype(np.float64)])
        )
    return np.float64(quotient(sum(integers(values)), values.size, form_of(values.dtype))).astype(
        values.dtype
    )


FUNCTIONS = (
    Function("exact_sum", "fVciu", _sum),
    Function("exact_norm", "fVc", _norm),
    Function("exact_mean", "fVciu", _mean),
    Function("exact_dot", "fV", _dot, axes=False),
)


def whole(dtype: np.dtype) -> Array:
    """Return the global array."""
    rng = np.random.default_rng(40 + DTYPES.index(dtype))
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, SHAPE, dtype, endpoint=True)
    if dtype.kind == "c":
        made = np.empty(SHAPE, dtype)
        for part in (made.real, made.imag):
            part[...] = _reals(rng, PARTS[dtype])
        return made
    return _reals(rng, dtype)


def _reals(rng: np.random.Generator, dtype: np.dtype) -> Array:
    """Return numbers of every size whose squares do not overflow, many of which cancel."""
    form = FORMS[dtype]
    exponents = rng.integers(max(form.least, -form.top), form.top // 2 - 6, SHAPE)
    values = np.ldexp(rng.integers(-1 << 53, 1 << 53, SHAPE).astype(np.float64), exponents - 53)
    values[1::2] = np.where(rng.random(values[1::2].shape) < 0.4, -values[:-1:2], values[1::2])
    return values.astype(dtype)


def cuts(length: int, nranks: int) -> Iterator[tuple[str, list[int]]]:
    """Yield ways to cut a length among ranks: names, and where each begins, with the end."""
    rng = np.random.default_rng(nranks)
    yield "even", [length * rank // nranks for rank in range(nranks + 1)]
    yield "uneven", [0, *sorted(rng.integers(0, length, nranks - 1).tolist()), length]
    yield "all on the last", [0] * nranks + [length]
    yield "all on the first", [0] + [length] * nranks


def layouts(part: Array) -> Iterator[tuple[str, Array]]:
    """Yield the same array in several layouts of memory."""
    yield "C", np.ascontiguousarray(part)
    yield "Fortran", np.asfortranarray(part)
    wide = np.zeros([2 * n for n in part.shape], part.dtype)[tuple(slice(None, None, 2) for _ in part.shape)]
    wide[...] = part
    yield "strided", wide
    yield "backwards", np.ascontiguousarray(part[::-1])[::-1]


def on_gpu(double: Any, values: Array) -> Any:
    """Return an array of the double of the driver; only DLPack knows bfloat16."""
    made = double.Array(values.shape, values.dtype).fill(values)
    return double.dlpack(made) if values.dtype == BF16 else made


def pairs() -> list[tuple[Function, np.dtype]]:
    """Return every function with every element type that it takes."""
    return [(function, dtype) for function in FUNCTIONS for dtype in DTYPES if dtype.kind in function.kinds]


def wanted(function: Function, values: Array, axis: Any) -> Array:
    """Return the right result along an axis, or of all."""
    if not isinstance(axis, int):
        return np.asarray(function.right(values.reshape(-1)))
    return np.asarray(
        [function.right(one) for one in np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])]
    )


def of_type(
    comm: Any, double: Any, function: Function, dtype: np.dtype, *, few: bool = False
) -> Iterator[tuple[str, Array | None, bool, str]]:
    """Yield the name of each result, the result, whether it is right, and how it came about. Every rank has the same results.

    With ``few`` each cut has one layout, which is another one along each axis.
    """
    values = whole(dtype)
    backwards = values.reshape(-1)[::-1].reshape(SHAPE)
    axes: tuple[Any, ...] = (None, 0, 1, (0, 1)) if function.axes else (None,)
    for axis in axes:
        along, want = axis if isinstance(axis, int) else 0, wanted(function, values, axis)
        for turn, (cut, edges) in enumerate(cuts(values.shape[along], comm.size), axes.index(axis)):
            mine = range(edges[comm.rank], edges[comm.rank + 1])
            parts = (np.take(one, mine, axis=along) for one in (values, backwards))
            laid = list(zip(*map(layouts, parts)))
            for (layout, one), (_, other) in [laid[turn % len(laid)]] if few else laid:
                name, given = f"{function.name} {dtype.name} axis {axis}", [one]
                if function.name == "exact_dot":
                    given = [one.reshape(-1), other.reshape(-1)]
                if double is not None:
                    given = [on_gpu(double, array) for array in given]
                try:
                    found = np.asarray(
                        getattr(hpcoll, function.name)(
                            comm, *given, **({} if axis is None else {"axis": axis})
                        )
                    )
                except (hpcoll.HpcollError, AttributeError, TypeError, ValueError) as error:
                    yield (
                        name,
                        None,
                        False,
                        f"{name} {cut} {layout}: {type(error).__name__}: {str(error)[:200]}",
                    )
                    continue
                good = found.dtype == want.dtype and found.shape == want.shape and bits(found) == bits(want)
                yield (
                    name,
                    found,
                    good,
                    f"{name} {cut} {layout}: {found.shape} {found.ravel()[:3]!r} for {want.shape} {want.ravel()[:3]!r}",
                )
