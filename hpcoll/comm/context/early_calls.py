"""Early calls: the first ones on a communicator whose ranks know each other, which the MPI library makes.

To plan takes longer than to run a call that is made once. So a communicator that was made of another gets its context by a later call, and
one that is freed before then never has it. In the first use the ranks agree that all make the same call; else hpcoll compares them as ever.
Calls whose result could have other bits by the library's way are not among these.
"""

import zlib
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.methods import FOUND_BY, METHODS, NUMBERS
from hpcoll.runtime.engine import call_cache
from hpcoll.runtime.engine.entry import run_cached

# calls of a communicator up to which one of that method is early; of others the first is
_MOST = {"Alltoallw": 4}
_FEW = 64  # ranks up to which types are looked at
_TYPES = frozenset("bBhHiIlLqQfdFD")
_OPS = {id(op): number for number, op in enumerate((MPI.SUM, MPI.PROD, MPI.BAND, MPI.BOR, MPI.MIN, MPI.MAX))}


class NoCalls(dict[Any, int]):
    """The call cache of a communicator without a context: nothing is ever found there."""

    def __missing__(self, key: Any) -> int:
        return call_cache.no_calls().address


class EarlyCalls:
    """The calls of a communicator that has no context, with what methods ask of one.

    Args:
        comm: The communicator.
        agree: Says whether all ranks are about to make the same call, given its number; collective.

    Attributes:
        rank: Rank of this process.
        plain: Call cache, as ``ordered`` and ``tables``.
        token: The byte that a barrier passes round.
    """

    plain = ordered = tables = NoCalls()
    token = np.zeros(1, np.uint8)

    def __init__(self, comm: Any, agree: Callable[[MPI.Intracomm, int], bool]) -> None:
        self._comm, self._agree = comm, agree
        self.rank = comm.rank

    def run(
        self, status: int, key: call_cache.Key, arguments: tuple[Any, ...], *buffers: Any, stream: Any = None
    ) -> None:
        """Make a call; arguments as of `hpcoll.comm.context.context.Context.run`."""
        comm = self._comm
        if stream is None and self._made(*call_cache.whole(key)[:2], arguments):
            comm._early += 1
            return
        context = comm._context
        send, recv, op, _ = FOUND_BY[call_cache.whole(key)[0]](arguments, context.caller)
        status = run_cached(context.tables[key], send, recv, op)
        if status:
            context.run(status, key, arguments, send, recv, stream=stream)

    def _made(self, method: str, root: int, arguments: tuple[Any, ...]) -> bool:
        """Let the library make a call, if it may be early and all ranks make the same; say so."""
        comm = self._comm
        if comm._early >= _MOST.get(method, 1) or method not in _SAME:
            return False
        facts = _SAME[method](arguments, comm.size, comm.rank)
        if facts is None:
            return False
        nbytes, *_ = facts
        number = NUMBERS[method] << 32 | zlib.crc32(repr((facts, root)).encode())
        if not self._agree(comm, 1 + number):
            return False
        begun = perf_counter_ns()
        getattr(MPI.Intracomm, method)(comm, *arguments)
        account = comm.ledger.library(
            METHODS[method].collective, "", "the first on its communicator", comm.rank
        )
        account.note(nbytes, perf_counter_ns() - begun)
        return True


# Of a call the bytes of its message, and what is equal on all ranks; None where it is not plain enough.
def _plain(array: Any) -> bool:
    return (
        type(array) is np.ndarray
        and array.dtype.char in _TYPES
        and array.dtype.isnative
        and array.flags.c_contiguous
    )


def _pair(send: Any, recv: Any) -> bool:
    return (
        _plain(send)
        and _plain(recv)
        and send.dtype == recv.dtype
        and recv.flags.writeable
        and not np.may_share_memory(send, recv)
    )


def _broadcast(arguments: tuple[Any, ...], nranks: int, rank: int) -> tuple[int, ...] | None:
    buffer, root = arguments
    good = (
        type(root) is int
        and 0 <= root < nranks
        and _plain(buffer)
        and (rank == root or buffer.flags.writeable)
    )
    return (buffer.nbytes,) if good else None


def _reduction(arguments: tuple[Any, ...], nranks: int, rank: int) -> tuple[Any, ...] | None:
    send, recv, op = arguments
    if not (id(op) in _OPS and _pair(send, recv) and send.size == recv.size):
        return None
    adds = op is MPI.SUM or op is MPI.PROD
    if recv.dtype.char in "fdFD" and (nranks > 2 or not adds):
        return None
    return recv.nbytes, recv.dtype.char, _OPS[id(op)]


def _gathering(arguments: tuple[Any, ...], nranks: int, rank: int) -> tuple[Any, ...] | None:
    send, recv = arguments
    return (send.nbytes,) if _pair(send, recv) and recv.size == nranks * send.size else None


def _exchange(arguments: tuple[Any, ...], nranks: int, rank: int) -> tuple[Any, ...] | None:
    send, recv = arguments
    good = _pair(send, recv) and recv.size == send.size and not send.size % nranks
    return (send.nbytes,) if good else None


def _typed_exchange(arguments: tuple[Any, ...], nranks: int, rank: int) -> tuple[int, ...] | None:
    send, recv = arguments
    good = (
        nranks <= _FEW
        and _within(send, nranks)
        and _within(recv, nranks)
        and recv[0].flags.writeable
        and not np.may_share_memory(send[0], recv[0])
    )
    return (0,) if good else None


def _within(spec: Any, nranks: int) -> bool:
    """Say whether blocks with a datatype each are inside of their array, so that the library may be given them."""
    if not (
        type(spec) in (list, tuple)
        and len(spec) in (2, 3)
        and type(spec[0]) is np.ndarray
        and spec[0].flags.forc
    ):
        return False
    types, places = spec[-1], spec[1] if len(spec) == 3 else ([1] * nranks, [0] * nranks)
    every = (*places, types) if type(places) in (list, tuple) and len(places) == 2 else ()
    if not every or not all(type(one) in (list, tuple) and len(one) == nranks for one in every):
        return False
    counts, displs = places
    if not all(type(number) is int for number in (*counts, *displs)):
        return False
    for datatype, count, displ in zip(types, counts, displs):
        if not isinstance(datatype, MPI.Datatype) or datatype == MPI.DATATYPE_NULL:
            return False
        true_lb, true_extent = datatype.Get_true_extent()
        first, last = displ + true_lb, displ + true_lb + true_extent
        if count > 1:
            extent = datatype.Get_extent()[1]
            first, last = first + min(0, (count - 1) * extent), last + max(0, (count - 1) * extent)
        if count < 0 or (count and not 0 <= first <= last <= spec[0].nbytes):
            return False
    return True


_Facts = Callable[[tuple[Any, ...], int, int], tuple[Any, ...] | None]
# Not of Barrier: behind it may come calls that the library takes in any order, such as Iagree.
_SAME: dict[str, _Facts] = {
    "Bcast": _broadcast,
    "Allreduce": _reduction,
    "Allgather": _gathering,
    "Alltoall": _exchange,
    "Alltoallw": _typed_exchange,
}
