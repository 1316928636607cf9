"""The flat table that engines walk: its operations and its columns. Floor 5."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

NCOLUMNS = 6


class Code(IntEnum):
    """Operations of a program; the columns that follow the code."""

    RECV = 0  # request, peer, buffer, displacement, nbytes
    SEND = 1  # request, peer, buffer, displacement, nbytes
    WAIT = 2  # request
    COPY = 3  # destination buffer, displacement, source buffer, displacement, nbytes
    REDUCE = 4  # destination buffer, displacement, count, first source, number of sources


@dataclass(frozen=True)
class Program:
    """What an engine runs for one call; displacements in bytes.

    Attributes:
        rows: int64 ``(nrows, 6)``: `Code` and its columns, padded with 0.
        sources: int64 ``(nsources, 2)``: buffer and displacement of the sources of reductions.
        lanes: int64 ``(nlanes, 3)``: first row, last row + 1, displacement of the lane's segment in INPUT and OUTPUT.
        window: Lanes in flight; lane ``i`` runs in place ``i % window``, which is also its tag.
        nrequests: Requests that one lane needs.
        scratch_nbytes: Scratch that one lane needs.
    """

    rows: np.ndarray
    sources: np.ndarray
    lanes: np.ndarray
    window: int
    nrequests: int
    scratch_nbytes: int
