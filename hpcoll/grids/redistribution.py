"""`Redistribution`: an array that ranks share goes from one distribution to another, in one exchange of typed blocks.

Elements are copied from their old place to their new one. What the ranks have in common is computed once, from the distributions alone.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import prod
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.agreement import agreed
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import ReduceOp
from hpcoll.base.text import format_nbytes
from hpcoll.comm.communicator import Communicator
from hpcoll.comm.status.regions import regions
from hpcoll.grids.arrivals import Arrivals, Fold
from hpcoll.grids.distribution import Distribution
from hpcoll.grids.moves import received, sent
from hpcoll.grids.terms import OnGpu, Terms, agreed_terms, check_arrays
from hpcoll.grids.typed_moves import TypedMoves

Array = np.ndarray[Any, Any]
_Round: TypeAlias = tuple[TypedMoves, TypedMoves, Arrivals | None]
_GROWTH = 2  # memory for packing grows to twice what it was
_MOST_NBYTES = 1 << 30  # of a message: MPI counts in 32 bits


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
        dtype: Element type of NumPy, of fixed size: the source's.
        axes: Axis of the source that each axis of the target is, as of `numpy.transpose`; None: the same one.
        order: ``"C"`` or ``"F"``: the order of new arrays, and of elements in messages. Given arrays may have any; this one is the fastest.
        memory: Bytes, or text such as ``"256M"``: the most extra memory that a call takes on a rank, beside new arrays and what ranks of
            a node share. Arrays then move in rounds, and ``x`` and ``out`` may not overlap. None: in one round.
        op: Operator that combines what several ranks have of an element: one of MPI or hpcoll that takes ``dtype``, but for averages and
            factors. Contributions are combined as by an Allreduce with ``order="rank"``. None: they are equal, and one is taken.
        out_dtype: Element type of the result, to which elements are converted when they are combined; NumPy casts to it by
            ``"same_kind"``. None: ``dtype``.

    Attributes:
        nbytes: Bytes that this rank sends to others in a call.
        nrounds: Number of rounds of a call.

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
        memory: int | str | None = None,
        op: MPI.Op | ReduceOp | None = None,
        out_dtype: Any = None,
    ) -> None:
        on = _communicator(comm)
        terms = Terms(source, target, axes, order, memory, op, dtype, out_dtype)
        self._plan(on, "Redistribution", agreed_terms(on, "Redistribution", terms))

    def _plan(self, comm: Communicator, name: str, terms: Terms) -> None:
        """Plan the moves of this rank on the terms of all; errors have the name."""
        self._comm = comm
        self._name = name
        self._terms = terms
        self._running = list[Running]()
        self._freed = False
        self._checked: OnGpu | None = None  # what of its arrays is on a GPU, of a plan for one call
        source = terms.source.parts.transposed(terms.axes)
        target = terms.target.parts
        self._shapes = terms.local_shapes(comm.rank)
        every = terms.op is not None
        self._source = source
        self._sent = sent(source, target, comm.rank, every=every)
        self._received = received(source, target, comm.rank, every=every)
        self._fold = None if terms.op is None else Fold(terms.op, terms.dtype)
        self._arrives = every or terms.out_dtype != terms.dtype  # there is more to do with elements
        n = sum(move.nelements for move in self._sent if move.peer != comm.rank)
        self.nbytes = n * terms.dtype.itemsize
        own = [move for move in (*self._sent, *self._received) if move.peer == comm.rank]
        # the places in source and target of what it keeps, where a copy by NumPy does
        boxes = not self._arrives and all(move.is_box for move in own)
        self._kept = [move.places for move in own] if boxes else []
        # all messages of one round are short where the array is
        few = prod(terms.source.shape) * terms.dtype.itemsize <= _MOST_NBYTES
        self.nrounds = 1 if terms.memory is None and few else self._agreed_rounds()
        self._only = dict[
            bool, _Round
        ]()  # of plans of one round: by whether NumPy copies what the rank keeps

    def _agreed_rounds(self) -> int:
        """Return the number of rounds in which all ranks keep to their memory, and messages to what MPI counts; collective."""
        limit = self._terms.memory
        most = max((move.nelements for move in (*self._sent, *self._received)), default=1)
        n = bisect_left(range(1, most), True, key=self._is_enough) + 1
        needed = self._extra_nbytes(n)
        where = f"rank {self._comm.rank}: {self._name} needs"
        short = limit is not None and needed > limit
        problem = f"{where} memory= of {needed} bytes or more, got {limit}" if short else ""
        return max(agreed(self._comm.allgather, problem, {}, n))

    def _is_enough(self, nrounds: int) -> bool:
        """Say whether so many rounds do for this rank."""
        terms = self._terms
        most = max((move.most(nrounds, terms.order) for move in (*self._sent, *self._received)), default=0)
        if most * terms.dtype.itemsize > _MOST_NBYTES:
            return False
        return terms.memory is None or self._extra_nbytes(nrounds) <= terms.memory

    def _extra_nbytes(self, nrounds: int) -> int:
        """Return the most extra bytes of a round: what goes to other ranks and comes from them, as if all of it was packed; arrivals."""
        terms = self._terms
        elsewhere = [move for move in (*self._sent, *self._received) if move.peer != self._comm.rank]
        packed, arrived = (
            sum(move.most(nrounds, terms.order) for move in moves) for moves in (elsewhere, self._received)
        )
        nbytes = _GROWTH * packed * terms.dtype.itemsize
        if self._arrives:
            nbytes += arrived * (terms.dtype.itemsize + terms.out_dtype.itemsize)
        return nbytes + arrived * (self._fold.working.itemsize if self._fold else 0)

    def _made(self, at: int, *, copies: bool) -> "_Round":
        """Return a round of this rank's moves: out of its array, into the result or an array of arrivals, and these.

        ``copies``: NumPy copies what the rank keeps.
        """
        axes, order = self._terms.axes, self._terms.order
        more: Any = {"nranks": self._comm.size, "itemsize": self._terms.dtype.itemsize, "order": order}
        gives, takes = (
            [
                part
                for move in moves
                if not (copies and move.peer == self._comm.rank)
                and (part := move.part(at, self.nrounds, order))
            ]
            for moves in (self._sent, self._received)
        )
        given = TypedMoves(self._shapes[0], axes, gives, **more)
        if not self._arrives:
            return given, TypedMoves(self._shapes[1], range(len(axes)), takes, **more), None
        arrivals = Arrivals(takes, self._source, order, self._fold)
        return given, TypedMoves([arrivals.nelements], [0], arrivals.packed, **more), arrivals

    def _moving(self, given: Array, result: Array, exchange: Any) -> Iterator[Any]:
        """Move round after round by a collective, whose answers are yielded; then it has ended."""
        copies = bool(self._kept) and isinstance(result, np.ndarray)
        if copies:
            result[self._kept[1]] = given.transpose(self._terms.axes)[self._kept[0]]
        for at in range(self.nrounds):
            made = self._only.get(copies) or self._made(at, copies=copies)
            if self.nrounds == 1:
                self._only[copies] = made
            sent, received, arrivals = made
            taken = np.empty(arrivals.nelements, self._terms.dtype) if arrivals else result
            with regions[self._name]:  # ledger, traces and errors know the exchange by it
                running = exchange(sent.spec(given), received.spec(taken))
            yield running
            if arrivals:
                arrivals.put(taken, result)
            del taken  # before the next is made
            if self.nrounds > 1:
                sent.free()
                received.free()

    def __call__(self, x: Array | None, out: Array | None = None) -> Array:
        """Return the array in the target distribution; collective.

        Args:
            x: This rank's local array of the source distribution, with any strides; None will do where that has no element.
            out: Array for the result, of the target's local shape, with any strides; it may overlap ``x``. None: a new one.

        Raises:
            ArgumentError: On this rank alone: an array has another shape or element type, or the plan was freed.
        """
        given, result = self._buffers(x, out)
        for _ in self._moving(given, result, self._comm.Alltoallw):
            pass
        return result

    def start(self, x: Array | None, out: Array | None = None) -> "Running":
        """Begin to move an array, and return the transfer in flight, whose `wait` returns the result.

        Until then the program changes neither array. Arguments and errors are those of a call. Of several rounds the first begins; the
        others follow in `wait`, for which all ranks then have one order, too.
        """
        given, result = self._buffers(x, out)
        running = Running(self, self._moving(given, result, self._comm.Ialltoallw), result)
        self._running.append(running)
        return running

    def _buffers(self, x: Array | None, out: Array | None) -> tuple[Array, Array]:
        """Return the array to send from, which may be a copy, and the result."""
        where = f"rank {self._comm.rank}: Redistribution needs"
        if self._freed:
            raise ArgumentError(f"{where} to be in use, was freed")
        try:
            on_gpu = self._checked or check_arrays(x, out, self._shapes, self._terms)
        except ArgumentError as error:
            raise type(error)(f"{where} {error}") from None
        order: Any = self._terms.order
        given = np.empty(self._shapes[0], self._terms.dtype) if x is None else x
        if out is None and on_gpu[0] is not None:
            result = _new_on_gpu(x, self._shapes[1], order, where)
        else:
            result = np.empty(self._shapes[1], self._terms.out_dtype, order) if out is None else out
        on_host = isinstance(given, np.ndarray) and isinstance(result, np.ndarray)
        overlap = on_host and np.may_share_memory(given, result)
        return np.array(given, order=order) if overlap else given, result

    def Free(self) -> None:
        """Wait for transfers that run, and give back the datatypes; arrays stay. A second time does nothing."""
        for running in self._running[:]:
            running.wait()
        self._freed = True
        for given, taken, _ in self._only.values():
            given.free()
            taken.free()
        self._only.clear()

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

    def __init__(self, plan: Redistribution, rounds: Iterator[MPI.Request], result: Array) -> None:
        self._plan = plan
        self._rounds = rounds
        self._request = next(rounds, None)
        self._result = result

    def wait(self) -> Array:
        """Wait until this rank has all its elements, and the others have theirs from it; return the result."""
        while self._request:
            self._request.Wait()
            self._request = next(self._rounds, None)
        if self in self._plan._running:
            self._plan._running.remove(self)
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
    memory: int | str | None = None,
    op: MPI.Op | ReduceOp | None = None,
    dtype: Any = None,
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
        memory: Most extra memory that the call takes on a rank, as in `Redistribution`.
        op: Operator that combines what several ranks have of an element, as in `Redistribution`.
        dtype: Element type of the result, as ``out_dtype`` of `Redistribution`. None: that of ``x``.

    Raises:
        ArgumentError: On every rank, before any message leaves: an argument cannot be used, or ranks differ.
    """
    given = getattr(out if x is None and dtype is None else x, "dtype", None)
    with _OneCall(comm, Terms(source, target, axes, order, memory, op, given, dtype), x, out) as plan:
        return plan(x, out)


class _OneCall(Redistribution):
    """A plan for one call, the arrays of which ranks check with it."""

    def __init__(self, comm: Any, terms: Terms, x: Any, out: Any) -> None:
        on, found = _communicator(comm), list[OnGpu]()

        def check(known: Terms) -> None:
            found.append(check_arrays(x, out, known.local_shapes(on.rank), known))

        self._plan(on, "redistribute", agreed_terms(on, "redistribute", terms, check))
        self._checked = found[0]


def _new_on_gpu(like: Any, shape: tuple[int, ...], order: str, where: str) -> Any:
    """Return a new array of CuPy where the given one is CuPy's."""
    if type(like).__module__.partition(".")[0] != "cupy":
        raise ArgumentError(
            f"{where} out= where x is on a GPU and not an array of CuPy, got a {type(like).__name__}"
        )
    import cupy

    with cupy.cuda.Device(like.device.id):
        return cupy.empty(shape, like.dtype, order=order)


def _communicator(comm: Any) -> Communicator:
    return comm if isinstance(comm, Communicator) else Communicator(comm)
