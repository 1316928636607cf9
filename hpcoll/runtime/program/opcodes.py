"""The flat table that engines walk: its operations and its columns."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

CACHE_LINE_NBYTES = 64  # of a cache line
NCOLUMNS = 8  # one cache line
BUFFERS = 3  # INPUT, OUTPUT, SCRATCH
MESSAGES = BUFFERS  # from this buffer number on: the message that is in slot ``buffer - MESSAGES``
STAGING = -1  # the rank's part of the shared window
PINNED = -2  # of a device program: host memory of the lane's place, which the GPU reads and writes
INLINE_NBYTES = 56  # what fits into the line that announces it


def aligned(nbytes: int, boundary: int = CACHE_LINE_NBYTES) -> int:
    """The next multiple of a cache line, or of another boundary."""
    return -(-nbytes // boundary) * boundary


class Code(IntEnum):
    """Operations of a program; the columns that follow the code.

    From STAGE on they work on the memory that ranks of a node share; peers are then local ranks. ``direct`` means: where the
    buffer itself is shared, it is read in place.

    In a device program COPY, REDUCE and STAGE are asynchronous: they go to the stream of the lane's place and run there in order.
    All others act at once, on the host. A POST is never inline there, and ``direct`` decides alone: 1, the peer reads the buffer,
    which is GPU memory, where it lies; 0, it reads what was staged. There is no DRAIN; UNREAD stands for it.
    """

    RECV = 0  # request, peer, buffer, displacement, nbytes
    SEND = 1  # request, peer, buffer, displacement, nbytes
    WAIT = 2  # request
    COPY = 3  # destination buffer, displacement, source buffer, displacement, nbytes
    REDUCE = 4  # destination buffer, displacement, count, first source, number of sources, nbytes
    STAGE = 5  # -, displacement in STAGING, buffer, displacement, nbytes, direct: copy into the shared window
    POST = 6  # peer, displacement in STAGING, buffer, displacement, nbytes, direct: announce a message; waits for a free line
    AWAIT = 7  # peer, slot, -, -, nbytes: wait for a message
    ACK = 8  # peer: the oldest message that is not acknowledged has been used
    DRAIN = 9  # peer, -, buffer: wait until messages read in place have been used
    RESERVE = 10  # take room in the shared window; waits while there is none
    RECORD = 11  # event slot: record the stream's event, behind the operation before this row
    SYNC = 12  # event slot: wait until the event has been reached; slot 0: the caller's earlier work is done
    UNREAD = 13  # peer, allowed: wait until at most so many of the messages posted to the peer in this place are not acknowledged


class Ways(NamedTuple):
    """How the messages of a rank whose arrays are in GPU memory travel.

    Attributes:
        mapped: Ranks of the node that read this rank's GPU memory where it lies.
        direct: Whether the MPI library takes GPU addresses.
        exported: Whether INPUT and OUTPUT may be read where they lie, too; SCRATCH always may.
    """

    mapped: frozenset[int]
    direct: bool
    exported: tuple[bool, bool]


@dataclass(frozen=True)
class Program:
    """What an engine runs for one call; displacements in bytes.

    Attributes:
        rows: int64 ``(nrows, 8)``: `Code` and its columns, padded with 0.
        sources: int64 ``(nsources, 2)``: buffer and displacement of the sources of reductions.
        lanes: int64 ``(nlanes, 3)``: first row, last row + 1, displacement of the lane's segment in INPUT and OUTPUT.
        window: Lanes in flight; lane ``i`` runs in place ``i % window``, which is also its tag.
        nrequests: Requests that one lane needs.
        scratch_nbytes: Scratch that one lane needs.
        staging_nbytes: Shared window that one lane needs.
        nmessages: Messages from ranks of the node that one lane uses at once.
        nevents: Event slots that one lane needs, slot 0 included; 0: a host program.
        pinned_nbytes: PINNED that one lane needs.
    """

    rows: np.ndarray
    sources: np.ndarray
    lanes: np.ndarray
    window: int
    nrequests: int
    scratch_nbytes: int
    staging_nbytes: int
    nmessages: int
    nevents: int = 0
    pinned_nbytes: int = 0
