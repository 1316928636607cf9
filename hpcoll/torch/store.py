"""The key-value store of ranks that MPI started: rank 0 keeps it, and every thread of the others has a connection to it.

torch's own TCPStore asks the name service for the names of all who connect, one after another, and waits seconds for each answer that does
not come; this one asks nothing.
"""

import secrets
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

import torch.distributed as dist

Address = tuple[str, int]


class _Table:
    """Keys and values, and whoever waits for them; used by many threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, keys: Sequence[str], limit_s: float) -> list[bytes] | None:
        """Values of keys, once there are all; None when there are not in time."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._values.keys() >= set(keys), limit_s)
            return [self._values[key] for key in keys] if found else None

    def has(self, keys: Sequence[str]) -> bool:
        return self.get(keys, 0) is not None

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self.set(key, str(total).encode())
            return total

    def append(self, key: str, value: bytes) -> None:
        with self._changed:
            self.set(key, self._values.get(key, b"") + value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """What the key has then: what is desired where it had what is expected, or nothing was expected of a key that is not there."""
        with self._changed:
            found = self._values.get(key)
            if found == expected or (found is None and not expected):
                self.set(key, desired)
            return self._values.get(key, expected)

    def delete(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None

    def size(self) -> int:
        return len(self._values)


class Server:
    """Serves a table to whoever knows the key, until it is dropped.

    Attributes:
        port: On all of this host's addresses.
        key: That clients must know.
    """

    def __init__(self) -> None:
        self.key, listener = secrets.token_bytes(32), Listener(("0.0.0.0", 0), backlog=1024)
        self.port: int = listener.address[1]
        threading.Thread(target=_accept, args=(listener, _Table(), self.key), name="hpcoll-torch-store", daemon=True).start()
        weakref.finalize(self, _stop, self.port, self.key).atexit = False


def _accept(listener: Listener, table: _Table, key: bytes) -> None:
    stop = threading.Event()
    while not stop.is_set():
        with suppress(OSError):  # whoever connected has gone
            connection = listener.accept()
            threading.Thread(target=_serve, args=(connection, table, key, stop), name="hpcoll-torch-store", daemon=True).start()
    listener.close()


def _serve(connection: Connection, table: _Table, key: bytes, stop: threading.Event) -> None:
    """Answer one client until it goes."""
    with connection, suppress(EOFError, OSError, AuthenticationError):
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        while not stop.is_set():
            name, *arguments = connection.recv()
            if name == "stop":
                stop.set()
            else:
                connection.send(getattr(table, name)(*arguments))


def _stop(port: int, key: bytes) -> None:
    with suppress(OSError, EOFError):
        Client(("127.0.0.1", port), authkey=key).send(("stop",))
        Client(("127.0.0.1", port))  # the next to be accepted is the last


class Store(dist.Store):
    """torch's key-value store, on a `Server`.

    Args:
        address: Of the server.
        key: That it wants to hear.
        limit: How long who gets or waits for keys waits at most.
        server: On the rank that has it; goes with this.
    """

    def __init__(self, address: Address, key: bytes, limit: timedelta, server: Server | None = None) -> None:
        super().__init__()
        self._address, self._key, self._server, self._mine = address, key, server, threading.local()
        self.set_timeout(limit)
        self._ask("size")

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The server's answer."""
        try:
            if not hasattr(self._mine, "connection"):
                self._mine.connection = Client(self._address, authkey=self._key)
            self._mine.connection.send((name, *arguments))
            return self._mine.connection.recv()
        except (EOFError, OSError) as error:
            where = "{}:{}".format(*self._address)
            raise dist.DistStoreError(f"the key-value store of rank 0 at {where} does not answer: {error or 'it has ended'}") from None

    def _when_there(self, keys: Sequence[str], limit: timedelta | None = None) -> list[bytes]:
        limit_s, begun = (self.timeout if limit is None else limit).total_seconds(), time.monotonic()
        values = self._ask("get", list(keys), limit_s)
        if values is None:
            waited = time.monotonic() - begun
            raise dist.DistStoreError(f"wait timeout after {1e3 * waited:.0f} ms, keys: {', '.join(keys)}")
        return list(values)

    def get(self, key: str) -> bytes:
        """Value of a key, once it is there."""
        return self._when_there([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._when_there(keys)

    def wait(self, keys: list[str], limit: timedelta | None = None) -> None:
        """Return when all keys are there."""
        self._when_there(keys, limit)

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, _bytes(value))

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """What a number is when so much is added; of no value yet, that is 0."""
        return int(self._ask("add", key, amount))

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", key, _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return bytes(self._ask("compare_set", key, _bytes(expected), _bytes(desired)))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._ask("has", list(keys)))

    def delete_key(self, key: str) -> bool:
        """Whether it was there."""
        return bool(self._ask("delete", key))

    def num_keys(self) -> int:
        return int(self._ask("size"))

    def has_extended_api(self) -> bool:
        """Whether there are `append` and the like."""
        return True

    def clone(self) -> "Store":
        """This, which all threads may use at once."""
        return self

    # As C++ calls them.
    multiGet, multiSet, compareSet, deleteKey, getNumKeys = multi_get, multi_set, compare_set, delete_key, num_keys
    hasExtendedApi = has_extended_api


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
