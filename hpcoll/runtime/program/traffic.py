"""Memory traffic: how many bytes a program reads and writes on its rank, counted from its rows."""

from typing import NamedTuple

import numpy as np

from hpcoll.runtime.program.fields import BUFFER, CODE, IN_PLACE, NBYTES, NSOURCES, REDUCED_NBYTES
from hpcoll.runtime.program.opcodes import INLINE_NBYTES, Code


class Traffic(NamedTuple):
    """Bytes that one rank moves in one call.

    Attributes:
        read, written: By loads and stores of copies, reductions and staging, wherever in caches or memory they end.
        given: To the MPI library and taken from it, which moves them its own way.
    """

    read: int
    written: int
    given: int

    @property
    def moved(self) -> int:
        """Read and written."""
        return self.read + self.written


Least = tuple[int | None, int | None]  # of INPUT and OUTPUT, bytes of messages that peers read in place; None: none


def memory_traffic(rows: np.ndarray, lanes: np.ndarray, in_place: Least = (None, None)) -> Traffic:
    """What a program moves.

    Args:
        rows, lanes: Of a program whose sizes are numbers, as in `hpcoll.runtime.program.opcodes.Program`.
        in_place: What peers read where it lies.
    """
    moved = [_moved(row, in_place) for row in rows.tolist()]
    return Traffic(*(sum(one[i] for first, last, _ in lanes.tolist() for one in moved[first:last]) for i in range(3)))


def _moved(row: list[int], in_place: Least) -> tuple[int, int, int]:
    code = row[CODE]
    if code == Code.REDUCE:
        return row[NSOURCES] * row[REDUCED_NBYTES], row[REDUCED_NBYTES], 0
    least = in_place[row[BUFFER]] if code == Code.STAGE and row[IN_PLACE] else None
    copies = code == Code.COPY or (code == Code.STAGE and (least is None or row[NBYTES] < least))
    if copies or (code == Code.POST and row[NBYTES] <= INLINE_NBYTES):
        return row[NBYTES], row[NBYTES], 0
    return 0, 0, row[NBYTES] if code in (Code.SEND, Code.RECV) else 0
