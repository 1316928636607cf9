"""The ledger: which operation ran by which algorithm, how often, with how many bytes and how long. Floor 5."""

from dataclasses import dataclass
from typing import NamedTuple

from hpcoll.units import format_nbytes


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


@dataclass(slots=True)
class Account:
    """Running sums of the calls of one operation, algorithm and number of bytes."""

    calls: int = 0
    seconds: float = 0.0


class Ledger:
    """Sums per operation and algorithm of one communicator; ``str()`` is the table."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str, int], Account] = {}

    def account(self, operation: str, algorithm: str, nbytes: int) -> Account:
        """The running sums of calls with ``nbytes`` bytes each, made when first asked for."""
        return self._accounts.setdefault((operation, algorithm, nbytes), Account())

    def rows(self) -> list[Row]:
        """Lines with at least one call, largest time first."""
        sums: dict[tuple[str, str], Row] = {}
        for (operation, algorithm, nbytes), one in self._accounts.items():
            _, _, calls, total, seconds = sums.get((operation, algorithm), Row(operation, algorithm, 0, 0, 0.0))
            sums[operation, algorithm] = Row(operation, algorithm, calls + one.calls, total + one.calls * nbytes, seconds + one.seconds)
        return sorted((row for row in sums.values() if row.calls), key=lambda row: -row.seconds)

    def clear(self) -> None:
        """Set all sums to zero."""
        for account in self._accounts.values():
            account.calls, account.seconds = 0, 0.0

    def __str__(self) -> str:
        lines = [f"{'operation':<16} {'algorithm':<20} {'calls':>8} {'bytes':>10} {'seconds':>9} {'us/call':>9}"]
        for row in self.rows():
            per_call = 1e6 * row.seconds / row.calls
            names = f"{row.operation:<16} {row.algorithm:<20} {row.calls:>8}"
            lines.append(f"{names} {format_nbytes(row.nbytes):>10} {row.seconds:>9.3f} {per_call:>9.1f}")
        return "\n".join(lines)
