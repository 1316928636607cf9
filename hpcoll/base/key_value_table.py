"""A table of keys and values that threads wait for."""

import threading
from collections.abc import Sequence


class Table:
    """Keys and values, and threads that wait for them."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._ended = False

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, keys: Sequence[str], limit_s: float) -> list[bytes] | None:
        """Return the values of keys, once there are all; None when there are not in time.

        Raises:
            EOFError: the table has ended.
        """
        with self._changed:
            found = self._changed.wait_for(lambda: self._ended or self._values.keys() >= set(keys), limit_s)
            if self._ended:
                raise EOFError
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
        """Return the key's value after the call: the desired one where it had the expected one, or nothing was expected of a new key."""
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

    def end(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
