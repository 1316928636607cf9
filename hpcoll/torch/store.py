"""The key-value store of ranks that MPI started: rank 0 keeps it, and every thread of the others has a connection to it.

torch's own TCPStore asks the name service for the names of all who connect, one after another, and waits seconds for each answer that does
not come; this one asks nothing.
"""

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing import AuthenticationError
from typing import Any

import torch.distributed as dist

from hpcoll.base.key_value_server import Address, Server, connect


class Store(dist.Store):
    """torch's key-value store, on a `Server`; the rank that keeps the server gives it, and it lives as long as the store.

    ``key`` is the secret that the server asks for, ``limit`` the longest wait for keys.
    """

    def __init__(self, address: Address, key: bytes, limit: timedelta, server: Server | None = None) -> None:
        super().__init__()
        self._address, self._key, self._server, self._mine = address, key, server, threading.local()
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
            raise dist.DistStoreError(f"the key-value store of rank 0 at {where} does not answer: {error or 'it has ended'}") from None

    def _when_there(self, keys: Sequence[str], limit: timedelta | None = None) -> list[bytes]:
        limit_s, begun = (self.timeout if limit is None else limit).total_seconds(), time.monotonic()
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
    multiGet, multiSet, compareSet, deleteKey, getNumKeys = multi_get, multi_set, compare_set, delete_key, num_keys
    hasExtendedApi = has_extended_api


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
