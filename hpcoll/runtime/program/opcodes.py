"""Programs: the flat table that engines run, its operations, and the bytes that they move."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.sizes import Multiples, Number, Size
from hpcoll.runtime.program.fields import BUFFER, CODE, IN_PLACE, NBYTES, NSOURCES, REDUCED_NBYTES

CACHE_LINE_NBYTES = 64  # of a cache line
BUFFERS = 3  # INPUT, OUTPUT, SCRATCH
MESSAGES = BUFFERS  # from this buffer number on: the message that is in message slot ``buffer - MESSAGES``
STAGING = -1  # the lane's part of a staging slot, in shared memory
PINNED = -2  # of a GPU program: host memory of the lane's window slot, which the GPU reads and writes
INLINE_NBYTES = 56  # what fits into the ring slot that announces it


Row = tuple[Any, ...]  # of Number


def aligned(nbytes: Any, boundary: int = CACHE_LINE_NBYTES) -> Any:
    """Return the next multiple of a cache line, or of another boundary."""
    return -(-nbytes // boundary) * boundary


class Code(IntEnum):
    """The operations of a program, with the columns of their rows, by their names in `fields`.

    From STAGE on they work on the memory that local peers share, and name a peer by its local rank. IN_PLACE means: where the
    buffer is symmetric memory, the peer reads it in place.

    In a GPU program COPY, REDUCE and STAGE are asynchronous: they go to the stream of the lane's window slot and run there in order.
    All others act at once, on the host. A POST is never inline there, and IN_PLACE decides alone: `READ`, the peer reads the buffer,
    which is GPU memory, in place; `WRITTEN`, it writes it; 0, it reads what was staged. There is no DRAIN; UNREAD stands for it. A REDUCE
    has NFURTHER destinations behind its sources.
    """

    RECV = 0  # REQUEST, PEER, BUFFER, DISPL, NBYTES
    SEND = 1  # REQUEST, PEER, BUFFER, DISPL, NBYTES
    WAIT = 2  # REQUEST, NBYTES: of what is received
    COPY = 3  # TO_BUFFER, TO_DISPL, BUFFER, DISPL, NBYTES
    REDUCE = 4  # TO_BUFFER, TO_DISPL, COUNT, FIRST_SOURCE, NSOURCES, REDUCED_NBYTES, NFURTHER
    STAGE = 5  # STAGED_DISPL, BUFFER, DISPL, NBYTES, IN_PLACE: copy into the staging slot
    POST = 6  # LOCAL_PEER, STAGED_DISPL, BUFFER, DISPL, NBYTES, IN_PLACE: announce a message; waits for a free ring slot
    AWAIT = 7  # LOCAL_PEER, MESSAGE_SLOT, NBYTES: wait for a message
    ACK = 8  # LOCAL_PEER, NBYTES (1 where none is empty): the oldest message that is not acknowledged has been used
    DRAIN = 9  # LOCAL_PEER, BUFFER: wait until messages read in place have been used
    RESERVE = 10  # take room in the staging slot; waits while there is none
    RECORD = 11  # EVENT: record the stream's event, behind the operation before this row
    SYNC = 12  # EVENT: wait until it has been reached; event 0: the caller's earlier work is done
    UNREAD = 13  # LOCAL_PEER, ALLOWED: wait until at most so many of the messages posted to the peer from this slot are not acknowledged
    ONE_SHOT = 14  # TO_BUFFER, TO_DISPL, BUFFER, DISPL, GRID: launch the engine's one-shot kernel; asynchronous, as a copy
    COMPARED = 15  # fail where the kernel met a rank that calls something else


class Symbol(NamedTuple):
    """A size in a program, or many, and the place of each among the program's numbers, in the order of `Program.numbers`."""

    size: Size | Multiples
    at: Any  # int, or an array of them


@dataclass(frozen=True)
class Program:
    """The table that an engine runs for a call; displacements in bytes; numbers from `nrequests` on are what one lane needs.

    Lowered from symbolic sizes it serves all calls of its kind for which their conditions hold: sizes may then be `Size`.
    """

    rows: np.ndarray  # int64 (nrows, NCOLUMNS): CODE and its columns, the others 0
    # int64 (nsources, 2): buffer and displacement of sources, then of further destinations, of reductions
    sources: np.ndarray
    # int64 (nlanes, 3): first row, last row + 1, displacement of the lane's segment in INPUT and OUTPUT
    lanes: np.ndarray
    window: int  # lanes in flight; lane i runs in window slot i % window, which is also its tag
    nrequests: int
    scratch_nbytes: Number
    staging_nbytes: Number  # of a staging slot
    nmessages: int  # message slots: messages of local peers that it uses at once
    nevents: int = 0  # event 0 included; 0: a host program
    pinned_nbytes: int = 0
    symbols: tuple[Symbol, ...] = ()  # the sizes that depend on a call's counts

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of all rows, sources and lanes, one behind the other."""
        return np.concatenate([self.rows.ravel(), self.sources.ravel(), self.lanes.ravel()])


class Traffic(NamedTuple):
    """Bytes that one rank moves in one call."""

    read: int  # by loads of copies, reductions and staging, wherever in caches or memory they end
    written: int  # by their stores
    given: int  # to the MPI library and taken from it, which moves them its own way

    @property
    def moved(self) -> int:
        """The sum of bytes read and written."""
        return self.read + self.written


# of INPUT and OUTPUT, bytes of messages that peers read in place; None: none
Least = tuple[int | None, int | None]


def memory_traffic(rows: np.ndarray, lanes: np.ndarray, in_place: Least = (None, None)) -> Traffic:
    """Return the bytes that a program moves, of which sizes are numbers, where peers read some in place."""
    moved = [_moved(row, in_place) for row in rows.tolist()]
    return Traffic(
        *(
            sum(traffic[i] for first, last, _ in lanes.tolist() for traffic in moved[first:last])
            for i in range(3)
        )
    )


def _moved(row: list[int], in_place: Least) -> tuple[int, int, int]:
    code = row[CODE]
    if code == Code.REDUCE:
        return row[NSOURCES] * row[REDUCED_NBYTES], row[REDUCED_NBYTES], 0
    least = in_place[row[BUFFER]] if code == Code.STAGE and row[IN_PLACE] else None
    copies = code == Code.COPY or (code == Code.STAGE and (least is None or row[NBYTES] < least))
    if copies or (code == Code.POST and row[NBYTES] <= INLINE_NBYTES):
        return row[NBYTES], row[NBYTES], 0
    return 0, 0, row[NBYTES] if code in (Code.SEND, Code.RECV) else 0
