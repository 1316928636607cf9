"""The rendezvous of an MPI program's ranks for torch.distributed: rank, number of ranks and key-value store, from MPI.

Rank 0 keeps the store, and every thread of the others has a connection to it. torch's own TCPStore asks the name service for the names of
all who connect, one after another, and waits seconds for each answer that does not come; this one asks nothing.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers

from hpcoll.base.authenticated import LOOPBACK, Address
from hpcoll.base.errors import ArgumentError, TransportError
from hpcoll.base.key_value_server import Server, connect
from hpcoll.launch.addresses import addresses, known_as
from hpcoll.launch.start import begins_here, start_in_store, why_alone

if TYPE_CHECKING:
    from mpi4py import MPI

_SCHEME = "env"  # of `init_process_group` that is told nothing
_UNKNOWN = -1
_NAP_S = 0.001


class Store(dist.Store):
    """torch's key-value store, on a `Server`; the rank that keeps the server gives it, and it lives as long as the store.

    ``key`` is the secret that the server asks for, ``limit`` the longest wait for keys.
    """

    def __init__(self, address: Address, key: bytes, limit: timedelta, server: Server | None = None) -> None:
        super().__init__()
        self._address = address
        self._key = key
        self._server = server
        self._mine = threading.local()
        self.set_timeout(limit)
        self._ask("size")

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Return the server's answer."""
        try:
            if not hasattr(self._mine, "connection"):
                self._mine.connection = connect(self._address, self._key)
            self._mine.connection.send((name, *arguments))
            return self._mine.connection.recv()
        except (EOFError, OSError, AuthenticationError) as error:
            where = "{}:{}".format(*self._address)
            raise dist.DistStoreError(
                f"the key-value store of rank 0 at {where} does not answer: {error or 'it has ended'}"
            ) from None

    def _when_there(self, keys: Sequence[str], limit: timedelta | None = None) -> list[bytes]:
        limit_s = (self.timeout if limit is None else limit).total_seconds()
        begun = time.monotonic()
        values = self._ask("get", list(keys), limit_s)
        if values is None:
            waited = time.monotonic() - begun
            raise dist.DistStoreError(f"wait timeout after {1e3 * waited:.0f} ms, keys: {', '.join(keys)}")
        return list(values)

    def get(self, key: str) -> bytes:
        """Return the value of a key, once it is there."""
        return self._when_there([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys, once all are there."""
        return self._when_there(keys)

    def wait(self, keys: list[str], limit: timedelta | None = None) -> None:
        """Return when all keys are there."""
        self._when_there(keys, limit)

    def set(self, key: str, value: str | bytes) -> None:
        """Set a key."""
        self._ask("set", key, _bytes(value))

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        """Set keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, which begins at 0, and return the sum."""
        return int(self._ask("add", key, amount))

    def append(self, key: str, value: str | bytes) -> None:
        """Append to the value of a key, which begins empty."""
        self._ask("append", key, _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key where its value is the expected one, and return the value that it has then."""
        return bytes(self._ask("compare_set", key, _bytes(expected), _bytes(desired)))

    def check(self, keys: list[str]) -> bool:
        """Say whether all keys are there."""
        return bool(self._ask("has", list(keys)))

    def delete_key(self, key: str) -> bool:
        """Delete a key, and say whether it was there."""
        return bool(self._ask("delete", key))

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._ask("size"))

    def has_extended_api(self) -> bool:
        """Say that there are `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> "Store":
        """Return this store, which all threads may use at once."""
        return self

    # As C++ calls them.
    multiGet = multi_get
    multiSet = multi_set
    compareSet = compare_set
    deleteKey = delete_key
    getNumKeys = num_keys
    hasExtendedApi = has_extended_api


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


Rendezvous = Iterator[tuple[dist.Store, int, int]]
_latest: list[Store] = []  # torch holds on to the half of it that is not Python's


def take_over() -> None:
    """Let ``init_process_group`` ask MPI where nobody set ``MASTER_ADDR``; for all backends, since torch looks for the store first."""
    _rendezvous_handlers[_SCHEME] = _by_mpi(_rendezvous_handlers[_SCHEME])


def _by_mpi(by_variables: Callable[..., Rendezvous]) -> Callable[..., Rendezvous]:
    def handler(url: str, timeout: timedelta = dist.default_pg_timeout, **options: Any) -> Rendezvous:
        """Yield store, rank and number of ranks, once."""
        given = "MASTER_ADDR" in os.environ
        if given and begins_here():
            for kept, rank, nranks in by_variables(url, timeout=timeout, **options):
                start_in_store(rank, nranks, kept, timeout.total_seconds(), os.environ["MASTER_ADDR"])
                yield kept, rank, nranks
            return
        world = _world()
        if not given or world.size > 1:
            check_world(*_asked(url))
        if given:
            _await_all(world, timeout.total_seconds())
            yield from by_variables(url, timeout=timeout, **options)
            return
        yield store(world, timeout), world.rank, world.size
        raise RuntimeError("ranks cannot meet a second time: MPI starts and ends a program as a whole")

    return handler


def _await_all(world: "MPI.Intracomm", limit_s: float) -> None:
    """Return when all ranks are here: one that was earlier would find the store of the group before, which rank 0 is about to end."""
    end, request = time.monotonic() + limit_s, world.Ibarrier()
    while not request.Test():
        if time.monotonic() > end:
            raise TransportError(f"rank {world.rank}: not all ranks have come within {limit_s:g} s")
        time.sleep(_NAP_S)


def begin(asked: Any) -> None:
    """Begin MPI for a group that torch asks for, where no launcher of MPI has started its ranks; they are the world then.

    ArgumentError: the group has some ranks only.
    """
    if not begins_here():
        return
    members = list(asked.global_ranks_in_group)
    if members and members != list(range(dist.get_world_size())):
        told = f"rank {dist.get_rank()}: MPI has not begun, and does so with a group of all ranks"
        raise ArgumentError(f"{told}: make one of backend hpcoll first")
    start_in_store(asked.group_rank, asked.group_size, asked.store, asked.timeout.total_seconds())


def _world() -> "MPI.Intracomm":
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _asked(url: str) -> tuple[int, int]:
    """Return rank and number of ranks as the program or the environment says, -1 where neither does."""
    words = dict(word.split("=", 1) for word in url.partition("?")[2].split("&") if "=" in word)
    rank, nranks = (
        int(words.get(key, os.environ.get(name, _UNKNOWN)))
        for key, name in (("rank", "RANK"), ("world_size", "WORLD_SIZE"))
    )
    return rank, nranks


def check_world(rank: int, nranks: int) -> None:
    """Compare the rank and number of ranks that a program says, -1 for none, with those of MPI.

    Where they differ, the ArgumentError says how to start the program.
    """
    world = _world()
    if rank in (_UNKNOWN, world.rank) and nranks in (_UNKNOWN, world.size):
        return
    told = f"rank {world.rank}: backend hpcoll needs MPI's ranks, rank {world.rank} of {world.size}, got rank {rank} of {nranks}"
    if world.size == 1:
        told += f": {why_alone()}"
    raise ArgumentError(told)


def store(world: "MPI.Intracomm", timeout: timedelta) -> Store:
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


def _candidates(world: "MPI.Intracomm") -> list[str]:
    """Return addresses of rank 0: as other hosts know its name, then those of its interfaces. Collective; the same on all ranks."""
    facts = world.allgather((socket.gethostname(), addresses()))
    (first, mine), names = facts[0], {name for name, _ in facts}
    if len(names) == 1:
        return [LOOPBACK]
    known = world.allgather(known_as(first) if socket.gethostname() != first else "")
    return [
        address for address in dict.fromkeys([*known, *mine]) if address and not address.startswith("127.")
    ]


def _meet(world: "MPI.Intracomm", host: str, timeout: timedelta) -> tuple[Store | None, str]:
    """Return a store whose server listens at an address of rank 0's, and why a rank does not reach it; collective."""
    server = None
    made = None
    problem = ""
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
