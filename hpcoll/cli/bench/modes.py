"""How a collective is called: blocking, by a persistent request or one made for each call, nonblocking, with work meanwhile. No MPI.

mpi4py's names tell the modes apart: ``Allreduce``, ``Allreduce_init``, ``Iallreduce``.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

BLOCKING, PERSISTENT, NONBLOCKING, OVERLAP, INIT = "blocking", "persistent", "nonblocking", "overlap", "init"
MODES = (BLOCKING, PERSISTENT, NONBLOCKING, OVERLAP, INIT)
SAME, NEW = "same", "new"  # sizes of calls that are timed together
BARE, LIST = "bare", "list"  # arguments: an array, or ``[array, datatype]``
ORDINARY, SYMMETRIC, DEVICE = "ordinary", "symmetric", "device"
MEMORIES = (ORDINARY, SYMMETRIC, DEVICE)
_SLICE = 1024  # elements of the work's arrays: they stay in the first cache, and NumPy gives up the GIL for each pass over them

Call = Callable[[], object]


class CallMode(NamedTuple):
    """One way to make a call.

    Attributes:
        start: Returns a request in the modes that have one per call; else the same as ``call``.
        call: From start to end.
        free: Gives back what the form holds; collective for a persistent one.
    """

    start: Callable[[], Any]
    call: Call
    free: Call


def method_in(name: str, mode: str) -> str:
    """Name of a method in a mode, from the blocking one's.

    >>> [method_in("Reduce_scatter_block", mode) for mode in MODES[1:3]]
    ['Reduce_scatter_block_init', 'Ireduce_scatter_block']
    """
    if mode == BLOCKING:
        return name
    return f"{name}_init" if mode in (PERSISTENT, INIT) else f"I{name[0].lower()}{name[1:]}"


def form(bound: Callable[[], Any], mode: str) -> CallMode:
    """The form of a bound method; in persistent mode it makes the request, which is collective."""
    if mode == BLOCKING:
        return CallMode(bound, bound, _nothing)
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

        return CallMode(once, once, _nothing)
    return CallMode(bound, lambda: bound().Wait(), _nothing)


def cycled(calls: Sequence[Call]) -> Call:
    """One of several calls after the other, over and over."""
    following = cycle(calls)

    def call() -> object:
        return next(following)()

    return call


def work(slices: int) -> Call:
    """NumPy work of ``slices`` passes over arrays in the first cache; allocates nothing and calls no MPI."""
    values, ones = np.ones(_SLICE), np.ones(_SLICE)

    def passes() -> None:
        for _ in range(slices):
            np.multiply(values, ones, out=values)

    return passes


def overlapped(start: Callable[[], Any], meanwhile: Call) -> Call:
    """Start, work, wait."""

    def both() -> None:
        request = start()
        meanwhile()
        request.Wait()

    return both


def hidden_share(comm: np.ndarray, alone: np.ndarray, both: np.ndarray) -> float:
    """Share of the shorter of two things that vanishes when they overlap: 1 all of it, 0 none, below 0 when they hinder each other.

    Args:
        comm, alone, both: Times of the communication, of the work, and of both at once, in the same rounds.

    Returns:
        The median over rounds; noise may carry it a little above 1.

    >>> hidden_share(np.array([4.0]), np.array([5.0]), np.array([6.0]))
    0.75
    """
    return float(np.median((comm + alone - both) / np.minimum(comm, alone)))


def _nothing() -> None:
    """What a form that holds nothing gives back."""
