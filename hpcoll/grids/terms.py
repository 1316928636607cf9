"""The terms of a redistribution, on which all ranks agree before any of them sends: distributions, element type, axes, order, memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.dtypes import is_extended, kind
from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.ops import ReduceOp
from hpcoll.base.text import parse_nbytes, quoted
from hpcoll.comm.arguments.call import to_ours
from hpcoll.comm.arguments.memory import find_gpu_array
from hpcoll.comm.communicator import Communicator
from hpcoll.grids.distribution import Distribution
from hpcoll.runtime.gpu.arrays import DeviceArray

OnGpu: TypeAlias = tuple[DeviceArray | None, DeviceArray | None]  # of x and out, what of them is there


class Terms(NamedTuple):
    """The arguments of a redistribution; they are as the program gives them until `agreed_terms` returns them."""

    source: Distribution
    target: Distribution
    axes: Any = None  # then a tuple of all axes
    order: str = "C"
    memory: Any = None  # then a number of bytes, or None
    op: Any = None  # then None where no two ranks have an element
    dtype: Any = None  # None: a rank without elements does not know it
    out_dtype: Any = None  # None: the same

    def local_shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of a rank's arrays of source and target."""
        return self.source.local_shape(rank), self.target.local_shape(rank)


@dataclass(frozen=True)
class _Known:
    """A distribution as other ranks know it."""

    digest: str
    text: str = field(compare=False)

    def __repr__(self) -> str:
        return f"{self.text} (digest {self.digest[:8]})"


def agreed_terms(
    comm: Communicator,
    name: str,
    given: Terms,
    check: Callable[[Terms], object] = lambda terms: None,
    sides: tuple[str, ...] = ("source", "target"),
) -> Terms:
    """Return the terms of all ranks; collective.

    Args:
        comm: The ranks.
        name: The caller, for errors.
        given: This rank's arguments.
        check: Looks at this rank's arrays, of a call that is checked with its plan; raises ArgumentError.
        sides: What the caller calls source and target; one name where it has one distribution for both.

    Raises:
        ArgumentError: On every rank: a rank's arguments cannot be used, or ranks differ.
    """
    problem = ""
    facts = dict[str, Any]()
    terms = given
    try:
        terms = _checked(given, comm.size, sides)
        check(terms)
        op = terms.op
        facts = {f"{side} of {name}": _Known(one.digest, repr(one)) for side, one in zip(sides, terms[:2])}
        facts |= {
            f"axes of {name}": terms.axes,
            f"order of {name}": terms.order,
            f"memory of {name}": terms.memory,
            f"op of {name}": None if op is None else _Known(f"{op.digest:08x}", repr(op)),
            f"dtype of the result of {name}": terms.out_dtype,
        }
    except ArgumentError as error:
        problem = f"rank {comm.rank}: {name} needs {error}"
    # one that is refused may be anything, even what cannot be pickled
    dtypes = agreed(comm.allgather, problem, facts, None if problem else terms.dtype)
    known = {rank: dtype for rank, dtype in enumerate(dtypes) if dtype is not None}
    first = min(known, default=0)
    for rank, dtype in known.items():
        if dtype != known[first]:
            expected = f"expected {known[first]} as on rank {first}"
            raise ArgumentError(
                f"rank {rank}: dtype of {name} must be equal on all ranks, {expected}, got {dtype}"
            )
    # any type will do where no rank has an element
    dtype = known.get(first, np.dtype(np.float64))
    _check_types(dtype, terms, f"rank {first}: {name} needs")
    combines = (terms.source.parts.replicas > 1).any()
    return terms._replace(dtype=dtype, out_dtype=terms.out_dtype or dtype, op=terms.op if combines else None)


def _check_types(dtype: np.dtype[Any], terms: Terms, where: str) -> None:
    """Refuse elements that cannot be combined, or that the result cannot have."""
    op, out_dtype = terms.op, terms.out_dtype
    if op is not None and (kind(dtype) not in tuple(op.kinds) or is_extended(dtype) or not dtype.isnative):
        raise ArgumentTypeError(f"{where} elements that {op!r} takes, got {dtype}")
    if out_dtype is not None and not np.can_cast(dtype, out_dtype, "same_kind"):
        raise ArgumentTypeError(
            f"{where} a result to whose type {dtype} is cast by 'same_kind', got {out_dtype}"
        )


def _checked(given: Terms, nranks: int, sides: tuple[str, ...]) -> Terms:
    """Return terms with axes and element type as values of one kind."""
    source, target, axes, order, memory, op, dtype, out_dtype = given
    for side, distribution in zip(sides, (source, target)):
        if not isinstance(distribution, Distribution):
            raise ArgumentTypeError(f"a Distribution as {side}, got {quoted(distribution)}")
        if distribution.nranks != nranks:
            raise ArgumentError(f"a {side} for {nranks} ranks, got one for {distribution.nranks}")
    ndim = len(source.shape)
    try:
        along = tuple(range(ndim)) if axes is None else tuple(range(ndim)[axis] for axis in axes)
    except (IndexError, TypeError):
        along = ()
    if sorted(along) != list(range(ndim)):
        raise ArgumentError(f"axes= with each of {ndim} axes once, got {quoted(axes)}")
    expected = tuple(source.shape[axis] for axis in along)
    if target.shape != expected:
        raise ArgumentError(f"a target of shape {expected}, as its source has it, got {target.shape}")
    if order not in ("C", "F"):
        raise ArgumentError(f"order= C or F, got {quoted(order)}")
    try:
        nbytes = None if memory is None else parse_nbytes(memory)
    except ArgumentError as error:
        raise ArgumentError(f"memory= as bytes: {error}") from None
    types = (None if one is None else _element_type(one) for one in (dtype, out_dtype))
    return Terms(source, target, along, order, nbytes, None if op is None else _operator(op), *types)


def _operator(given: Any) -> ReduceOp:
    op = to_ours(given, 0) if isinstance(given, MPI.Op | ReduceOp) else None
    if op is None or op.average or op.premultiplier is not None:
        raise ArgumentTypeError(f"op= that combines two elements by itself, got {quoted(given)}")
    return op


def _element_type(given: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(given)
    except TypeError:
        raise ArgumentTypeError(f"an element type of NumPy, got {quoted(given)}") from None
    if dtype.hasobject or not dtype.itemsize:
        raise ArgumentTypeError(f"elements of fixed size, got {dtype}")
    return dtype


def check_arrays(x: Any, out: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]], terms: Terms) -> OnGpu:
    """Refuse arrays that are not a rank's local ones; return those on a GPU. Without source elements ``x`` may be None, ``out`` always."""
    on_gpu = find_gpu_array(x), find_gpu_array(out)
    types = terms.dtype, terms.out_dtype or terms.dtype
    every = zip(("x", "out"), (x, out), on_gpu, shapes, types, (0 in shapes[0], True))
    for name, array, found, shape, dtype, unneeded in every:
        if array is None and unneeded:
            continue
        if found is None and not isinstance(array, np.ndarray):
            got = type(array).__name__
            raise ArgumentTypeError(f"{name} as an array of NumPy, or on a GPU, of shape {shape}, got {got}")
        one = array if found is None else found
        if one.shape != shape or one.dtype != dtype:
            expected = f"{name} of shape {shape} and type {dtype}"
            raise ArgumentError(f"{expected}, got shape {one.shape} and type {one.dtype}")
        if found is not None:
            _check_on_gpu(name, found, terms)
    _check_together(x, out, on_gpu, bounded=terms.memory is not None)
    return on_gpu


def _check_on_gpu(name: str, array: DeviceArray, terms: Terms) -> None:
    """Refuse what is done with NumPy's arrays alone."""
    if not array.order:
        raise ArgumentError(f"{name} without gaps on a GPU, got strides {array.strides}")
    if terms.op is not None or (terms.out_dtype or terms.dtype) != terms.dtype:
        raise ArgumentError(
            f"{name} as an array of NumPy for op= and other types on arrival, got one on a GPU"
        )


def _check_together(x: Any, out: Any, on_gpu: OnGpu, *, bounded: bool) -> None:
    if out is not None and not (out.flags.writeable if on_gpu[1] is None else not on_gpu[1].readonly):
        raise ArgumentError("out that can be written, got a read-only array")
    if x is None or out is None:
        return
    if (on_gpu[0] is None) != (on_gpu[1] is None):
        raise ArgumentError("x and out both on a GPU or both on the host, got one of each")
    if on_gpu[0] is None:
        overlap = bounded and np.may_share_memory(x, out)
    else:
        (low, high), (first, end) = on_gpu[0].span, on_gpu[1].span  # type: ignore[union-attr]
        overlap = max(low, first) < min(high, end)
    if overlap:
        where = "for memory=" if on_gpu[0] is None else "on a GPU"
        raise ArgumentError(f"x and out apart from each other {where}, got arrays that overlap")
