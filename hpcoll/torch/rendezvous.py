"""The rendezvous of an MPI program's ranks for torch.distributed: rank, number of ranks and key-value store, from MPI."""

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
from hpcoll.base.key_value_server import LOOPBACK, Server
from hpcoll.torch.store import Store

_SCHEME = "env"  # of `init_process_group` that is told nothing
_UNKNOWN = -1
_SIOCGIFADDR = 0x8915  # of Linux: an interface's address

Rendezvous = Iterator[tuple[dist.Store, int, int]]
_latest: list[Store] = []  # torch holds on to the half of it that is not Python's


def take_over() -> None:
    """Let ``init_process_group`` ask MPI where nobody set ``MASTER_ADDR``; for all backends, since torch looks for the store first."""
    _rendezvous_handlers[_SCHEME] = _by_mpi(_rendezvous_handlers[_SCHEME])


def _by_mpi(by_variables: Callable[..., Rendezvous]) -> Callable[..., Rendezvous]:
    def handler(url: str, timeout: timedelta = dist.default_pg_timeout, **options: Any) -> Rendezvous:
        """Yield store, rank and number of ranks, once."""
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
    """Return rank and number of ranks as the program or the environment says, -1 where neither does."""
    words = dict(word.split("=", 1) for word in url.partition("?")[2].split("&") if "=" in word)
    rank, nranks = (int(words.get(key, os.environ.get(name, _UNKNOWN))) for key, name in (("rank", "RANK"), ("world_size", "WORLD_SIZE")))
    return rank, nranks


def check_world(rank: int, nranks: int) -> None:
    """Compare the rank and number of ranks that a program says, -1 for none, with those of MPI.

    Where they differ, the ArgumentError says how to start the program.
    """
    world = MPI.COMM_WORLD
    if rank in (_UNKNOWN, world.rank) and nranks in (_UNKNOWN, world.size):
        return
    told = f"rank {world.rank}: backend hpcoll needs MPI's ranks, rank {world.rank} of {world.size}, got rank {rank} of {nranks}"
    if "TORCHELASTIC_RUN_ID" in os.environ or world.size == 1:
        told += f": start the program by mpirun -n {nranks} python ... or srun, not by torchrun, whose processes MPI does not know"
    raise ArgumentError(told)


def store(world: MPI.Intracomm, timeout: timedelta) -> Store:
    """Return a key-value store that rank 0 keeps and all ranks reach; collective.

    It listens at one address: of loopback where all ranks are on one host, or else the first of rank 0's that all ranks reach. All ranks
    raise TransportError where there is no such address.
    """
    problems = []
    for host in _candidates(world):
        made, problem = _meet(world, host, timeout)
        if made and not problem:
            _latest[:] = [made]
            return made
        problems.append(problem)
    told = "; ".join(problems) or "rank 0 has no IPv4 address but loopback"
    raise TransportError(f"rank {world.rank}: ranks do not meet: {told}: set MASTER_ADDR and MASTER_PORT")


def _candidates(world: MPI.Intracomm) -> list[str]:
    """Return addresses of rank 0: as other hosts know its name, then those of its interfaces. Collective; the same on all ranks."""
    facts = world.allgather((socket.gethostname(), _addresses()))
    (first, addresses), names = facts[0], {name for name, _ in facts}
    if len(names) == 1:
        return [LOOPBACK]
    known = world.allgather(_known_as(first) if socket.gethostname() != first else "")
    return [address for address in dict.fromkeys([*known, *addresses]) if address and not address.startswith("127.")]


def _known_as(name: str) -> str:
    """Return the address of a host's name as this host knows it, or an empty text."""
    with suppress(OSError, UnicodeError):
        return socket.gethostbyname(name)
    return ""


def _addresses() -> list[str]:
    """Return IPv4 addresses of this host's network interfaces."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _meet(world: MPI.Intracomm, host: str, timeout: timedelta) -> tuple[Store | None, str]:
    """Return a store whose server listens at an address of rank 0's, and why a rank does not reach it; collective."""
    server, made, problem = None, None, ""
    try:
        if world.rank == 0:
            server = Server(host)
    except OSError as error:
        problem = f"rank 0: {host}: {error}"
    address, key = world.bcast((server.address, server.key) if server else (None, b""))
    try:
        if address:
            made = Store(address, key, timeout, server)
    except dist.DistStoreError as error:
        problem = f"rank {world.rank}: {error}"
    return made, next(filter(None, world.allgather(problem)), "")
