"""The ledger: which operation ran by which algorithm, how often, with how many bytes and how long."""

from typing import NamedTuple

import numpy as np

from hpcoll.base.units import format_nbytes


class Row(NamedTuple):
    """One line of the ledger.

    Attributes:
        operation: Collective, in lower case.
        algorithm: Catalogue name, or ``native``.
        calls: Number of calls.
        nbytes: Sum over calls of the bytes of this rank's message.
        seconds: Sum over calls of this rank's time.
    """

    operation: str
    algorithm: str
    calls: int
    nbytes: int
    seconds: float


class Ledger:
    """Sums per operation and algorithm of one communicator; ``str()`` is the table."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], np.ndarray] = {}

    def account(self, operation: str, algorithm: str) -> np.ndarray:
        """Running sums, int64: calls, nanoseconds in them, bytes of this rank's messages."""
        return self._accounts.setdefault((operation, algorithm), np.zeros(3, np.int64))

    def take_over(self, other: "Ledger") -> None:
        """Use the other's accounts, to which engines add, from zero; the other keeps the sums so far."""
        self._accounts, other._accounts = other._accounts, {names: sums.copy() for names, sums in other._accounts.items()}
        self.clear()

    def rows(self) -> list[Row]:
        """Lines with at least one call, largest time first."""
        rows = [Row(*names, int(ncalls), int(nbytes), 1e-9 * int(ns)) for names, (ncalls, ns, nbytes) in self._accounts.items()]
        return sorted((row for row in rows if row.calls), key=lambda row: -row.seconds)

    def clear(self) -> None:
        """Set all sums to zero."""
        for account in self._accounts.values():
            account[:] = 0

    def __str__(self) -> str:
        lines = [f"{'operation':<16} {'algorithm':<20} {'calls':>8} {'bytes':>10} {'seconds':>9} {'us/call':>9}"]
        for row in self.rows():
            per_call = 1e6 * row.seconds / row.calls
            names = f"{row.operation:<16} {row.algorithm:<20} {row.calls:>8}"
            lines.append(f"{names} {format_nbytes(row.nbytes):>10} {row.seconds:>9.3f} {per_call:>9.1f}")
        return "\n".join(lines)
