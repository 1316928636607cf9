"""`Redistribution`: an array that ranks share goes from one distribution to another, in one exchange of typed blocks.

Elements are copied from their old place to their new one. What the ranks have in common is computed once, from the distributions alone.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import format_nbytes
from hpcoll.comm.communicator import Communicator
from hpcoll.grids.distribution import Distribution
from hpcoll.grids.moves import received, sent
from hpcoll.grids.terms import Terms, agreed_terms, check_arrays
from hpcoll.grids.typed_moves import TypedMoves

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
        on = _communicator(comm)
        terms = Terms(source, target, axes, order, dtype)
        self._plan(on, agreed_terms(on, "Redistribution", terms))

    def _plan(self, comm: Communicator, terms: Terms) -> None:
        """Plan the moves of this rank on the terms of all."""
        self._comm = comm
        self._terms = terms
        self._running = list[Running]()
        self._freed = False
        rank = comm.rank
        source = terms.source.parts.transposed(terms.axes)
        target = terms.target.parts
        more: Any = {"nranks": comm.size, "itemsize": terms.dtype.itemsize, "order": terms.order}
        self._shapes = terms.local_shapes(rank)
        self._sent = TypedMoves(self._shapes[0], terms.axes, sent(source, target, rank), **more)
        straight = range(len(terms.axes))
        self._received = TypedMoves(self._shapes[1], straight, received(source, target, rank), **more)
        n = sum(move.nelements for move in self._sent.moves if move.peer != rank)
        self.nbytes = n * terms.dtype.itemsize

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
            check_arrays(x, out, self._shapes, self._terms.dtype)
        except ArgumentError as error:
            raise type(error)(f"{where} {error}") from None
        order: Any = self._terms.order
        given = np.empty(self._shapes[0], self._terms.dtype) if x is None else x
        result = np.empty(self._shapes[1], self._terms.dtype, order) if out is None else out
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
        arrays = f"{self._terms.dtype} arrays of shape {self._shapes[0]} to {self._shapes[1]}"
        sends = format_nbytes(self.nbytes)
        return f"<hpcoll.Redistribution of rank {self._comm.rank}: {arrays}, sends {sends} per call, {state}>"


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
    with _OneCall(comm, source, target, axes, order, x, out) as plan:
        return plan(x, out)


class _OneCall(Redistribution):
    """A plan for one call, the arrays of which ranks check with it."""

    def __init__(self, comm: Any, source: Any, target: Any, axes: Any, order: str, x: Any, out: Any) -> None:
        on = _communicator(comm)
        dtype = getattr(out if x is None else x, "dtype", None)
        terms = Terms(source, target, axes, order, dtype)
        self._plan(on, agreed_terms(on, "redistribute", terms, (x, out)))


def _communicator(comm: Any) -> Communicator:
    return comm if isinstance(comm, Communicator) else Communicator(comm)


def _put(taken: Array, result: Array) -> Array:
    """Return the result, with the elements that another array has taken for it."""
    if taken is not result:
        result[...] = taken
    return result
