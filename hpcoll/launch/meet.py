"""The meeting of a job's ranks, as each of them takes part: rank 0 starts the process in which they meet, and all connect to it."""

import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from typing import Any, NamedTuple, Protocol

from hpcoll.base import authenticated, children
from hpcoll.base.authenticated import LOOPBACK, Address
from hpcoll.base.errors import TransportError
from hpcoll.base.machine import node_identity
from hpcoll.base.text import ranks_in_words
from hpcoll.launch.addresses import addresses
from hpcoll.launch.meeting import Hello, program
from hpcoll.launch.secret import VARIABLE, derived

_LATER_S = 10.0  # the process tells who is missing; so much longer ranks wait for it
_TRIES_S = 0.02, 0.5  # pause between tries to reach the process: the first, and the longest
_KEY = "hpcoll/meeting"  # in a store
_GONE = b'{"error": "the process in which the ranks meet has gone, or rank 0 with it"}'
_started: list[subprocess.Popen[bytes]] = []  # nobody waits for them


class Where(Protocol):
    """The place where ranks meet, and the key by which they know each other."""

    def listens(self) -> tuple[Address, bytes]:
        """Return where rank 0 listens, port 0 for any, and the key."""

    def tell(self, port: int) -> None:
        """Tell the others the port, on rank 0."""

    def find(self) -> tuple[list[Address], bytes]:
        """Return the addresses that other ranks try, and the key."""


class AtAddress(NamedTuple):
    """A meeting at an address that all ranks know, as they know the key."""

    address: Address
    key: bytes

    def listens(self) -> tuple[Address, bytes]:
        """Return both."""
        return self.address, self.key

    def tell(self, port: int) -> None:
        """Nothing: the others know it."""

    def find(self) -> tuple[list[Address], bytes]:
        """Return both."""
        return [self.address], self.key


class InStore:
    """A meeting whose address rank 0 writes into a key-value store of torch, with half of the key; ``more`` is the other half.

    ``local`` says that all ranks are on this host.
    """

    def __init__(self, store: Any, local: bool, more: bytes) -> None:
        self._store, self._local, self._more = store, local, more
        self._half = secrets.token_bytes(32)

    def listens(self) -> tuple[Address, bytes]:
        """Return any port of loopback, or of all addresses."""
        return (LOOPBACK if self._local else "", 0), derived(self._more, self._half)

    def tell(self, port: int) -> None:
        """Write it into the store."""
        hosts = [LOOPBACK] if self._local else [*addresses(), LOOPBACK]
        self._store.set(_KEY, json.dumps([hosts, port, self._half.hex()]))

    def find(self) -> tuple[list[Address], bytes]:
        """Wait for rank 0's words in the store."""
        hosts, port, half = json.loads(self._store.get(_KEY))
        return [(host, port) for host in hosts], derived(self._more, bytes.fromhex(half))


def meet(rank: int, nranks: int, where: Where, limit_s: float) -> tuple[socket.socket, dict[str, Any]]:
    """Return the connection that serves PMI to this rank, and what it was told of itself, once all ranks have come; collective.

    TransportError: not all have come within ``limit_s`` seconds, or they do not know the same key.
    """
    end, me = time.monotonic() + limit_s, f"rank {rank} of {nranks}"
    process = None
    try:
        if rank == 0:
            listens, key = where.listens()
            process = _start(nranks, listens, key, limit_s)
            told = _answer(process.stdout)
            if "error" in told:
                raise TransportError(f"{me}: ranks cannot meet at {_named(listens)}: {told['error']}")
            where.tell(told["port"])
            places: list[Address] = [listens if isinstance(listens, str) else (told["host"], told["port"])]
            sock = _connected(me, lambda: (places, key), end, limit_s)
        else:
            sock = _connected(me, where.find, end, limit_s)
        sock.settimeout(max(0.0, end - time.monotonic()) + _LATER_S)
        here = Hello(
            rank, nranks, node_identity(), f"process {os.getpid()} on {os.uname().nodename}", os.getpid()
        )
        try:
            sock.sendall(json.dumps(here).encode() + b"\n")
            with sock.makefile("rb") as lines:
                told = _answer(lines)
            if "local_rank" in told:
                sock.settimeout(None)
                sock.sendall(b"\0")
                return sock, told
        except OSError as error:
            told = {"error": str(error)}
        sock.close()
        raise TransportError(f"{me}: {told.get('error') or _missing(told['missing'], limit_s)}")
    finally:
        if process and process.stdin:
            process.stdin.close()


def _missing(ranks: list[int], limit_s: float) -> str:
    """Say who has not come."""
    return f"{ranks_in_words(ranks)} {'has' if len(ranks) == 1 else 'have'} not come within {limit_s:g} s"


def _answer(lines: Any) -> dict[str, Any]:
    """Return the next line of JSON."""
    answer: dict[str, Any] = json.loads(lines.readline() or _GONE)
    return answer


def _start(nranks: int, address: Address, key: bytes, limit_s: float) -> subprocess.Popen[bytes]:
    """Start the process in which ranks meet; it goes by itself, when all ranks have gone, or with this one before that."""
    process = subprocess.Popen(
        children.python(program("main")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
    )
    _started.append(process)
    asked = {"address": address, "key": key.hex(), "nranks": nranks, "limit_s": limit_s}
    assert process.stdin
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    process.stdin.flush()
    return process


def _connected(
    me: str, find: Callable[[], tuple[list[Address], bytes]], end: float, limit_s: float
) -> socket.socket:
    """Return a connection to the process in which ranks meet, once it listens; a store may have an earlier one's words at first."""
    for pause_s in _pauses():
        problems = []
        places, key = find()
        for address in places:
            try:
                return authenticated.connect(address, key)
            except AuthenticationError:
                same = f"set {VARIABLE} to the same text on all hosts, or give the same key"
                raise TransportError(
                    f"{me}: what listens at {_named(address)} has another key: {same}"
                ) from None
            except (OSError, EOFError) as error:
                problems.append(f"{_named(address)}: {error or 'it has no room'}")
        if time.monotonic() > end:
            raise TransportError(f"{me}: rank 0 has not come within {limit_s:g} s: {'; '.join(problems)}")
        time.sleep(pause_s)
    raise AssertionError


def _pauses() -> Iterator[float]:
    pause_s, longest_s = _TRIES_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)


def _named(address: Address) -> str:
    """Return an address for texts."""
    return "a socket of this host" if isinstance(address, str) else "{}:{}".format(*address)
