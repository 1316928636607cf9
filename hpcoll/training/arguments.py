"""Arguments of a parameter server that one rank can see to be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.training.shard_server import ASYNCHRONOUS, SYNCHRONOUS


def check_arguments(
    comm: MPI.Intracomm, servers: Sequence[int] | None, dedicated: bool, mode: str, staleness: int | None, timeout: float, optimizer: Any
) -> None:
    """Refuse what one rank can see to be wrong.

    Raises:
        ArgumentError: with the argument and the rank.
    """
    subject = f"rank {comm.rank}: ParameterServer"
    if servers is not None and (not servers or sorted(set(servers)) != sorted(servers) or not set(servers) <= set(range(comm.size))):
        raise ArgumentError(f"{subject} needs distinct servers among {comm.size} ranks, got {servers}")
    if dedicated and (servers is None or len(servers) == comm.size):
        raise ArgumentError(f"{subject} with dedicated servers needs a rank that is none, got {servers} of {comm.size} ranks")
    if mode not in (SYNCHRONOUS, ASYNCHRONOUS):
        raise ArgumentError(f"{subject} needs mode {SYNCHRONOUS!r} or {ASYNCHRONOUS!r}, got {mode!r}")
    if staleness is not None and (mode != ASYNCHRONOUS or not isinstance(staleness, int) or staleness < 0):
        raise ArgumentError(f"{subject} needs staleness >= 0 and mode {ASYNCHRONOUS!r} for it, got {staleness!r} and {mode!r}")
    if not timeout > 0:
        raise ArgumentError(f"{subject} needs a timeout > 0 s, got {timeout}")
    if not callable(optimizer):
        raise ArgumentError(f"{subject} needs an optimizer that can be called, got {optimizer!r}")
