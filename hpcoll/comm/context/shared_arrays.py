"""Arrays in memory that ranks of a node share: symmetric ones, and copies that many read."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.context.context import Context
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.team import symmetric_memory
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.team.symmetric_memory import ArrayForm
from hpcoll.runtime.transports.local_ranks import LocalRanks
from hpcoll.selection.config import log


class SharedArrays(WithContext):
    """An intracommunicator that gives its ranks arrays in shared memory."""

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
            return symmetric_memory.symmetric(
                on.native, on.service_collectives, allocate, method, shape, dtype
            )

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


def _zeros(resources: Resources, local: LocalRanks | None, form: ArrayForm) -> np.ndarray:
    with resources.alone(Purpose.ARRAY, f"an array with {form}"):
        return symmetric_memory.zeros(local, form)


def _local_ranks(context: Context) -> LocalRanks | None:
    """Return the ranks with which this one shares memory; None where it shares none."""
    context.check()
    resources = context.resources
    if resources.shares_memory:
        return resources.node
    why = (
        "HPCOLL_SHM is 0" if resources.node.nranks > 1 else "no other rank of the communicator is on its node"
    )
    log.info("rank %d: its arrays are ordinary memory: %s", resources.rank, resources.node.refused or why)
    return None
