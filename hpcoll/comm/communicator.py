"""`Communicator`: mpi4py's Intracomm with hpcoll's collectives; methods that make communicators keep the type.

Names, argument order, in-place rules and defaults are mpi4py's. Whatever hpcoll does not speed up (point to point, derived
reductions, neighbourhood collectives, pickled objects, windows, files) is inherited and goes to the MPI library unchanged; GPU arrays do
so where it takes them, and through host memory elsewhere (`hpcoll.comm.point_to_point`).
"""

import copyreg
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.blocking import BlockingReductions
from hpcoll.comm.blocking_moves import BlockingMoves
from hpcoll.comm.context import symmetric_memory
from hpcoll.comm.context.attach import context_of, renewed
from hpcoll.comm.context.context import Context
from hpcoll.comm.context.symmetric_memory import ArrayForm
from hpcoll.comm.nonblocking import NonBlocking, PersistentCollectives
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.point_to_point import Messages, Neighbours
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.transports.local_ranks import LocalRanks
from hpcoll.runtime.transports.mpi import end_without_barrier, knows_failures
from hpcoll.selection.config import log

_NULL: Any = object()  # no argument


class Communicator(BlockingReductions, BlockingMoves, NonBlocking, PersistentCollectives, Messages):
    """An intracommunicator with hpcoll's collectives; making one is collective.

    All ranks make the same collective calls in the same order, with equal ``algorithm=``, ``segment=`` and ``timeout=``. The time of
    a persistent call is counted from each start. ``timeout=`` does not hold for calls that the MPI library serves.

    Args:
        comm: Any intracommunicator; the Communicator is a second name for it, not a copy, and keeps a cartesian topology. None at all
            gives a null communicator, as mpi4py's ``Intracomm()`` does.
        mixed: Ranks may pass GPU arrays and host arrays in one call, and calls of GPU arrays go through host memory. It is equal on all
            ranks, and communicators made of this one inherit it. Where some rank has no GPU it is always so.

    Raises:
        ArgumentError: Not an intracommunicator, null, made before with another ``mixed``, or MPI is not initialised or already finalised.
    """

    _constant = False

    def __new__(cls, comm: MPI.Intracomm | None = None, mixed: bool | None = None) -> "Communicator":
        """Make the object over ``comm``'s handle, or over a null handle, as mpi4py does for the result of ``Idup``."""
        if comm is not None:
            if not MPI.Is_initialized() or MPI.Is_finalized():
                raise ArgumentError(f"Communicator needs MPI, which is {'finalised' if MPI.Is_initialized() else 'not initialised'}")
            if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
                raise ArgumentError(f"Communicator needs an intracommunicator, got {comm!r}")
        cartesian = comm is not None and comm.Get_topology() == MPI.CART
        if cls is CartCommunicator and comm is not None and not cartesian:
            raise ArgumentError(f"CartCommunicator needs a communicator with cartesian topology, got {comm!r}")
        return MPI.Intracomm.__new__(CartCommunicator if cls is Communicator and cartesian else cls, comm)

    def __init__(self, comm: MPI.Intracomm = _NULL, mixed: bool | None = None) -> None:
        if comm is None:
            raise ArgumentError("Communicator needs an intracommunicator, got None")
        if comm is not _NULL:
            self._context = context_of(self, mixed)
            # mpi4py.MPI came with this very object; others over the same handle can be freed
            self._constant = type(comm) is MPI.Intracomm and comm in (MPI.COMM_SELF, MPI.COMM_WORLD) and isinstance(comm.__reduce__(), str)

    def _keep(self, comm: Any) -> Any:
        """Return a communicator that MPI made of this one with our type; ``COMM_NULL`` stays as it is."""
        if comm == MPI.COMM_NULL:
            return comm
        return self._made(CartCommunicator if isinstance(comm, MPI.Cartcomm) else Communicator, comm)

    def _made(self, kind: type["Communicator"], comm: MPI.Intracomm) -> Any:
        """Return an object over a communicator that was made of this one; its first blocking collective makes its context.

        Where ranks may have GPUs the context is made now, for no rank knows whether the library could serve a call in flight before.
        """
        made = kind.__new__(kind, comm)
        context = vars(self).get("_context")
        made._mixed = self._mixed if context is None else context.resources.asked_mixed
        if context is not None and context.resources.has_gpus:
            made._context = context_of(made, made._mixed)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        from hpcoll.comm.pickling import name_of, restored

        return restored, (type(self), name_of(self))

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return the communicator of an MPI handle, such as mpi4py's ``comm.handle``, with our type for an intracommunicator."""
        return _typed(MPI.Comm.fromhandle(handle))

    def free(self) -> None:
        """Free it, unless it is null or stands for one of mpi4py's constants, which cannot be freed; collective."""
        if not self._constant:
            with self._freeing():
                super().free()

    def empty(self, shape: int | Sequence[int], dtype: Any = np.float64, device: str = "cpu") -> Any:
        """Return an array in symmetric memory, which ranks of the same node read in place: collectives do not copy it on its way out.

        Every rank gets an array of its own, an ordinary ``numpy.ndarray`` in C order that starts a cache line. It and any contiguous
        part of it may be passed wherever a buffer may; other ranks may pass another buffer. Peers read it in place in collectives of
        this communicator, and of every other whose ranks of the node all belong to this one (``Dup``, ``Split``, ``Create``, ...).

        The memory is given back with the array and its views, as ordinary memory is; the array may outlive the communicator and MPI.
        Where no other rank is on the node, or shared memory is off (``HPCOLL_SHM=0``) or refused, it is ordinary memory.

        Args:
            shape: Elements per axis, >= 0; equal on all ranks, which all call this.
            dtype: Element type of fixed size, equal on all ranks.
            device: ``"cpu"``, or ``"cuda"`` for memory of the GPU that the rank uses, mapped by the ranks of its node where they can;
                equal on all ranks.

        Returns:
            The array, not initialised. On a GPU a `cupy.ndarray` where CuPy is installed, else a `hpcoll.runtime.gpu.device.GpuArray`.

        Raises:
            ArgumentError: On every rank, with the first rank whose shape, type or device is bad or differs, or that has no memory or
                would pass the limit ``HPCOLL_SHM``.
        """
        return self._symmetric("empty", shape, dtype, device)

    def zeros(self, shape: int | Sequence[int], dtype: Any = np.float64) -> np.ndarray:
        """Return an array in symmetric host memory, filled with zeros; arguments and errors as of `empty`."""
        return self._symmetric("zeros", shape, dtype, "cpu")

    def like(self, array: Any) -> np.ndarray:
        """Return an `empty` array in host memory, of the shape and type of ``array``, which are equal on all ranks; errors as there."""
        return self._symmetric("like", getattr(array, "shape", None), getattr(array, "dtype", None), "cpu")

    def _symmetric(self, method: str, shape: Any, dtype: Any, device: str) -> Any:
        context = self._context
        if device == "cpu":
            allocate: Callable[[ArrayForm], Any] = partial(_zeros, context.resources, _local_ranks(context))
        elif device == "cuda":
            context.check()
            allocate = context.gpu.array
        else:
            raise ArgumentError(f"rank {context.rank}: {method} needs device 'cpu' or 'cuda', got {device!r}")
        on = context.resources
        with context.failure_scope(method):
            return symmetric_memory.symmetric(on.native, on.service_collectives, allocate, method, shape, dtype)

    def share(self, array: Any, root: int = 0) -> np.ndarray:
        """Return a read-only copy of the root's array, one for all ranks of a node: for tables that many ranks read and none changes.

        The copy is made at the call, and does not follow what the root writes to its own array later. Nobody can write to it.
        Its memory is given back when the array and its views are gone on all ranks of the node; it may outlive the communicator and MPI.
        Where ranks share no memory (see `empty`), each has a copy.

        Args:
            array: Anything of which NumPy makes an array, with elements of fixed size; ignored but at the root, as in ``share(None)``.
            root: Rank that has the array, equal on all ranks, which all call this.

        Returns:
            An array of the shape and element type of the root's, in C order.

        Raises:
            ArgumentError: On every rank, as `empty`.
        """
        context, local = self._context, _local_ranks(self._context)
        on = context.resources
        with context.failure_scope("share"), on.alone(Purpose.ARRAY, "share"):
            return symmetric_memory.share(on.native, on.service_collectives, local, array, root)

    def recover(self) -> None:
        """Make it usable again after a collective has failed; all ranks call it, and all are alive.

        Calls in flight are given up: their requests raise `TransportError`. Persistent requests must be made anew. Other objects over
        the same MPI communicator stay as they are. Data of the call that failed are undefined.

        Raises:
            ArgumentError: MPI is finalised, or the communicator was freed.
        """
        self._context = renewed(self, self._context)

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

    def Create_cart(self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False) -> "CartCommunicator":
        """Return a communicator with cartesian topology, ``COMM_NULL`` on ranks that it does not need; collective.

        Args:
            dims: Ranks in each dimension.
            periods: Dimensions that are periodic; None: none of them.
            reorder: The MPI library may order the ranks anew.
        """
        return self._keep(MPI.Intracomm(self).Create_cart(dims, periods, reorder))


class CartCommunicator(Communicator, Neighbours, MPI.Cartcomm):
    """A Communicator with cartesian topology."""

    def Sub(self, remain_dims: Sequence[bool]) -> "CartCommunicator":
        """Return the communicator of the sub-grid through this rank; collective.

        Args:
            remain_dims: Says of each dimension whether the sub-grid keeps it.
        """
        return self._keep(MPI.Cartcomm(self).Sub(remain_dims))


def _typed(comm: MPI.Comm) -> Any:
    """Return a communicator with our type where it can have it; its first collective makes its context."""
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL or comm.topology in (MPI.GRAPH, MPI.DIST_GRAPH):
        return comm
    kind = CartCommunicator if isinstance(comm, MPI.Cartcomm) else Communicator
    return kind.__new__(kind, comm)


def _zeros(resources: Resources, local: LocalRanks | None, form: ArrayForm) -> np.ndarray:
    with resources.alone(Purpose.ARRAY, f"an array with {form}"):
        return symmetric_memory.zeros(local, form)


def _local_ranks(context: Context) -> LocalRanks | None:
    """Return the ranks with which this one shares memory; None where it shares none."""
    context.check()
    resources = context.resources
    if resources.shares_memory:
        return resources.node
    why = "HPCOLL_SHM is 0" if resources.node.nranks > 1 else "no other rank of the communicator is on its node"
    log.info("rank %d: its arrays are ordinary memory: %s", resources.rank, resources.node.refused or why)
    return None


def _pickled(comm: MPI.Intracomm) -> Any:
    from hpcoll.comm.pickling import reduced

    return reduced(comm)


copyreg.pickle(MPI.Intracomm, _pickled)
