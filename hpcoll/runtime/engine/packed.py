"""Room for packed copies of what calls on derived datatypes send and receive (`hpcoll.runtime.engine.compiled.packed_calls`)."""

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.transports.mpi import function, handle

MAX_NBYTES = 1 << 22  # of the copies of one call; longer ones are packed in Python


class PackedRoom:
    """Memory that the calls of a table share, and what compiled code calls to pack.

    Attributes:
        address: Of words as in `hpcoll.runtime.program.call_fields`.
    """

    def __init__(self) -> None:
        self._room = np.empty(0, np.uint8)
        self._words = np.zeros(c.PACKED_NFIELDS, np.int64)
        self._words[[c.PACK, c.UNPACK, c.SELF]] = function("MPI_Pack"), function("MPI_Unpack"), handle(MPI.COMM_SELF)
        self.address = self._words.ctypes.data

    def grow(self, nbytes: int) -> None:
        """Have room for the copies of a call, unless they are too long."""
        if self._room.nbytes < nbytes <= MAX_NBYTES:
            self._room = np.empty(1 << (nbytes - 1).bit_length(), np.uint8)
            self._words[c.PACKED_AT], self._words[c.PACKED_NBYTES] = self._room.ctypes.data, self._room.nbytes
