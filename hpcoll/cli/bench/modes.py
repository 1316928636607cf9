"""Modes of a collective call: blocking, persistent, a persistent request made anew for each call, nonblocking, with work meanwhile. No MPI.

mpi4py's names tell the modes apart: ``Allreduce``, ``Allreduce_init``, ``Iallreduce``.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

BLOCKING, PERSISTENT, NONBLOCKING, OVERLAP, INIT = "blocking", "persistent", "nonblocking", "overlap", "init"
MODES = (BLOCKING, PERSISTENT, NONBLOCKING, OVERLAP, INIT)
CALLS, OBJECTS, PLAN = "calls", "objects", "plan"  # in place of a collective
SAME, NEW = "same", "new"  # sizes of calls that are timed together
BARE, LIST = "bare", "list"  # arguments: an array, or ``[array, datatype]``
ORDINARY, SYMMETRIC, DEVICE = "ordinary", "symmetric", "device"
MEMORIES = (ORDINARY, SYMMETRIC, DEVICE)
_SLICE = 1024  # elements of the work's arrays: they stay in the first cache, and NumPy gives up the GIL for each pass over them

Call = Callable[[], object]


class CallMode(NamedTuple):
    """A call in one mode."""

    # returns a request in the modes that have one per call; else the same as ``call``
    start: Callable[[], Any]
    call: Call  # the whole call, from start to end
    free: Call  # frees what the call holds; collective in persistent mode


def method_in(name: str, mode: str) -> str:
    """Return the name of a method in a mode, from the blocking one's.

    >>> [method_in("Reduce_scatter_block", mode) for mode in MODES[1:3]]
    ['Reduce_scatter_block_init', 'Ireduce_scatter_block']
    """
    if mode == BLOCKING:
        return name
    return f"{name}_init" if mode in (PERSISTENT, INIT) else f"I{name[0].lower()}{name[1:]}"


def in_mode(bound: Callable[[], Any], mode: str) -> CallMode:
    """Return a bound method as a call in a mode; in persistent mode this makes the request, which is collective."""
    if mode == BLOCKING:
        return CallMode(bound, bound, nothing)
    if mode == PERSISTENT:
        request = bound()

        def restart() -> None:
            request.Start()
            request.Wait()

        return CallMode(restart, restart, request.Free)
    if mode == INIT:

        def once() -> None:
            request = bound()
            request.Start()
            request.Wait()
            request.Free()

        return CallMode(once, once, nothing)
    return CallMode(bound, lambda: bound().Wait(), nothing)


def cycled(calls: Sequence[Call]) -> Call:
    """Return a call that makes one of several after the other, over and over."""
    following = cycle(calls)
    return lambda: next(following)()


def work(slices: int) -> Call:
    """Return NumPy work of ``slices`` passes over arrays in the first cache; it allocates nothing and calls no MPI."""
    values, ones = np.ones(_SLICE), np.ones(_SLICE)

    def passes() -> None:
        for _ in range(slices):
            np.multiply(values, ones, out=values)

    return passes


def overlapped(start: Callable[[], Any], meanwhile: Call) -> Call:
    """Return a call that starts a request, works, and waits."""

    def both() -> None:
        request = start()
        meanwhile()
        request.Wait()

    return both


def hidden_share(comm: np.ndarray, alone: np.ndarray, both: np.ndarray) -> float:
    """Return the share of the shorter of communication and work that vanishes when they overlap, from their times in each round.

    It is 1 where all of it vanishes, 0 where nothing does, below 0 where they hinder each other; noise may carry it a little above 1.

    >>> hidden_share(np.array([4.0]), np.array([5.0]), np.array([6.0]))
    0.75
    """
    return float(np.median((comm + alone - both) / np.minimum(comm, alone)))


def nothing() -> None:
    """Do nothing."""
