"""The flat table that engines walk: its operations and its columns. Floor 5."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

NCOLUMNS = 8  # one cache line
BUFFERS = 3  # INPUT, OUTPUT, SCRATCH
MESSAGES = BUFFERS  # from this buffer number on: the message that is in slot ``buffer - MESSAGES``
STAGING = -1  # the rank's part of the shared window
INLINE_NBYTES = 56  # what fits into the line that announces it


class Code(IntEnum):
    """Operations of a program; the columns that follow the code.

    From STAGE on they work on the memory that ranks of a node share; peers are then local ranks. ``direct`` means: where the
    buffer itself is shared, it is read in place.
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
        nslots: Messages from ranks of the node that one lane uses at once.
    """

    rows: np.ndarray
    sources: np.ndarray
    lanes: np.ndarray
    window: int
    nrequests: int
    scratch_nbytes: int
    staging_nbytes: int
    nslots: int
