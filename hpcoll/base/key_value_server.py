"""A key-value store in one process, and connections to it for clients that know its key: `hpcoll.base.authenticated` lets them in."""

import os
import secrets
import socket
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from hpcoll.base import authenticated
from hpcoll.base.authenticated import HANDSHAKE_S, LOOPBACK, Acceptor, Address


class Table:
    """The keys and values, for many threads at once."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._ended = False

    def set(self, key: str, value: bytes) -> None:
        """Set a value and wake the threads that wait for it."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, keys: Sequence[str], limit_s: float) -> list[bytes] | None:
        """Return the values of keys once all exist; None when that takes longer than ``limit_s``. EOFError: the table has ended."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._ended or self._values.keys() >= set(keys), limit_s)
            if self._ended:
                raise EOFError
            return [self._values[key] for key in keys] if found else None

    def has(self, keys: Sequence[str]) -> bool:
        """Say whether all keys exist."""
        return self.get(keys, 0) is not None

    def add(self, key: str, amount: int) -> int:
        """Add to a decimal number, which begins at 0, and return the sum."""
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self.set(key, str(total).encode())
            return total

    def append(self, key: str, value: bytes) -> None:
        """Append to a value, which begins empty."""
        with self._changed:
            self.set(key, self._values.get(key, b"") + value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a key that has the expected value, or a new key of which b"" is expected; return its value afterwards."""
        with self._changed:
            found = self._values.get(key)
            if found == expected or (found is None and not expected):
                self.set(key, desired)
            return self._values.get(key, expected)

    def delete(self, key: str) -> bool:
        """Delete a key and say whether it existed."""
        with self._changed:
            return self._values.pop(key, None) is not None

    def size(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def end(self) -> None:
        """Wake all waiting threads for good."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def serve(self, sock: socket.socket, acceptor: Acceptor) -> None:
        """Answer one client until it disconnects."""
        connection = Connection(sock.fileno())
        try:
            with suppress(EOFError, OSError):
                while True:
                    name, *arguments = connection.recv()
                    connection.send(getattr(self, name)(*arguments))
        finally:
            with acceptor.leaving(sock):
                sock.detach()
                connection.close()


class Server:
    """The server of a key-value store, which listens at one IPv4 address of this host, and ends when it is dropped.

    Attributes:
        address: Host and port.
        key: 32 bytes that clients must know.
        table: The keys and values.
    """

    def __init__(self, host: str = LOOPBACK, handshake_s: float = HANDSHAKE_S) -> None:
        listener = authenticated.listen((host, 0))
        self.address: tuple[str, int] = listener.getsockname()
        self.key = secrets.token_bytes(32)
        self.table = Table()
        ours, its = socket.socketpair()
        acceptor = Acceptor(listener, its, self.key, self.table.serve, handshake_s)
        threading.Thread(target=_run, args=(acceptor, self.table), name="hpcoll-store", daemon=True).start()
        weakref.finalize(self, _stop, ours, os.getpid()).atexit = False


def _run(acceptor: Acceptor, table: Table) -> None:
    """Let clients in until the server ends, and tell those that are there."""
    acceptor.accept()
    table.end()
    acceptor.shut_clients()


def _stop(waking: socket.socket, pid: int) -> None:
    """End the server's thread, unless this process is a fork's child, which has but a copy of the server."""
    with waking, suppress(OSError):
        if os.getpid() == pid:
            waking.send(b"\0")


def connect(address: Address, key: bytes, handshake_s: float = HANDSHAKE_S) -> Connection:
    """Connect to a server, as `authenticated.connect`.

    A client sends the name of a method of `Table` with its arguments, and receives the result.
    """
    return Connection(authenticated.connect(address, key, handshake_s).detach())
