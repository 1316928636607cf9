"""Ranks whose program ends before it has made a communicator.

Such a rank has nothing that others map or could ask. So it writes how it ended on its status page, before MPI_Finalize, where it waits for
the others. Those that wait for it at a first use look for such a page.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpi4py import MPI

from hpcoll.base.machine import PROC, how_it_ends, program_words
from hpcoll.base.text import LINE, printable
from hpcoll.runtime.telemetry.status_page import Identity, StatusPage, launcher, page_of
from hpcoll.runtime.transports.mpi import why_unusable


def say(how: str = "") -> None:
    """Say that this process ends, and how, if it has made no communicator, and others may wait for it."""
    if StatusPage.made or why_unusable() or MPI.COMM_WORLD.size == 1:
        return
    with contextlib.suppress(AttributeError, OSError):  # the system makes no such files
        page = StatusPage(stays=True)
        page.introduce(identity(time.time(), {MPI.COMM_WORLD.rank: os.getpid()}))
        page.write({"waits": [], "failed": [], "left": how or how_it_ends()})


def identity(started: float, peers: Mapping[int, int]) -> Identity:
    """Return the identity of this process, with a time and processes as `Identity` has them."""
    world, host = MPI.COMM_WORLD, os.uname().nodename
    return Identity(os.getpid(), world.rank, world.size, launcher(), host, started, peers, program_words())


def find(ranks: Sequence[int]) -> tuple[int, str] | None:
    """Return one of some ranks of COMM_WORLD that has ended, on this node, with its process and how, as text; None where there is none."""
    return next(
        (
            (who.rank, f"(process {who.pid} on {who.host}) {left}")
            for who, left in ends()
            if who.rank in ranks
        ),
        None,
    )


def ends() -> Iterator[tuple[Identity, str]]:
    """Yield the ranks of this job that have ended, on this node, whose processes still wait, and how they have ended."""
    said = ((who, printable(str(notice.get("left", "")), LINE)) for who, notice in pages())
    return (page for page in said if page[1])


def pages() -> Iterator[tuple[Identity, dict[str, Any]]]:
    """Yield what the status pages of this job's ranks have, on this node; those of this user alone."""
    mine = (launcher(), os.uname().nodename, MPI.COMM_WORLD.size)
    for folder in PROC.glob("[0-9]*"):
        try:
            who, notice = page_of(folder, own=True) or (None, {})
        except (OSError, ValueError):  # not ours, gone, or being written
            continue
        if who is not None and (who.launcher, who.host, who.nranks) == mine:
            yield who, notice
