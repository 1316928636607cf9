"""Ranks that run a one-shot kernel's text: each a process with its own machine, in which areas lie at addresses of its own."""

import mmap
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ptx_machine import Machine

from hpcoll.kernels.one_shot_layout import AREA_NBYTES

NTHREADS = 8
machine = lru_cache(maxsize=32)(Machine)


class Place(NamedTuple):
    """Bytes behind the first ones of an array; of two places with one array the first bytes are those of both."""

    array: np.ndarray
    shift: int

    def address(self) -> int:
        assert self.array.ctypes.data % 16 == 0
        return self.array.ctypes.data + self.shift


class Launch(NamedTuple):
    """A launch of one rank; there is no place for what it has no part in."""

    text: str
    sent: Place | None
    received: Place | None
    numbers: tuple[int, ...]  # from ``nbytes`` on
    nblocks: int
    late: float = 0.0  # seconds


def make_channel(folder: Path, nranks: int) -> None:
    """Make the areas and STOP words of all ranks, as files."""
    for rank in range(nranks):
        (folder / f"area{rank}").write_bytes(bytes(AREA_NBYTES))
        (folder / f"stop{rank}").write_bytes(bytes(8))


def words(path: Path) -> np.ndarray:
    """The 64-bit words of a file, which all processes share that map it."""
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)


def play(
    folder: Path, rank: int, nranks: int, launches: Sequence[Launch], patience: float = 30.0
) -> list[np.ndarray | None]:
    """Run the launches of a rank; return the arrays into which it has received."""
    areas = {peer: words(folder / f"area{peer}") for peer in [*range(rank, nranks), *range(rank)]}
    stop = words(folder / f"stop{rank}")
    places = [areas[peer].ctypes.data for peer in range(nranks)]
    channel = np.array([rank, nranks, stop.ctypes.data, *places])
    for one in launches:
        time.sleep(one.late)
        data = [0 if place is None else place.address() for place in (one.sent, one.received)]
        arguments = [channel.ctypes.data, *data, *one.numbers]
        machine(one.text).launch(one.nblocks, NTHREADS, arguments, patience)
    return [one.received and one.received.array for one in launches]
