"""How the ranks of an MPI program find each other for torch.distributed: rank, number of ranks and key-value store, from MPI."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.rendezvous import _rendezvous_handlers

from hpcoll.base.errors import ArgumentError, TransportError
from hpcoll.torch.store import Server, Store

_SCHEME = "env"  # of `init_process_group` that is told nothing
_CONNECT_S = 3.0
_UNKNOWN = -1
_HERE = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # of Linux: an interface's address

Rendezvous = Iterator[tuple[dist.Store, int, int]]
_latest: list[Store] = []  # torch holds on to the half of it that is not Python's


def take_over() -> None:
    """Let ``init_process_group`` ask MPI where nobody set ``MASTER_ADDR``; for all backends, since torch looks for the store first."""
    _rendezvous_handlers[_SCHEME] = _by_mpi(_rendezvous_handlers[_SCHEME])


def _by_mpi(by_variables: Callable[..., Rendezvous]) -> Callable[..., Rendezvous]:
    def handler(url: str, timeout: timedelta = dist.default_pg_timeout, **options: Any) -> Rendezvous:
        """Store, rank and number of ranks, once."""
        given = "MASTER_ADDR" in os.environ
        if not given or MPI.COMM_WORLD.size > 1:
            check_world(*_asked(url))
        if given:
            yield from by_variables(url, timeout=timeout, **options)
            return
        yield store(MPI.COMM_WORLD, timeout), MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        raise RuntimeError("ranks cannot meet a second time: MPI starts and ends a program as a whole")

    return handler


def _asked(url: str) -> tuple[int, int]:
    """Rank and number of ranks as the program or the environment says, -1 where neither does."""
    words = dict(word.split("=", 1) for word in url.partition("?")[2].split("&") if "=" in word)
    rank, nranks = (int(words.get(key, os.environ.get(name, _UNKNOWN))) for key, name in (("rank", "RANK"), ("world_size", "WORLD_SIZE")))
    return rank, nranks


def check_world(rank: int, nranks: int) -> None:
    """Compare what a program says, -1 for nothing, with MPI.

    Raises:
        ArgumentError: it differs; says how to start the program.
    """
    world = MPI.COMM_WORLD
    if rank in (_UNKNOWN, world.rank) and nranks in (_UNKNOWN, world.size):
        return
    told = f"rank {world.rank}: backend hpcoll needs MPI's ranks, rank {world.rank} of {world.size}, got rank {rank} of {nranks}"
    if "TORCHELASTIC_RUN_ID" in os.environ or world.size == 1:
        told += f": start the program by mpirun -n {nranks} python ... or srun, not by torchrun, whose processes MPI does not know"
    raise ArgumentError(told)


def store(world: MPI.Intracomm, timeout: timedelta) -> Store:
    """The key-value store that rank 0 keeps and all ranks reach; collective.

    Raises:
        TransportError: on every rank, when one of them reaches rank 0 by none of its addresses.
    """
    server = Server() if world.rank == 0 else None
    told = (server.port, server.key, socket.gethostname(), _addresses()) if server else None
    port, key, host, addresses = world.bcast(told)
    candidates = [_HERE] if host == socket.gethostname() else [host, *addresses]
    made, problem = None, ""
    try:
        made = Store((_reached(candidates, port, world.rank), port), key, timeout, server)
    except (TransportError, dist.DistStoreError) as error:
        problem = str(error)
    problem = next(filter(None, world.allgather(problem)), "")
    if made is None or problem:
        raise TransportError(problem)
    _latest[:] = [made]
    return made


def _addresses() -> list[str]:
    """IPv4 addresses of this host's network interfaces but loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith("127.")]


def _reached(candidates: list[str], port: int, rank: int) -> str:
    """The first address at which rank 0 listens."""
    if len(candidates) == 1:
        return candidates[0]
    for address in candidates:
        with suppress(OSError), socket.create_connection((address, port), _CONNECT_S):
            return address
    raise TransportError(f"rank {rank}: rank 0 cannot be reached at {', '.join(candidates)}, port {port}: set MASTER_ADDR and MASTER_PORT")
