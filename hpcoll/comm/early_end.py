"""Ranks whose program ends before it has made a communicator: what such a rank says of that, and how others of its node come to know it.

It has nothing that others map or could ask. So it says how it ended on its live page, before MPI_Finalize, where it waits for the others;
those that wait for it at a first use look for such a page.
"""

import contextlib
import os
import sys
import time
from collections.abc import Sequence

from mpi4py import MPI

from hpcoll.base.processes import PROC, how_it_ends
from hpcoll.runtime.transports.live_page import LivePage, Who, launcher, page_of


def say() -> None:
    """Say that this process ends, if it has made no communicator, and others may wait for it."""
    if LivePage.made or not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.size == 1:
        return
    with contextlib.suppress(AttributeError, OSError):  # the system makes no such files
        page, world, pid = LivePage(stays=True), MPI.COMM_WORLD, os.getpid()
        peers, program = {world.rank: pid}, getattr(sys, "argv", [])
        page.introduce(Who(pid, world.rank, world.size, launcher(), os.uname().nodename, time.time(), peers, program))
        page.write({"waits": [], "failed": [], "left": how_it_ends()})


def find(ranks: Sequence[int]) -> tuple[int, str] | None:
    """Which of some ranks of COMM_WORLD has ended, on this node, and its process and how, as text; None where none is found."""
    mine, size = (launcher(), os.uname().nodename), MPI.COMM_WORLD.size
    for folder in PROC.glob("[0-9]*"):
        try:
            who, notice = page_of(folder) or (None, {})
        except (OSError, ValueError):  # not ours, gone, or being written
            continue
        left = notice.get("left", "")
        if who is not None and left and who.rank in ranks and (who.launcher, who.host) == mine and who.nranks == size:
            return who.rank, f"(process {who.pid} on {who.host}) {left}"
    return None
