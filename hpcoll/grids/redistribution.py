"""`Redistribution`: an array that ranks share goes from one distribution to another, in one exchange of typed blocks.

For each peer the elements that travel are a datatype over the local array. So elements are copied from their old place to their new one,
and nothing is packed by hand. What the ranks have in common is computed once, from the distributions alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.text import format_nbytes, quoted
from hpcoll.comm.communicator import Communicator
from hpcoll.grids.distribution import Distribution
from hpcoll.grids.moves import Move, received, sent
from hpcoll.grids.parts import cut_up

_MOST = 1 << 30  # elements of a run in a datatype: MPI counts in 32 bits

Array = np.ndarray[Any, Any]


class Redistribution:
    """A plan that moves arrays from one distribution to another; making it is collective, and so is each call.

    The plan is made once for a pair of distributions and an element type, and serves any number of arrays. All ranks make the same calls
    in the same order.

        rows = hpcoll.Distribution((1000, 800), comm.size, split=0)
        columns = hpcoll.Distribution((1000, 800), comm.size, split=1)
        with hpcoll.Redistribution(comm, rows, columns, np.float64) as turn:
            y = turn(x)                     # a new array
            running = turn.start(x, out=y)  # or into this one, while the program does something else
            running.wait()

    Args:
        comm: Intracommunicator, hpcoll's or mpi4py's, with as many ranks as the distributions.
        source: The distribution of the arrays that are given.
        target: The distribution of those that come out.
        dtype: Element type of NumPy, of fixed size.
        axes: Axis of the source that each axis of the target is, as of `numpy.transpose`; None: the same one.
        order: ``"C"`` or ``"F"``: the order of new arrays, and of elements in messages. Given arrays may have any; this one is the fastest.

    Attributes:
        nbytes: Bytes that this rank sends to others in a call.

    Raises:
        ArgumentError: On every rank, before any message leaves: an argument cannot be used, or ranks differ.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        source: Distribution,
        target: Distribution,
        dtype: Any,
        *,
        axes: Sequence[int] | None = None,
        order: str = "C",
    ) -> None:
        self._comm = _communicator(comm)

        def read(terms: _Terms) -> np.dtype[Any]:
            return _element_type(dtype)

        self._plan(*_agreed(self._comm, "Redistribution", _Terms(source, target, axes, order), read))

    def _plan(self, terms: "_Terms", dtype: np.dtype[Any]) -> None:
        """Plan the moves of this rank; the terms are those of all ranks."""
        rank = self._comm.rank
        source, target, axes, self._order = terms
        parts = source.parts.transposed(axes)
        self._dtype = dtype
        self._running = list[Running]()
        self._sent = _Side(
            source.local_shape(rank), axes, sent(parts, target.parts, rank), source.nranks, dtype, terms.order
        )
        self._received = _Side(
            target.local_shape(rank),
            range(len(axes)),
            received(parts, target.parts, rank),
            source.nranks,
            dtype,
            terms.order,
        )
        self._freed = False
        self.nbytes = dtype.itemsize * sum(move.nelements for move in self._sent.moves if move.peer != rank)

    def __call__(self, x: Array | None, out: Array | None = None) -> Array:
        """Return the array in the target distribution; collective.

        Args:
            x: This rank's local array of the source distribution, with any strides; None will do where that has no element.
            out: Array for the result, of the target's local shape, with any strides; it may overlap ``x``. None: a new one.

        Raises:
            ArgumentError: On this rank alone: an array has another shape or element type, or the plan was freed.
        """
        given, taken, result = self._buffers(x, out)
        self._comm.Alltoallw(self._sent.spec(given), self._received.spec(taken))
        return _put(taken, result)

    def start(self, x: Array | None, out: Array | None = None) -> "Running":
        """Begin to move an array, and return the transfer in flight, whose `wait` returns the result.

        Until then the program changes neither array. Arguments and errors are those of a call.
        """
        given, taken, result = self._buffers(x, out)
        request = self._comm.Ialltoallw(self._sent.spec(given), self._received.spec(taken))
        running = Running(self, request, given, taken, result)
        self._running.append(running)
        return running

    def _buffers(self, x: Array | None, out: Array | None) -> tuple[Array, Array, Array]:
        """Return contiguous arrays to send from and to receive into, and the result."""
        where = f"rank {self._comm.rank}: Redistribution needs"
        if self._freed:
            raise ArgumentError(f"{where} to be in use, was freed")
        try:
            _check("x", x, self._sent.shape, self._dtype)
            if out is not None:
                _check("out", out, self._received.shape, self._dtype, written=True)
        except ArgumentError as error:
            raise type(error)(f"{where} {error}") from None
        order: Any = self._order
        given = np.empty(self._sent.shape, self._dtype) if x is None else x
        result = np.empty(self._received.shape, self._dtype, order) if out is None else out
        taken = result if result.flags.forc else np.empty_like(result, order=order)
        if not given.flags.forc or np.may_share_memory(given, taken):
            given = np.array(given, order=order)
        return given, taken, result

    def Free(self) -> None:
        """Wait for transfers that run, and give back the datatypes; arrays stay. A second time does nothing."""
        for running in self._running[:]:
            running.wait()
        self._freed = True
        self._sent.free()
        self._received.free()

    def __enter__(self) -> "Redistribution":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:  # else other ranks may never end what runs
            self.Free()

    def __repr__(self) -> str:
        state = "freed" if self._freed else f"{len(self._running)} running" if self._running else "idle"
        shapes = f"{self._sent.shape} to {self._received.shape}"
        sends = format_nbytes(self.nbytes)
        return f"<hpcoll.Redistribution of rank {self._comm.rank}: {self._dtype} {shapes}, sends {sends}, {state}>"


class Running:
    """A transfer in flight, which `Redistribution.start` returns."""

    def __init__(
        self, plan: Redistribution, request: MPI.Request, given: Array, taken: Array, result: Array
    ) -> None:
        self._plan = plan
        self._request = request
        self._given = given  # may be a copy that nobody else keeps
        self._taken = taken
        self._result = result

    def wait(self) -> Array:
        """Wait until this rank has all its elements, and the others have theirs from it; return the result."""
        if self in self._plan._running:
            self._request.Wait()
            self._plan._running.remove(self)
            _put(self._taken, self._result)
        return self._result


def redistribute(
    x: Array | None,
    source: Distribution,
    target: Distribution,
    comm: MPI.Intracomm,
    out: Array | None = None,
    *,
    axes: Sequence[int] | None = None,
    order: str = "C",
) -> Array:
    """Return an array that ranks share in another distribution; collective. `Redistribution` is for the same again and again.

    Args:
        x: This rank's local array of the source distribution, with any strides; None will do where that has no element.
        source: The distribution of ``x``.
        target: The distribution of the result.
        comm: Intracommunicator, hpcoll's or mpi4py's, with as many ranks as the distributions.
        out: Array for the result, of the target's local shape, with any strides; it may overlap ``x``. None: a new one.
        axes: Axis of the source that each axis of the target is, as of `numpy.transpose`; None: the same one.
        order: ``"C"`` or ``"F"``: the order of a new array, and of elements in messages.

    Raises:
        ArgumentError: On every rank, before any message leaves: an argument cannot be used, or ranks differ.
    """
    on = _communicator(comm)

    def read(terms: _Terms) -> np.dtype[Any] | None:
        array = out if x is None else x
        dtype = array.dtype if isinstance(array, np.ndarray) else None
        _check("x", x, terms.source.local_shape(on.rank), dtype)
        if out is not None:
            _check("out", out, terms.target.local_shape(on.rank), dtype, written=True)
        return None if dtype is None else _element_type(dtype)

    plan = Redistribution.__new__(Redistribution)
    plan._comm = on
    plan._plan(*_agreed(on, "redistribute", _Terms(source, target, axes, order), read))
    with plan:
        return plan(x, out)


# --- the agreement of ranks


class _Terms(NamedTuple):
    """The arguments on which ranks agree."""

    source: Distribution
    target: Distribution
    axes: Any
    order: str


@dataclass(frozen=True)
class _Known:
    """A distribution as other ranks know it."""

    digest: str
    text: str = field(compare=False)

    def __repr__(self) -> str:
        return f"{self.text} (digest {self.digest[:8]})"


def _communicator(comm: Any) -> Communicator:
    return comm if isinstance(comm, Communicator) else Communicator(comm)


def _agreed(
    comm: Communicator, name: str, given: _Terms, read: Callable[[_Terms], np.dtype[Any] | None]
) -> tuple[_Terms, np.dtype[Any]]:
    """Return the terms and the element type; collective.

    Args:
        comm: The ranks.
        name: The caller, for errors.
        given: This rank's arguments.
        read: Function that refuses further arguments of this rank, and returns its element type, or None where it knows none.

    Raises:
        ArgumentError: On every rank: a rank's arguments cannot be used, or ranks differ.
    """
    problem = ""
    facts = dict[str, Any]()
    terms = given
    dtype = None
    try:
        terms = _checked(given, comm.size)
        facts = {
            f"source of {name}": _Known(terms.source.digest, repr(terms.source)),
            f"target of {name}": _Known(terms.target.digest, repr(terms.target)),
            f"axes of {name}": terms.axes,
            f"order of {name}": terms.order,
        }
        dtype = read(terms)
    except ArgumentError as error:
        problem = f"rank {comm.rank}: {name} needs {error}"
    known = {
        rank: one for rank, one in enumerate(agreed(comm.allgather, problem, facts, dtype)) if one is not None
    }
    first = min(known, default=0)
    for rank, one in known.items():
        if one != known[first]:
            raise ArgumentError(
                f"rank {rank}: dtype of {name} must be equal on all ranks, "
                f"expected {known[first]} as on rank {first}, got {one}"
            )
    return terms, known.get(first, np.dtype(np.float64))  # any type will do for arrays without elements


def _checked(given: _Terms, nranks: int) -> _Terms:
    """Return terms with axes as numbers of a tuple."""
    source, target, axes, order = given
    for side, distribution in (("source", source), ("target", target)):
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
    return _Terms(source, target, along, order)


def _element_type(given: Any) -> np.dtype[Any]:
    try:
        dtype = np.dtype(given)
    except TypeError:
        raise ArgumentTypeError(f"an element type of NumPy, got {quoted(given)}") from None
    if dtype.hasobject or not dtype.itemsize:
        raise ArgumentTypeError(f"elements of fixed size, got {dtype}")
    return dtype


def _check(name: str, array: Any, shape: tuple[int, ...], dtype: Any, *, written: bool = False) -> None:
    """Refuse an array that is not this rank's local one."""
    if array is None and 0 in shape:
        return
    if not isinstance(array, np.ndarray):
        raise ArgumentTypeError(f"{name} as an array of NumPy of shape {shape}, got {type(array).__name__}")
    if array.shape != shape or array.dtype != dtype:
        expected = f"{name} of shape {shape} and type {dtype}"
        raise ArgumentError(f"{expected}, got shape {array.shape} and type {array.dtype}")
    if written and not array.flags.writeable:
        raise ArgumentError(f"{name} that can be written, got a read-only array")


# --- the exchange


class _Side:
    """The moves from local arrays of one shape, or into them, as blocks of one exchange.

    Args:
        shape: Of the local array.
        axes: Axis of the local array for each axis along which moves have pieces.
        moves: A move for each peer that has one.
        nranks: Number of ranks.
        dtype: Element type.
        order: Order of elements in messages.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        axes: Sequence[int],
        moves: Sequence[Move],
        nranks: int,
        dtype: np.dtype[Any],
        order: str,
    ) -> None:
        self.shape = shape
        self.moves = moves
        self._axes = axes
        self._nbytes = dtype.itemsize
        self._outward = range(len(shape))[:: 1 if order == "F" else -1]
        self._counts = [0] * nranks
        self._displs = [0] * nranks
        self._types = dict[str, list[MPI.Datatype]]()  # by the order of the array
        for move in moves:
            self._counts[move.peer] = 1

    def spec(self, array: Array) -> list[Any]:
        """Return a contiguous array as a buffer of an exchange, with a datatype for each rank."""
        order = "C" if array.flags.c_contiguous else "F"
        if order not in self._types:
            self._types[order] = self._made(order)
        return [array, self._counts, self._displs, self._types[order]]

    def _made(self, order: str) -> list[MPI.Datatype]:
        """Return a datatype for each rank, over an array of this order."""
        n = self._nbytes
        strides = [
            n * prod(self.shape[axis + 1 :] if order == "C" else self.shape[:axis]) for axis in self._axes
        ]
        types = [MPI.BYTE] * len(self._counts)
        for move in self.moves:
            types[move.peer] = self._datatype(move, strides)
        return types

    def _datatype(self, move: Move, strides: Sequence[int]) -> MPI.Datatype:
        """Return the datatype of a move's elements: for each axis runs of what is further inward."""
        whole = MPI.BYTE.Create_contiguous(self._nbytes)
        for axis in self._outward:
            starts, lengths = cut_up(*move.pieces[axis], _MOST)
            stride = strides[axis]
            inner = whole.Create_resized(0, stride)
            whole.Free()
            whole = inner.Create_hindexed(lengths.tolist(), (starts * stride).tolist())
            inner.Free()
        return whole.Commit()

    def free(self) -> None:
        """Give back the datatypes."""
        for types in self._types.values():
            for move in self.moves:
                types[move.peer].Free()
        self._types.clear()


def _put(taken: Array, result: Array) -> Array:
    """Return the result, with the elements that another array has taken for it."""
    if taken is not result:
        result[...] = taken
    return result
