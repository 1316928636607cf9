"""`Communicator`: mpi4py's Intracomm with hpcoll's collectives; methods that make communicators keep the type.

Names, argument order, in-place rules and defaults are mpi4py's. Whatever hpcoll does not speed up (point to point, derived
reductions, neighbourhood collectives, windows, files) is inherited and goes to the MPI library unchanged; GPU arrays do
so where it takes them, and through host memory elsewhere (`hpcoll.comm.methods.point_to_point`).
"""

import copyreg
from collections.abc import Sequence
from functools import wraps
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import quoted
from hpcoll.comm.context.attach import context_of, renewed
from hpcoll.comm.context.shared_arrays import SharedArrays
from hpcoll.comm.methods.blocking import Blocking
from hpcoll.comm.methods.blocking_neighbours import Neighbours
from hpcoll.comm.methods.blocking_objects import BlockingObjects
from hpcoll.comm.methods.nonblocking import NonBlocking, PersistentCollectives
from hpcoll.comm.methods.point_to_point import Messages
from hpcoll.comm.requests.call_hooks import HOOKS
from hpcoll.comm.team.grid_order import in_grid_order
from hpcoll.comm.telemetry.observer import Telemetry
from hpcoll.comm.telemetry.stragglers import WithStragglers
from hpcoll.runtime.transports.mpi import end_without_barrier, knows_failures, why_unusable

HOOKS.observe(Telemetry())  # without this line calls run all the same, and nobody learns who came last

_NULL: Any = object()  # no argument


class Communicator(
    Blocking,
    BlockingObjects,
    NonBlocking,
    PersistentCollectives,
    Messages,
    SharedArrays,
    WithStragglers,
):
    """An intracommunicator with hpcoll's collectives; making one is collective.

    All ranks make the same collective calls in the same order, with equal ``algorithm=``, ``segment=``, ``order=`` and ``timeout=``. The
    time of a persistent call is counted from each start. ``timeout=`` does not hold for calls that the MPI library serves.

    Args:
        comm: Any intracommunicator; the Communicator is a second name for it, not a copy, and keeps its topology.
        mixed: Ranks may pass GPU arrays and host arrays in one call, and calls of GPU arrays go through host memory. It is equal on all
            ranks, and communicators made of this one inherit it. Where some rank has no GPU it is always so.

    Raises:
        ArgumentError: None, or not an intracommunicator, null, made before with another ``mixed``, or MPI is not initialised or already
            finalised.
    """

    _constant = False
    _topology = ""

    def __new__(cls, comm: MPI.Intracomm | None = None, mixed: bool | None = None) -> "Communicator":
        """Make the object over ``comm``'s handle, or over a null handle, as mpi4py does for the result of ``Idup``."""
        if comm is not None:
            _refuse_without_mpi()
            if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
                got = (
                    "MPI.COMM_NULL" if isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL else quoted(comm)
                )
                raise ArgumentError(f"Communicator needs an intracommunicator, got {got}")
            kind = _kind(comm)
            if cls._topology and cls._topology != kind._topology:
                raise ArgumentError(
                    f"{cls.__name__} needs a communicator with {cls._topology} topology, got {quoted(comm)}"
                )
            cls = kind if cls is Communicator else cls  # noqa: PLW0642
        return MPI.Intracomm.__new__(cls, comm)

    def __init__(self, comm: MPI.Intracomm = _NULL, mixed: bool | None = None) -> None:
        if comm is None or (comm is _NULL and self == MPI.COMM_NULL):
            got = "None" if comm is None else "no argument"
            raise ArgumentError(
                f"{type(self).__name__} needs an intracommunicator, such as MPI.COMM_WORLD, got {got}"
            )
        if comm is not _NULL:
            self._attach(context_of(self, mixed))
            # mpi4py.MPI came with this very object; others over the same handle can be freed
            self._constant = (
                type(comm) is MPI.Intracomm
                and comm in (MPI.COMM_SELF, MPI.COMM_WORLD)
                and isinstance(comm.__reduce__(), str)
            )

    def _keep(self, comm: Any) -> Any:
        """Return a communicator that MPI made of this one with our type; ``COMM_NULL`` stays as it is."""
        if comm == MPI.COMM_NULL or isinstance(comm, MPI.Intercomm):
            return _typed(comm)
        return self._made(_kind(comm), comm)

    def _made(self, kind: type["Communicator"], comm: MPI.Intracomm) -> Any:
        """Return an object over a communicator that was made of this one; its first blocking collective makes its context.

        Where ranks may have GPUs the context is made now, for no rank knows whether the library could serve a call in flight before.
        """
        made = kind.__new__(kind, comm)
        context = vars(self).get("_context")
        if context is None:
            made._mixed = self._mixed
            made._early = None if self._early is None else 0
            return made
        resources = context.resources
        made._mixed = resources.asked_mixed
        if resources.has_gpus:
            made._attach(context_of(made, made._mixed))
        elif resources.team.begins_early:
            made._early = 0
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        from hpcoll.comm.context.pickling import name_of, restored

        return restored, (type(self), name_of(self))

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return the communicator of an MPI handle, such as mpi4py's ``comm.handle``, with our type."""
        return _typed(MPI.Comm.fromhandle(handle))

    @classmethod
    def Create_from_group(
        cls,
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> "Communicator":
        """Return the communicator of a group, which only its members call; arguments as in mpi4py."""
        _refuse_without_mpi()
        return _typed(MPI.Intracomm.Create_from_group(group, stringtag, info, errhandler))

    def free(self) -> None:
        """Free it, unless it is null or stands for one of mpi4py's constants, which cannot be freed; collective."""
        if not self._constant:
            with self._freeing():
                super().free()

    def recover(self) -> None:
        """Make it usable again after a collective has failed; all ranks call it, and all are alive.

        Calls in flight are given up: their requests raise `TransportError`. Persistent requests must be made anew. Other objects over
        the same MPI communicator stay as they are. Data of the call that failed are undefined.

        Raises:
            ArgumentError: MPI is finalised, or the communicator was freed.
        """
        self._attach(renewed(self, self._context))

    def shrink(self) -> "Communicator":
        """Return a communicator of the ranks that are alive, in their order; all of them call it, after `PeerFailed`.

        Raises:
            ArgumentError: The MPI library does not detect failures of ranks. Open MPI 5 does, started by ``mpirun --with-ft ulfm``.
        """
        if not knows_failures():
            raise ArgumentError(f"rank {self.rank}: shrink needs Open MPI 5 and mpirun --with-ft ulfm")
        end_without_barrier()
        return self._keep(MPI.Intracomm(self).Shrink())

    def Dup(self, info: MPI.Info | None = None) -> "Communicator":
        """Return a duplicate of the same class, with hints ``info`` for the MPI library; collective."""
        return self._made(type(self), MPI.Intracomm(self).Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> "Communicator":
        """Return a duplicate, as `Dup`."""
        return self._made(type(self), MPI.Intracomm(self).Dup_with_info(info))

    def Clone(self) -> "Communicator":
        """Return a duplicate, as `Dup`."""
        return self.Dup()

    def Split(self, color: int = 0, key: int = 0) -> "Communicator":
        """Return the communicator of the ranks with this rank's color; collective.

        Args:
            color: Equal for ranks of one communicator, >= 0; ``MPI.UNDEFINED`` gives ``COMM_NULL``.
            key: Order of the ranks; equal keys keep the order that they have here.
        """
        return self._keep(MPI.Intracomm(self).Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> "Communicator":
        """Return the communicator of the ranks that share a property with this rank; collective.

        Args:
            split_type: The property, such as ``MPI.COMM_TYPE_SHARED``; ``MPI.UNDEFINED`` gives ``COMM_NULL``.
            key: Order of the ranks, as in `Split`.
            info: Hints for the MPI library.
        """
        return self._keep(MPI.Intracomm(self).Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> "Communicator":
        """Return the communicator of a group, ``COMM_NULL`` on other ranks; collective.

        Args:
            group: Ranks of the new communicator, equal on all ranks.
        """
        return self._keep(MPI.Intracomm(self).Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> "Communicator":
        """Return the communicator of a group; only its members call it.

        Args:
            group: Ranks of the new communicator, equal on its ranks.
            tag: Tells calls of several threads apart.
        """
        return self._keep(MPI.Intracomm(self).Create_group(group, tag))

    def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | None = None,
        reorder: bool = False,
        *,
        shape: Sequence[int] | None = None,
    ) -> "CartCommunicator":
        """Return a communicator with cartesian topology, ``COMM_NULL`` on ranks that it does not need; collective.

        Args:
            dims: Ranks in each dimension.
            periods: Dimensions that are periodic; None: none of them.
            reorder: hpcoll orders the ranks anew, so that few faces are between nodes; of one node, between its cache domains. The log
                says how many (``HPCOLL_DEBUG=info``).
            shape: Points of the whole array along each dimension; the points on such faces are then as few as can be.

        Raises:
            ArgumentError: ``shape`` is not one for these dimensions.
        """
        with in_grid_order(
            self, self._context.resources.topology if reorder else None, dims, periods, shape
        ) as ordered:
            return self._keep(ordered if ordered == MPI.COMM_NULL else ordered.Create_cart(dims, periods))


class CartCommunicator(Communicator, Neighbours, MPI.Cartcomm):
    """A Communicator with cartesian topology."""

    _topology = "cartesian"

    def Sub(self, remain_dims: Sequence[bool]) -> "CartCommunicator":
        """Return the communicator of the sub-grid through this rank; collective.

        Args:
            remain_dims: Says of each dimension whether the sub-grid keeps it.
        """
        return self._keep(MPI.Cartcomm(self).Sub(remain_dims))


class GraphCommunicator(Communicator, Neighbours, MPI.Graphcomm):
    """A Communicator with graph topology."""

    _topology = "graph"


class DistGraphCommunicator(Communicator, Neighbours, MPI.Distgraphcomm):
    """A Communicator with distributed graph topology."""

    _topology = "distributed graph"


class Intercommunicator(MPI.Intercomm):
    """An intercommunicator of mpi4py's between ranks that use hpcoll; its collectives are the MPI library's own."""

    def Merge(self, high: bool = False) -> Communicator:
        """Return the communicator of all ranks on both sides; arguments as in mpi4py."""
        return _typed(super().Merge(high))

    def Split(self, color: int = 0, key: int = 0) -> "Intercommunicator":
        """Return the intercommunicator of the ranks with this rank's color; arguments as in mpi4py."""
        return _typed(super().Split(color, key))

    def Create(self, group: MPI.Group) -> "Intercommunicator":
        """Return the intercommunicator of a group of this side's ranks, and one of the other's; arguments as in mpi4py."""
        return _typed(super().Create(group))


_KINDS: dict[int, type[Communicator]] = {
    MPI.CART: CartCommunicator,
    MPI.GRAPH: GraphCommunicator,
    MPI.DIST_GRAPH: DistGraphCommunicator,
}


def _refuse_without_mpi() -> None:
    if why := why_unusable():
        raise ArgumentError(f"Communicator cannot be made: {why}")


def _kind(comm: MPI.Intracomm) -> type[Communicator]:
    """Return the class for a communicator with its topology."""
    return _KINDS.get(comm.Get_topology(), Communicator)


def _typed(comm: MPI.Comm) -> Any:
    """Return a communicator with our type, ``COMM_NULL`` as it is; its first collective makes its context."""
    if comm == MPI.COMM_NULL:
        return comm
    if not isinstance(comm, MPI.Intracomm):
        return Intercommunicator(comm)
    kind = _kind(comm)
    return kind.__new__(kind, comm)


def _keeping(name: str, kind: str) -> Any:
    """Return mpi4py's method that makes a communicator, with our type for that."""
    theirs = getattr(MPI.Intracomm, name)

    @wraps(theirs)
    def make(self: Communicator, *arguments: Any, **options: Any) -> Any:
        return self._keep(theirs(self, *arguments, **options))

    make.__doc__ = f"Return {kind}; arguments are those of mpi4py's `{name}`."
    return make


# Not those for processes of another program, which may not use hpcoll: `Spawn`, `Accept`, `Connect`, `Join`, `Get_parent`.
_MADE = {
    "Create_graph": "a `GraphCommunicator`",
    "Create_dist_graph": "a `DistGraphCommunicator`",
    "Create_dist_graph_adjacent": "a `DistGraphCommunicator`",
    "Create_intercomm": "an `Intercommunicator`, whose `Merge` keeps the type",
    "Shrink": "a communicator of the ranks that are alive",
}
for _name, _of in _MADE.items():
    if hasattr(MPI.Intracomm, _name):  # older versions of mpi4py lack one
        setattr(Communicator, _name, _keeping(_name, _of))


def _pickled(comm: MPI.Intracomm) -> Any:
    from hpcoll.comm.context.pickling import reduced

    return reduced(comm)


copyreg.pickle(MPI.Intracomm, _pickled)
