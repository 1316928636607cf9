"""The table of MPI methods: what each of mpi4py's upper-case collectives takes, means and moves.

One row per method, read by all that must know: `Context` describes calls by it, host mirrors and GPU staging ask which buffers count on a
rank, compiled calls of the MPI library ask for the arguments of the C function, `hpcoll bench` asks how a collective is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments import data_movement, reductions
from hpcoll.comm.arguments.call import Call, check_root
from hpcoll.comm.arguments.memory import as_array, find_gpu_array
from hpcoll.runtime.engine.object_layout import HOLDERS
from hpcoll.runtime.gpu.arrays import DeviceArray
from hpcoll.runtime.program.call_fields import BLOCKS, MANY, ONE


@dataclass(frozen=True)
class Caller:
    """Who calls: what describing a call needs to know of the communicator.

    Attributes:
        comm: The MPI library's communicator.
        rank, nranks: Of the communicator.
        token: The byte that a barrier passes round.
        allgather: Every rank's count, for a Reduce_scatter that leaves them out; collective.
        one_fold: An algorithm will be picked that combines all contributions in one reduction on the GPU.
    """

    comm: MPI.Intracomm
    rank: int
    nranks: int
    token: np.ndarray
    allgather: Callable[[int], list[int]] = lambda count: [count]
    one_fold: bool = False

    def root(self, root: Any) -> int:
        """``root`` as an int in ``[0, nranks)``; raises `hpcoll.base.errors.ArgumentError`."""
        return check_root(root, self.nranks, self.rank)


Describe = Callable[..., Call | None]
_PAIR = ("sendbuf", "recvbuf")
_VECTORS, _BLOCKS = "send recv count type op comm", "send count type recv count type comm"
_ROOTED_BLOCKS = "send count type recv count type root comm"
_ROOTED_VECTOR = "send recv count type op root comm"


class Method(NamedTuple):
    """One upper-case collective of mpi4py.

    Attributes:
        name: As mpi4py has it.
        collective: What it is, in `hpcoll.schedules.collectives`.
        arguments: Its positional arguments, in order.
        describe: Makes a `Call` of a `Caller` and the positional arguments; None: only the MPI library can serve the call. Raises
            ArgumentError.
        c_arguments: Those of the C function, ``count`` elements of one ``type`` in each buffer; empty where that needs more than these.
        at_root: The buffer that counts at the root alone, or empty.
        fills: Nothing of a receive buffer that is the whole spec stays as it was.
        one_fold: Half types may travel as they are, where one reduction reads all contributions.
        holds: What sendbuf and recvbuf hold: kinds of `hpcoll.runtime.program.call_fields`.
    """

    name: str
    collective: str
    arguments: tuple[str, ...]
    describe: Describe
    c_arguments: str = ""
    at_root: str = ""
    fills: bool = True
    one_fold: bool = False
    holds: tuple[int, int] = (ONE, ONE)

    def find(self, argument: str, arguments: Sequence[Any], default: Any = None) -> Any:
        """An argument by its name, among positional ones that may be too few."""
        at = self.arguments.index(argument) if argument in self.arguments else len(arguments)
        return arguments[at] if at < len(arguments) else default

    def buffers(self, arguments: Sequence[Any], rank: int) -> tuple[int | None, int | None]:
        """Positions of the buffers that this rank sends from and receives into; None: it does not."""
        if not arguments:
            return None, None
        root = rank == self.find("root", arguments, 0)
        if self.arguments[0] == "buf":
            return (0, None) if root else (None, 0)
        return (0 if root or self.at_root != "sendbuf" else None), (1 if root or self.at_root != "recvbuf" else None)

    def meant(self, arguments: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
        """The arguments with ``MPI.IN_PLACE`` where None stands for it, as in mpi4py, and arrays for what exports host memory by DLPack."""
        for at in self.buffers(arguments, rank):
            if at is not None and (array := as_array(arguments[at])) is not arguments[at]:
                arguments = *arguments[:at], array, *arguments[at + 1 :]
        if self.arguments[:2] != _PAIR or arguments[self.in_place_at] is not None:
            return arguments
        if self.at_root and rank != self.find("root", arguments):
            return arguments
        return *arguments[: self.in_place_at], MPI.IN_PLACE, *arguments[self.in_place_at + 1 :]

    def gpu_arrays(self, arguments: Sequence[Any], rank: int) -> dict[int, DeviceArray]:
        """The GPU arrays that this rank sends from and receives into, by position."""
        found: dict[int, DeviceArray] = {}
        for position in self.buffers(arguments, rank):
            if position is not None and type(arguments[position]) is not np.ndarray:
                array = find_gpu_array(arguments[position])
                if array is not None:
                    found[position] = array
        return found

    @property
    def in_place_at(self) -> int:
        """Position of the buffer that ``MPI.IN_PLACE`` stands for."""
        return int(self.at_root == "sendbuf")


def _combined(collective: str) -> Describe:
    """Describe a reduction of equal blocks, with or without a root."""
    return lambda me, send, recv, op, root=0: reductions.reduction(
        collective, send, recv, op, me.root(root), me.rank, me.nranks, me.one_fold
    )


def _exscan(me: Caller, *given: Any) -> Call | None:
    call = _combined("exscan")(me, *given)
    return call._replace(finish=None) if me.rank == 0 and call is not None else call


def _reduce_scatter(me: Caller, send: Any, recv: Any, counts: Any, op: Any) -> Call | None:
    return reductions.reduction_of_blocks(send, recv, counts, op, me.rank, me.nranks, me.allgather)


def _barrier(me: Caller) -> Call:
    address = me.token.ctypes.data
    return Call("barrier", address, address, 1, me.token.dtype, in_place=True)


def _moved(move: Callable[..., Call | None]) -> Describe:
    """Describe by a function of `data_movement` without a root."""
    return lambda me, *buffers: move(*buffers, me.rank, me.nranks)


def _rooted(move: Callable[..., Call | None]) -> Describe:
    return lambda me, *given: move(*given[:-1], me.root(given[-1]), me.rank, me.nranks)


_OPERATED, _ROOTED = (*_PAIR, "op"), (*_PAIR, "root")
METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("Allreduce", "allreduce", _OPERATED, _combined("allreduce"), _VECTORS, one_fold=True),
        Method("Reduce", "reduce", (*_OPERATED, "root"), _combined("reduce"), _ROOTED_VECTOR, "recvbuf", one_fold=True),
        Method("Bcast", "bcast", ("buf", "root"), _rooted(data_movement.bcast), "recv count type root comm"),
        Method(
            "Reduce_scatter_block", "reduce_scatter", _OPERATED, _combined("reduce_scatter"), _VECTORS, one_fold=True, holds=(BLOCKS, ONE)
        ),
        Method(
            "Reduce_scatter", "reduce_scatter", ("sendbuf", "recvbuf", "recvcounts", "op"), _reduce_scatter, fills=False, holds=(MANY, ONE)
        ),
        Method("Allgather", "allgather", _PAIR, _moved(data_movement.allgather), _BLOCKS, holds=(ONE, BLOCKS)),
        Method("Allgatherv", "allgather", _PAIR, _moved(data_movement.allgatherv), fills=False, holds=(ONE, MANY)),
        Method("Gather", "gather", _ROOTED, _rooted(data_movement.gather), _ROOTED_BLOCKS, "recvbuf", holds=(ONE, BLOCKS)),
        Method("Gatherv", "gather", _ROOTED, _rooted(data_movement.gatherv), at_root="recvbuf", fills=False, holds=(ONE, MANY)),
        Method("Scatter", "scatter", _ROOTED, _rooted(data_movement.scatter), _ROOTED_BLOCKS, "sendbuf", holds=(BLOCKS, ONE)),
        Method("Scatterv", "scatter", _ROOTED, _rooted(data_movement.scatterv), at_root="sendbuf", fills=False, holds=(MANY, ONE)),
        Method("Alltoall", "alltoall", _PAIR, _moved(data_movement.alltoall), _BLOCKS, holds=(BLOCKS, BLOCKS)),
        Method("Alltoallv", "alltoall", _PAIR, _moved(data_movement.alltoallv), fills=False, holds=(MANY, MANY)),
        Method("Barrier", "barrier", (), _barrier, "comm"),
        Method("Scan", "scan", _OPERATED, _combined("scan"), _VECTORS),
        Method("Exscan", "exscan", _OPERATED, _exscan, _VECTORS, fills=False),
    )
}  # fmt: skip


def with_counts(sendbuf: Any, recvcounts: Any) -> Any:
    """A Reduce_scatter's sendbuf as a spec that has its counts; None, which is never found, where compiled code cannot read that."""
    if recvcounts is None or sendbuf is MPI.IN_PLACE:
        return None
    if type(sendbuf) is np.ndarray or type(sendbuf) in HOLDERS:
        return sendbuf, recvcounts, None, None
    if type(sendbuf) in (list, tuple) and len(sendbuf) == 2 and isinstance(sendbuf[1], MPI.Datatype | str):
        return sendbuf[0], recvcounts, None, sendbuf[1]
    return None


def _found_by(row: Method) -> Callable[[tuple[Any, ...], Caller], tuple[Any, ...]]:
    """Return a function from a call's arguments to those by which `hpcoll.runtime.engine.compiled.call_lookup` finds the call.

    They are what is sent, or ``MPI.IN_PLACE``; what is received; the operator, or None; and the root, or 0.
    """
    if row.name == "Barrier":
        return lambda given, me: (MPI.IN_PLACE, me.token, None, 0)
    if row.name == "Bcast":
        return lambda given, me: (MPI.IN_PLACE, given[0], None, given[1])
    if row.name == "Reduce_scatter":
        return lambda given, me: (with_counts(given[0], given[2]), given[1], given[3], 0)
    if not row.at_root:
        rest = (0,) if "op" in row.arguments else (None, 0)
        return lambda given, me: given + rest
    if MANY in row.holds:
        return lambda given, me: (given[0], given[1], None, given[2])
    own = 0 if row.at_root == "recvbuf" else 1

    def rooted(given: tuple[Any, ...], me: Caller) -> tuple[Any, ...]:
        send, recv, root = given[0], given[1], given[-1]
        op = given[2] if len(given) == 4 else None
        if me.rank != root:
            return MPI.IN_PLACE, given[own], op, root
        return (MPI.IN_PLACE, send, op, root) if recv is MPI.IN_PLACE else (send, recv, op, root)

    return rooted


FOUND_BY = {name: _found_by(row) for name, row in METHODS.items()}
NUMBERS = {name: number for number, name in enumerate(METHODS, 1)}  # by which compiled code knows them


def _only_native(*arguments: Any) -> None:
    """No `Call`: the MPI library serves it."""


def method(name: str) -> Method:
    """The row of a method; one that only the MPI library serves (``"Neighbor_alltoallv"``) sends its first buffer and fills its second."""
    return METHODS.get(name) or Method(name, "", _PAIR, _only_native, fills=False)


BY_COLLECTIVE = {row.collective: row for row in METHODS.values() if row.c_arguments}  # the method of equal blocks
