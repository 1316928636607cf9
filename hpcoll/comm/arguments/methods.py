"""The table of methods: arguments and meaning of each of mpi4py's upper-case collectives.

`Context` describes calls by it. Host mirrors and GPU staging ask it which buffers count on a rank, and compiled calls of the MPI library
which arguments the C function has.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import HpcollError
from hpcoll.comm.arguments import reductions
from hpcoll.comm.arguments.call import Call, check_root
from hpcoll.comm.arguments.cells import OBJECTS, call_of_cells, collective_of
from hpcoll.comm.arguments.data_movement import alltoall, bcast, gather, scatter
from hpcoll.comm.arguments.datatypes import with_known_datatypes
from hpcoll.comm.arguments.memory import as_array, find_gpu_array
from hpcoll.comm.arguments.neighbours import neighbours, typed_neighbours
from hpcoll.comm.arguments.typed_blocks import typed_alltoall
from hpcoll.runtime.engine.object_layout import is_holder
from hpcoll.runtime.gpu.arrays import DeviceArray
from hpcoll.runtime.gpu.cuda import driver
from hpcoll.runtime.program.call_fields import BLOCKS, MANY, ONE, TYPED
from hpcoll.schedules.graph import Graph


@dataclass(frozen=True)
class Caller:
    """The communicator as far as describing a call asks for it.

    Attributes:
        token: The byte that a barrier passes round.
        allgather: Gathers every rank's count, for a Reduce_scatter that leaves them out; collective.
        graph: Finds the graph of the communicator's topology, None where hpcoll has no schedules for it.
    """

    comm: MPI.Intracomm
    rank: int
    nranks: int
    token: np.ndarray
    allgather: Callable[[int], list[int]] = lambda count: [count]
    graph: Callable[[], Graph | None] = lambda: None

    def root(self, root: Any) -> int:
        """Return ``root`` as an int in ``[0, nranks)``; raise `hpcoll.base.errors.ArgumentError` where it is none."""
        return check_root(root, self.nranks, self.rank)


Describe = Callable[..., Call | None]
_PAIR = ("sendbuf", "recvbuf")
_VECTORS, _BLOCKS = "send recv count type op comm", "send count type recv count type comm"
_ROOTED_BLOCKS = "send count type recv count type root comm"
_ROOTED_VECTOR = "send recv count type op root comm"


class Method(NamedTuple):
    """An upper-case collective of mpi4py.

    Attributes:
        collective: Name in `hpcoll.schedules.collectives`.
        arguments: Positional arguments, in order.
        describe: Makes a `Call` of a `Caller` and the positional arguments; None where only the MPI library can serve the call. Raises
            ArgumentError.
        c_arguments: Arguments of the C function, ``count`` elements of one ``type`` in each buffer; empty where that needs more.
        at_root: The buffer that counts at the root alone, or empty.
        fills: Nothing of a receive buffer that is the whole spec stays as it was.
        one_fold: Half types may travel as they are, where one reduction reads all contributions.
        holds: Contents of sendbuf and recvbuf: kinds of `hpcoll.runtime.program.call_fields`.
        root_at: Position of the root among the arguments, or None.
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
    root_at: int | None = None

    def find(self, argument: str, arguments: Sequence[Any], default: Any = None) -> Any:
        """Return an argument by its name, among positional ones that may be too few."""
        at = self.arguments.index(argument) if argument in self.arguments else len(arguments)
        return arguments[at] if at < len(arguments) else default

    def buffers(self, arguments: Sequence[Any], rank: int) -> tuple[int | None, int | None]:
        """Return the positions of the buffers that this rank sends from and receives into; None where it does not."""
        if not arguments:
            return None, None
        if self.root_at is None:
            return 0, 1
        root = rank == (arguments[self.root_at] if self.root_at < len(arguments) else 0)
        if self.arguments[0] == "buf":
            return (0, None) if root else (None, 0)
        return (0 if root or self.at_root != "sendbuf" else None), (
            1 if root or self.at_root != "recvbuf" else None
        )

    def meant(self, arguments: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
        """Return the arguments with ``MPI.IN_PLACE`` for None, as in mpi4py, and arrays for objects that export host memory by DLPack.

        Datatypes that are like earlier ones are replaced by these, but in reductions, whose operators see them.
        """
        if all(type(one) is np.ndarray for one in arguments[:2]):
            return arguments
        for at in self.buffers(arguments, rank):
            if at is not None and (array := as_array(arguments[at])) is not arguments[at]:
                arguments = *arguments[:at], array, *arguments[at + 1 :]
        if "op" not in self.arguments:
            arguments = with_known_datatypes(arguments)
        if self.arguments[:2] != _PAIR or arguments[self.in_place_at] is not None or self.neighbours:
            return arguments
        if self.at_root and rank != self.find("root", arguments):
            return arguments
        return *arguments[: self.in_place_at], MPI.IN_PLACE, *arguments[self.in_place_at + 1 :]

    def gpu_arrays(self, arguments: Sequence[Any], rank: int) -> dict[int, DeviceArray]:
        """Return the GPU arrays that this rank sends from and receives into, by position."""
        found: dict[int, DeviceArray] = {}
        if driver() is None:
            return found
        for position in self.buffers(arguments, rank):
            if position is not None and type(arguments[position]) is not np.ndarray:
                array = find_gpu_array(arguments[position])
                if array is not None:
                    found[position] = array
        return found

    @property
    def neighbours(self) -> bool:
        """Say whether only communicators with a topology have the method."""
        return self.name.startswith("Neighbor_")

    @property
    def in_place_at(self) -> int:
        """Position of the buffer that ``MPI.IN_PLACE`` stands for."""
        return int(self.at_root == "sendbuf")


def _reduced(collective: str) -> Describe:
    """Describe a reduction of equal blocks, with or without a root."""
    return lambda me, send, recv, op, root=0: reductions.reduction(
        collective, send, recv, op, me.root(root), me.rank, me.nranks
    )


def _exscan(me: Caller, *given: Any) -> Call | None:
    call = _reduced("exscan")(me, *given)
    return call._replace(finish=None) if me.rank == 0 and call is not None else call


def _reduce_scatter(me: Caller, send: Any, recv: Any, counts: Any, op: Any) -> Call | None:
    return reductions.reduction_of_blocks(send, recv, counts, op, me.rank, me.nranks, me.allgather)


def _barrier(me: Caller) -> Call:
    address = MPI.Get_address(me.token)
    return Call("barrier", address, address, 1, me.token.dtype, in_place=True)


def _gathered(collective: str, *, varies: bool = False) -> Describe:
    return lambda me, send, recv, root=0: gather(
        collective, send, recv, me.root(root), me.rank, me.nranks, varies=varies
    )


def _scattered(*, varies: bool = False) -> Describe:
    return lambda me, send, recv, root: scatter(send, recv, me.root(root), me.rank, me.nranks, varies=varies)


def _alltoall(*, varies: bool = False) -> Describe:
    return lambda me, send, recv: alltoall(send, recv, me.rank, me.nranks, varies=varies)


def _typed_alltoall(me: Caller, send: Any, recv: Any) -> Call | None:
    return typed_alltoall(send, recv, me.rank, me.nranks)


def _neighbours(collective: str, *, varies: bool = False) -> Describe:
    def describe(me: Caller, send: Any, recv: Any) -> Call | None:
        graph = me.graph()
        return None if graph is None else neighbours(collective, send, recv, me.rank, graph, varies=varies)

    return describe


def _typed_neighbours(me: Caller, send: Any, recv: Any) -> Call | None:
    graph = me.graph()
    return None if graph is None else typed_neighbours(send, recv, me.rank, graph)


_OPERATED, _ROOTED = (*_PAIR, "op"), (*_PAIR, "root")
_ROWS = (
    Method("Allreduce", "allreduce", _OPERATED, _reduced("allreduce"), _VECTORS, one_fold=True),
    Method(
        "Reduce", "reduce", (*_OPERATED, "root"), _reduced("reduce"), _ROOTED_VECTOR, "recvbuf", one_fold=True
    ),
    Method(
        "Bcast",
        "bcast",
        ("buf", "root"),
        lambda me, buf, root: bcast(buf, me.root(root), me.rank, me.nranks),
        "recv count type root comm",
    ),
    Method(
        "Reduce_scatter_block",
        "reduce_scatter",
        _OPERATED,
        _reduced("reduce_scatter"),
        _VECTORS,
        one_fold=True,
        holds=(BLOCKS, ONE),
    ),
    Method(
        "Reduce_scatter",
        "reduce_scatter",
        (*_PAIR, "recvcounts", "op"),
        _reduce_scatter,
        fills=False,
        holds=(MANY, ONE),
    ),
    Method("Allgather", "allgather", _PAIR, _gathered("allgather"), _BLOCKS, holds=(ONE, BLOCKS)),
    Method(
        "Allgatherv", "allgather", _PAIR, _gathered("allgather", varies=True), fills=False, holds=(ONE, MANY)
    ),
    Method("Gather", "gather", _ROOTED, _gathered("gather"), _ROOTED_BLOCKS, "recvbuf", holds=(ONE, BLOCKS)),
    Method(
        "Gatherv",
        "gather",
        _ROOTED,
        _gathered("gather", varies=True),
        at_root="recvbuf",
        fills=False,
        holds=(ONE, MANY),
    ),
    Method("Scatter", "scatter", _ROOTED, _scattered(), _ROOTED_BLOCKS, "sendbuf", holds=(BLOCKS, ONE)),
    Method(
        "Scatterv",
        "scatter",
        _ROOTED,
        _scattered(varies=True),
        at_root="sendbuf",
        fills=False,
        holds=(MANY, ONE),
    ),
    Method("Alltoall", "alltoall", _PAIR, _alltoall(), _BLOCKS, holds=(BLOCKS, BLOCKS)),
    Method("Alltoallv", "alltoall", _PAIR, _alltoall(varies=True), fills=False, holds=(MANY, MANY)),
    Method("Alltoallw", "alltoall", _PAIR, _typed_alltoall, fills=False, holds=(TYPED, TYPED)),
    Method(
        "Neighbor_allgather",
        "neighbor_allgather",
        _PAIR,
        _neighbours("neighbor_allgather"),
        _BLOCKS,
        fills=False,
        holds=(ONE, BLOCKS),
    ),
    Method(
        "Neighbor_allgatherv",
        "neighbor_allgather",
        _PAIR,
        _neighbours("neighbor_allgather", varies=True),
        fills=False,
        holds=(ONE, MANY),
    ),
    Method(
        "Neighbor_alltoall",
        "neighbor_alltoall",
        _PAIR,
        _neighbours("neighbor_alltoall"),
        _BLOCKS,
        fills=False,
        holds=(BLOCKS, BLOCKS),
    ),
    Method(
        "Neighbor_alltoallv",
        "neighbor_alltoall",
        _PAIR,
        _neighbours("neighbor_alltoall", varies=True),
        fills=False,
        holds=(MANY, MANY),
    ),
    Method(
        "Neighbor_alltoallw", "neighbor_alltoall", _PAIR, _typed_neighbours, fills=False, holds=(TYPED, TYPED)
    ),
    Method("Barrier", "barrier", (), _barrier, "comm"),
    Method("Scan", "scan", _OPERATED, _reduced("scan"), _VECTORS),
    Method("Exscan", "exscan", _OPERATED, _exscan, _VECTORS, fills=False),
)


def _of_cells(name: str) -> Method:
    """Return the row of a method for objects, of whose arguments the root and the operator's number tell one call from another."""

    def describe(me: Caller, root: int = 0, number: int = 0) -> Call:
        return call_of_cells(name, me.root(root), me.rank, me.nranks)._replace(operator=number)

    return Method(name, collective_of(name), ("root",), describe, root_at=0)


OBJECT_METHODS = {name: _of_cells(name) for name in OBJECTS}
METHODS = {
    row.name: row._replace(root_at=row.arguments.index("root") if "root" in row.arguments else None)
    for row in _ROWS
}


def with_counts(sendbuf: Any, recvbuf: Any, recvcounts: Any) -> tuple[Any, Any]:
    """Return the buffers of a Reduce_scatter with its counts in the spec of the one that is sent, or in place received."""
    if sendbuf is MPI.IN_PLACE:
        return sendbuf, _with_counts(recvbuf, recvcounts)
    return _with_counts(sendbuf, recvcounts), recvbuf


def _with_counts(spec: Any, counts: Any) -> Any:
    """Return a spec with counts: of four items where they must fill the array, else of three, whose second one is a pair.

    It is None, which is never found, where compiled code cannot read that.
    """
    if counts is None:
        return None
    if isinstance(spec, np.ndarray) or is_holder(spec):
        return spec, counts, None, None
    if type(spec) not in (list, tuple) or not 2 <= len(spec) <= 3:
        return None
    if len(spec) == 2 and isinstance(spec[1], MPI.Datatype | str):
        return spec[0], counts, None, spec[1]
    if type(spec[1]) is int and _add_up(counts, spec[1]):
        return spec[0], (counts, None), None if len(spec) == 2 else spec[2]
    return None


def _add_up(counts: Any, count: int) -> bool:
    """Say whether counts in a list or tuple are all of the elements that a spec names."""
    return type(counts) in (list, tuple) and all(type(one) is int for one in counts) and sum(counts) == count


def _found_by(row: Method) -> Callable[[tuple[Any, ...], Caller], tuple[Any, ...]]:
    """Return a function from a call's arguments to those by which `hpcoll.runtime.engine.compiled.call_lookup` finds the call.

    These are the send buffer, or ``MPI.IN_PLACE``; the receive buffer; the operator, or None; and the root, or 0.
    """
    if row.name == "Barrier":
        return lambda given, me: (MPI.IN_PLACE, me.token, None, 0)
    if row.name == "Bcast":
        return lambda given, me: (MPI.IN_PLACE, given[0], None, given[1])
    if row.name == "Reduce_scatter":
        return lambda given, me: (*with_counts(*given[:3]), given[3], 0)
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
        return (MPI.IN_PLACE, send, op, root) if own and recv is MPI.IN_PLACE else (send, recv, op, root)

    return rooted


FOUND_BY = {name: _found_by(row) for name, row in METHODS.items()}
NUMBERS = {name: number for number, name in enumerate(METHODS, 1)}  # by which compiled code knows them


def row_of(name: str) -> Method:
    """Return the row of a method, on buffers or on objects."""
    return METHODS.get(name) or OBJECT_METHODS[name]


def described(name: str, arguments: tuple[Any, ...], me: Caller) -> Call | None:
    """Return a call of a method as far as that can be said without asking other ranks; None where it cannot."""
    row = row_of(name)
    with suppress(HpcollError, MPI.Exception, TypeError):
        if not row.gpu_arrays(arguments, me.rank) and (name != "Reduce_scatter" or arguments[2] is not None):
            return row.describe(me, *row.meant(arguments, me.rank))
    return None


# the method of equal blocks
BY_COLLECTIVE = {row.collective: row for row in METHODS.values() if row.c_arguments}
