"""A channel of one-shot kernels: the memory by which the launches of all ranks meet (`hpcoll.kernels.one_shot_layout`)."""

import ctypes

import numpy as np

from hpcoll.base.errors import DeviceError
from hpcoll.kernels import MAX_SOURCES
from hpcoll.kernels.one_shot_layout import AREA_NBYTES, AREAS, FLAG_NBYTES, FLAGS_AT, MOST_BLOCKS, SLOTS_AT
from hpcoll.runtime.gpu.device import Gpu, Memory
from hpcoll.runtime.gpu.ipc import Directory


class Channel:
    """A channel of ranks that all map each other's GPU memory; one launch of each rank at a time. Made collectively.

    Attributes:
        address: Of its words, in GPU memory.
        stop: The word that ends launches which wait for others: int64 of shape (1,), in page-locked memory.

    Args:
        gpu: GPU of this rank.
        directory: Of the ranks' communicator.
        rank: Rank of this process.

    Raises:
        DeviceError: On every rank, where one has no memory for it.
    """

    def __init__(self, gpu: Gpu, directory: Directory, rank: int) -> None:
        problem = ""
        try:
            self._area = Memory(gpu, AREA_NBYTES)
            self._word = Memory(gpu, 8, pinned=True)
            self._table = Memory(gpu, 8 * (AREAS + MAX_SOURCES))
            gpu.driver("cuMemsetD8Async", self._area.address, 0, AREA_NBYTES, gpu.stream)
            gpu.finish(gpu.stream)
        except DeviceError as error:
            problem = str(error)
        areas = directory.share(0 if problem else self._area.address)
        if not all(areas):
            raise DeviceError(problem or "a rank has no GPU memory that others map")
        self.stop = np.ctypeslib.as_array((ctypes.c_int64 * 1).from_address(self._word.address))
        self.stop[0] = 0
        words = np.array([rank, len(areas), self._word.address, *areas], np.int64)
        self.address = self._table.address
        gpu.driver.copy(self.address, words.ctypes.data, words.nbytes, gpu.stream)
        gpu.finish(gpu.stream)
        self._gpu, self._nranks = gpu, len(areas)

    def missing(self) -> set[int]:
        """Return the ranks whose flags the first block of a launch that runs now still waits for."""
        words, gpu = np.zeros(SLOTS_AT // 8, np.int64), self._gpu
        with gpu.entered():
            gpu.driver.copy(words.ctypes.data, self._area.address, words.nbytes, gpu.stream)
            gpu.finish(gpu.stream)
        generation = words[0] + 1
        first = (FLAGS_AT + FLAG_NBYTES * MAX_SOURCES * MOST_BLOCKS * (generation & 1)) // 8
        flags = words[first :: FLAG_NBYTES // 8][: self._nranks]
        return set(np.flatnonzero(flags != generation).tolist())
