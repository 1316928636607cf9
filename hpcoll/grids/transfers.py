"""The ways of parts of an array to the neighbours in a graph: by datatypes of MPI's, or through contiguous buffers on a GPU."""

import importlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.grids.ghost_layers import Part


class PartsInPlace:
    """Parts of a host array as datatypes of one exchange.

    Args:
        graph: Communicator of the neighbours, with this topology.
        array: Contiguous in C or Fortran order.
        sent: The part for each rank to which this one sends.
        received: The part from each rank from which it receives.
    """

    def __init__(
        self, graph: Any, array: np.ndarray[Any, Any], sent: Sequence[Part], received: Sequence[Part]
    ) -> None:
        self._graph = graph
        self._element = _element(array.dtype)
        self._types = [
            [_subarray(array, part, self._element) for part in parts] for parts in (sent, received)
        ]
        self._buffers = [[array, [1] * len(types), [0] * len(types), types] for types in self._types]
        self._request: Any = None

    @cached_property
    def _persistent(self) -> Any:
        """The persistent exchange, which the first start makes; None of a library of MPI 3."""
        try:
            return self._graph.Neighbor_alltoallw_init(*self._buffers)
        except (AttributeError, NotImplementedError):
            return None

    def exchange(self) -> None:
        """Exchange all parts."""
        self._graph.Neighbor_alltoallw(*self._buffers)

    def start(self) -> None:
        """Begin the exchange."""
        if self._persistent is None:
            self._request = self._graph.Ineighbor_alltoallw(*self._buffers)
        else:
            self._persistent.Start()

    def wait(self) -> None:
        """Wait until all parts are received and sent."""
        (self._persistent or self._request).Wait()

    def free(self) -> None:
        """Give back datatypes and request."""
        if vars(self).get("_persistent") is not None:
            self._persistent.Free()
        for datatype in (*self._types[0], *self._types[1], self._element):
            if not datatype.is_predefined:
                datatype.Free()


def _element(dtype: np.dtype[Any]) -> MPI.Datatype:
    """Return the datatype of an element, as bytes where MPI has none."""
    element = MPI.Datatype.fromcode(dtype.char) if dtype.isbuiltin == 1 else MPI.DATATYPE_NULL
    return element if element != MPI.DATATYPE_NULL else MPI.BYTE.Create_contiguous(dtype.itemsize)


def _subarray(array: np.ndarray[Any, Any], part: Part, element: MPI.Datatype) -> MPI.Datatype:
    starts = [span.start for span in part]
    counts = [span.stop - span.start for span in part]
    order = MPI.ORDER_C if array.flags.c_contiguous else MPI.ORDER_F
    return element.Create_subarray(array.shape, counts, starts, order).Commit()


class StagedParts:
    """Parts of a GPU array, copied by its library into contiguous buffers and out of them.

    Where a call in flight cannot take GPU memory, `wait` exchanges the buffers.

    Args:
        graph: As of `PartsInPlace`, and so the others.
    """

    def __init__(self, graph: Any, array: Any, sent: Sequence[Part], received: Sequence[Part]) -> None:
        self._graph = graph
        module = importlib.import_module("cupy")
        self._views = list[list[Any]]()
        self._staging = list[list[Any]]()
        buffers = list[list[Any]]()
        for parts in (sent, received):
            views = [array[part] for part in parts]
            counts = [view.nbytes for view in views]
            places = [sum(counts[:i]) for i in range(len(counts))]
            flat = module.empty(sum(counts), np.uint8)
            copies = [
                flat[at : at + n].view(array.dtype).reshape(view.shape)
                for at, n, view in zip(places, counts, views)
            ]
            self._views.append(views)
            self._staging.append(copies)
            buffers.append([flat, counts, places, MPI.BYTE])
        self._buffers: list[list[Any]] = buffers
        self._request: Any = None

    @cached_property
    def _in_flight(self) -> bool:
        """All ranks can exchange in flight, which the first start tries with what the buffers hold."""
        taken = True
        try:
            self._graph.Ineighbor_alltoallv(*self._buffers).Wait()
        except ArgumentError:
            taken = False
        return all(self._graph.allgather(taken))

    def exchange(self) -> None:
        """Exchange all parts."""
        self._copy(0)
        self._graph.Neighbor_alltoallv(*self._buffers)
        self._copy(1)

    def start(self) -> None:
        """Copy what is sent, and begin the exchange where that is possible."""
        if self._in_flight:
            self._copy(0)
            self._request = self._graph.Ineighbor_alltoallv(*self._buffers)

    def wait(self) -> None:
        """Wait until all parts are in their places; exchange them where they are not in flight."""
        if self._request is None:
            self.exchange()
        else:
            self._request.Wait()
            self._request = None
            self._copy(1)

    def _copy(self, side: int) -> None:
        """Copy what is sent into its buffer (0), or what was received to its places (1)."""
        for view, copy in zip(self._views[side], self._staging[side]):
            if side:
                view[...] = copy
            else:
                copy[...] = view

    def free(self) -> None:
        """Give back the buffers."""
        del self._views, self._staging, self._buffers
