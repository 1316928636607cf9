"""The ledger of a communicator: calls, bytes, seconds and routes of each operation, by algorithm and element type; calls by region."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from hpcoll.base.text import as_html, counted, duration, format_nbytes
from hpcoll.comm.plans.signature import Purpose, Signature
from hpcoll.comm.status.names import REGIONS, region_text
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.selection.config import NATIVE, log


class LedgerRow(NamedTuple):
    """A line of the ledger.

    Attributes:
        operation: Collective, in lower case.
        algorithm: Catalogue name, or ``native``: the MPI library's own collective.
        calls: Number of calls; each start of a persistent request is one.
        nbytes: Sum over calls of the bytes of this rank's message; 0 where only the MPI library understands the arguments.
        seconds: Sum over ``timed`` calls of this rank's time.
        element: Element type of the caller's buffers: a NumPy name, or the name of a derived datatype; empty for a barrier.
        why: Reason for which the MPI library served the calls, or ``order='rank'``; else empty.
        ways: Routes of messages to and from this rank's peers, joined by ``+``: ``shm`` (shared memory), ``mpi`` (MPI messages), for GPU
            arrays ``ipc``, ``staged``, ``direct`` and ``device`` as in ``HPCOLL_CUDA_PATH``, ``host`` where they went through host memory.
        timed: Number of calls that have a time; those in flight have none that end as they begin, or that the MPI library serves. The
            table has this column where it is less than ``calls`` somewhere.
    """

    operation: str
    algorithm: str
    calls: int
    nbytes: int
    seconds: float
    element: str
    why: str
    ways: str
    timed: int


class RegionRow(NamedTuple):
    """A line of the ledger's table of regions.

    Attributes:
        region: Names of the region and of those around it, outermost first, joined by ``/``.
        calls: Number of calls that have ended. Those that the MPI library serves have no region.
        seconds: Sum over ``timed`` calls of this rank's time.
        timed: Number of calls that have a time, as in `LedgerRow`.
    """

    region: str
    calls: int
    seconds: float
    timed: int


class Account:
    """Running sums of a line of the ledger.

    Attributes:
        sums: int64: calls, nanoseconds in them, bytes of this rank's messages, calls without a time; compiled code adds to them.
        ways: Routes, as in `LedgerRow`.
    """

    __slots__ = ("_sums", "sums", "ways")

    def __init__(self) -> None:
        self.sums, self.ways = np.zeros(4, np.int64), set[str]()
        self._sums = memoryview(self.sums)  # type: ignore[arg-type]  # the same numbers, at a third of the price

    def note(self, nbytes: int, nanoseconds: int | None = None) -> None:
        """Count a call, whose time may not be known."""
        self._sums[0] += 1
        self._sums[1] += nanoseconds or 0
        self._sums[2] += nbytes
        self._sums[3] += nanoseconds is None

    def add(self, other: "Account") -> "Account":
        """Add another's sums and routes, and return it."""
        self.sums += other.sums
        self.ways |= other.ways
        return self


class Ledger:
    """Sums per operation, algorithm and element type of one communicator; ``str()`` is the table."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str, str, str], Account] = {}
        # calls, nanoseconds, calls with a time
        self._regions = defaultdict[str, np.ndarray](partial(np.zeros, 3, np.int64))
        self._logs: Callable[[], Sequence[CallLog]] = tuple
        self._seen: dict[CallLog, int] = {}  # the last call of each log that was counted by its region

    def watch(self, logs: Callable[[], Sequence[CallLog]]) -> None:
        """Count by region the calls in a communicator's logs from now on, no more those in the logs before."""
        self.count_regions()
        self._logs, self._seen = logs, {one: one.ncalls for one in logs()}

    def count_regions(self) -> None:
        """Count by region the calls that have ended, before their records are written over."""
        for calls in self._logs() if REGIONS else ():  # before the first region all calls were outside of any
            before, ended = self._seen.get(calls, 0), calls.begun_and_ended[1]
            self._seen[calls] = ended
            if ended == before:
                continue
            _, records = calls.records(before + 1, ended)
            words, regions, took = (
                records[:, 0],
                records[:, f.ITS_NAMES] & f.REGION_BITS,
                records[:, f.ITS_END] - records[:, f.ITS_BEGIN],
            )
            counted = regions > 0
            for word in np.unique(words[counted]).tolist():
                if Signature.unpacked(word).purpose is not Purpose.NONE:  # the program has not made it
                    counted &= words != word
            self._add(regions[counted], took[counted])

    def _add(self, regions: np.ndarray, took: np.ndarray) -> None:
        ncalls, nanoseconds, ntimed = (np.bincount(regions, weights) for weights in (None, took, took > 0))
        for region in np.flatnonzero(ncalls).tolist():
            self._regions[region_text(region)] += (
                ncalls[region],
                int(nanoseconds[region]),
                int(ntimed[region]),
            )

    def account(self, operation: str, algorithm: str, element: str, why: str = "") -> Account:
        """Return the running sums of a line; arguments as in `LedgerRow`."""
        return self._accounts.setdefault((operation, algorithm, element, why), Account())

    def library(self, operation: str, element: str, why: str, rank: int) -> Account:
        """Return the running sums of calls that hpcoll leaves to the MPI library; rank 0 logs the first of them."""
        account = self.account(operation, NATIVE, element, why)
        if rank == 0 and not account.sums[0]:
            log.info("%s: %s (%s)", named(operation, element), NATIVE, why)
        return account

    def take_over(self, other: "Ledger") -> None:
        """Use the other's accounts, to which engines add, for the sums so far of this one; the other keeps its own."""
        mine, self._accounts = self._accounts, other._accounts
        other._accounts = {names: Account().add(account) for names, account in self._accounts.items()}
        for account in self._accounts.values():
            account.sums[:] = 0
        for names, account in mine.items():
            self.account(*names).add(account)

    def rows(self) -> list[LedgerRow]:
        """Return the lines with at least one call, largest time first."""
        rows = []
        # other threads add some
        for (operation, algorithm, element, why), account in list(self._accounts.items()):
            ncalls, ns, nbytes, untimed = account.sums.tolist()
            ways = "+".join(sorted(account.ways))
            rows.append(
                LedgerRow(
                    operation, algorithm, ncalls, nbytes, 1e-9 * ns, element, why, ways, ncalls - untimed
                )
            )
        return sorted((row for row in rows if row.calls), key=lambda row: -row.seconds)

    def regions(self) -> list[RegionRow]:
        """Return the lines of the table of regions, largest time first."""
        self.count_regions()
        sums = ((region, *numbers.tolist()) for region, numbers in self._regions.items())
        rows = (RegionRow(region, ncalls, 1e-9 * ns, ntimed) for region, ncalls, ns, ntimed in sums)
        return sorted(rows, key=lambda row: -row.seconds)

    def clear(self) -> None:
        """Set all sums to zero."""
        self.count_regions()
        self._regions.clear()
        for account in self._accounts.values():
            account.sums[:] = 0

    def __repr__(self) -> str:
        rows = self.rows()
        ncalls, nbytes, seconds = (
            sum(column)
            for column in zip((0, 0, 0.0), *((row.calls, row.nbytes, row.seconds) for row in rows))
        )
        kinds = counted(len({row.operation for row in rows}), "operation")
        return f"<hpcoll ledger: {counted(ncalls, 'call')} of {kinds}, {format_nbytes(nbytes)}, {duration(seconds)}; print() shows all>"

    _repr_html_ = as_html

    def __str__(self) -> str:
        rows, regions = self.rows(), self.regions()
        every: list[LedgerRow | RegionRow] = [*rows, *regions]
        # else the number of calls says it
        timed = f"{{:>{_TIMED}}}" if any(one.timed < one.calls for one in every) else "{:.0}"
        heads = "calls", timed.format("timed"), "bytes", "seconds", "us/call", "element", "way, or why native"
        lines = [_LINE.format("operation", "algorithm", *heads)]
        for row in rows:
            ncalls, *times = _numbers(row, timed)
            nbytes, why = (
                format_nbytes(row.nbytes) if row.nbytes else "-",
                ", ".join(filter(None, (row.ways, row.why))),
            )
            lines.append(
                _LINE.format(
                    row.operation, row.algorithm, row.calls, ncalls, nbytes, *times, row.element, why
                )
            )
        lines += (
            ["", _REGION.format("region", "calls", timed.format("timed"), "seconds", "us/call")]
            if regions
            else []
        )
        lines += [_REGION.format(one.region, one.calls, *_numbers(one, timed)) for one in regions]
        return "\n".join(line.rstrip() for line in lines)


def _numbers(row: LedgerRow | RegionRow, timed: str) -> tuple[str, str, str]:
    """Return the cells of the calls that have a time, of their seconds, and of the microseconds of one."""
    times = (f"{row.seconds:.3f}", f"{1e6 * row.seconds / row.timed:.1f}") if row.timed else ("-", "-")
    return timed.format(str(row.timed)), *times


def named(operation: str, element: object) -> str:
    """Return the text of an operation and its element type, which a barrier has not."""
    return f"{operation} of {element}" if element != "" else operation


_TIMED = 9  # columns of the numbers of calls with a time, where some have none
_LINE = "{:<16} {:<20} {:>8}{} {:>10} {:>9} {:>9}  {:<14.14} {}"
_REGION = "{:<37} {:>8}{} {:>20} {:>9}"  # numbers below those of their kind
