"""The way of parts of an array to the neighbours in a graph: datatypes of MPI's in one exchange."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.grids.agreement import Block
from hpcoll.grids.ghost_layers import Part


class Exchange:
    """An exchange of blocks with the neighbours in a graph.

    Args:
        graph: Communicator of the neighbours, with this topology.
        buffers: What is sent and what is received, as of `Neighbor_alltoallw`.
        plans: A single exchange is made by the persistent one.
    """

    def __init__(self, graph: Any, buffers: list[list[Any]], *, plans: bool = False) -> None:
        self._graph, self._buffers, self._plans = graph, buffers, plans
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
        if self._plans:
            self.start()
            self.wait()
        else:
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
        """Give back what MPI keeps for it."""
        if vars(self).get("_persistent") is not None:
            self._persistent.Free()


class PartsInPlace(Exchange):
    """Parts of an array as datatypes of one exchange.

    Args:
        graph: As of `Exchange`.
        array: The program's array.
        dtype: Its element type.
        block: What else it is.
        sent: The part for each rank to which this one sends.
        received: The part from each rank from which it receives.
    """

    def __init__(
        self,
        graph: Any,
        array: Any,
        dtype: np.dtype[Any],
        block: Block,
        sent: Sequence[Part],
        received: Sequence[Part],
    ) -> None:
        self._element = _element(dtype)
        self._types = [
            [_subarray(block, part, self._element) for part in parts] for parts in (sent, received)
        ]
        buffers = [[array, [1] * len(types), [0] * len(types), types] for types in self._types]
        super().__init__(
            graph, buffers, plans=block.on_gpu
        )  # a GPU's call like an earlier one is quicker once planned

    def free(self) -> None:
        """Give back datatypes and request."""
        super().free()
        for datatype in (*self._types[0], *self._types[1], self._element):
            if not datatype.is_predefined:
                datatype.Free()


def _element(dtype: np.dtype[Any]) -> MPI.Datatype:
    """Return the datatype of an element, as bytes where MPI has none."""
    element = MPI.Datatype.fromcode(dtype.char) if dtype.isbuiltin == 1 else MPI.DATATYPE_NULL
    return element if element != MPI.DATATYPE_NULL else MPI.BYTE.Create_contiguous(dtype.itemsize)


def _subarray(block: Block, part: Part, element: MPI.Datatype) -> MPI.Datatype:
    starts = [span.start for span in part]
    counts = [span.stop - span.start for span in part]
    order = MPI.ORDER_C if block.order == "C" else MPI.ORDER_F
    return element.Create_subarray(block.shape, counts, starts, order).Commit()
