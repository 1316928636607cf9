"""Short parts of a GPU array, exchanged by the host; imported where there are some."""

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.analysis.cost import NEVER
from hpcoll.comm.arguments.memory import find_gpu_array
from hpcoll.comm.gpu.repeated import SHORT_NBYTES
from hpcoll.comm.gpu.staging import Launch, mover
from hpcoll.grids.agreement import Block
from hpcoll.grids.ghost_layers import Part
from hpcoll.grids.transfers import Exchange
from hpcoll.runtime.gpu.arrays import stream_of
from hpcoll.runtime.gpu.cuda import Attribute, MemoryType, driver
from hpcoll.runtime.gpu.device import gpu_of, pinned
from hpcoll.runtime.program.layouts import Layout, joined
from hpcoll.selection.config import HOST, read_config

Room: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


def short_room(comm: MPI.Cartcomm, nbytes: tuple[int, int]) -> list[Room] | None:
    """Return page-locked memory for so many bytes that are sent and received; collective.

    None on all ranks where one of them exchanges more than is short, for which a program for GPU memory is quicker, or has no such memory.
    """
    cuda, most = driver(), NEVER
    assert cuda is not None
    rooms = list[Room]()
    if max(nbytes) <= SHORT_NBYTES and read_config().cuda_path in (None, HOST):
        rooms = [pinned(cuda, max(1, n))[:n] for n in nbytes]
        kinds = {cuda.attribute(room.ctypes.data, Attribute.MEMORY_TYPE) for room in rooms}
        most = max(nbytes) if kinds == {MemoryType.HOST} else NEVER
    return rooms if max(comm.allgather(most)) <= SHORT_NBYTES else None


class PackedParts(Exchange):
    """Short parts of a GPU array: one kernel packs them into page-locked memory, which ranks exchange, and one unpacks what has come.

    Args:
        rooms: As of `short_room`.
        graph: As of `hpcoll.grids.transfers.PartsInPlace`, and so the others.
    """

    def __init__(
        self,
        rooms: Sequence[Room],
        graph: Any,
        array: Any,
        dtype: np.dtype[Any],
        block: Block,
        sent: Sequence[Part],
        received: Sequence[Part],
    ) -> None:
        known = find_gpu_array(array)
        assert known is not None
        self._array, self._known, self._gpu = array, known, gpu_of(known.ordinal)
        self._launches = list[Launch]()
        buffers = list[list[Any]]()
        faster = block.shape[::-1] if block.order == "C" else block.shape
        steps = [*accumulate(faster[:-1], operator.mul, initial=dtype.itemsize)]
        strides = steps[::-1] if block.order == "C" else steps
        for parts, room, unpacks in zip((sent, received), rooms, (False, True)):
            shapes = [[span.stop - span.start for span in part] for part in parts]
            offsets = [sum(span.start * step for span, step in zip(part, strides)) for part in parts]
            layouts = [Layout.of_array(shape, strides, dtype.itemsize) for shape in shapes]
            counts = [layout.size for layout in layouts]
            pieces = joined(zip(offsets, layouts)).pieces
            self._launches.append(
                mover(self._gpu, room.ctypes.data, known.pointer, pieces, sum(counts), unpacks=unpacks)
            )
            displs = [sum(counts[:i]) for i in range(len(counts))]
            buffers.append([room, counts, displs, [MPI.BYTE] * len(parts)])
        super().__init__(graph, buffers)

    def exchange(self) -> None:
        """Exchange all parts."""
        self._launch(0)
        super().exchange()
        self._launch(1)

    def start(self) -> None:
        """Pack what is sent, and begin the exchange."""
        self._launch(0)
        super().start()

    def wait(self) -> None:
        """Wait until all parts are received and sent."""
        super().wait()
        self._launch(1)

    def _launch(self, side: int) -> None:
        """Pack what is sent (0) or unpack what was received (1), behind the work on the array's stream, and wait for that."""
        interface = getattr(self._array, "__cuda_array_interface__", None)
        known = (
            find_gpu_array(self._array)
            if interface is None
            else self._known._replace(stream=interface.get("stream"))
        )
        stream = stream_of(known or self._known, None, self._graph.rank)
        with self._gpu.entered():
            self._launches[side](stream)
            self._gpu.driver("cuStreamSynchronize", stream)
