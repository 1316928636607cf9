"""Metrics: the sums of this process as Prometheus text, for node_exporter's textfile collector, every ten seconds and at the end.

They are those of the ledgers and of the account of waits, which calls write anyway: a call costs nothing more.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import add
from pathlib import Path
from typing import NamedTuple, TypeAlias
from weakref import WeakSet

from mpi4py import MPI

from hpcoll.base.files import write_file
from hpcoll.base.launchers import job_of
from hpcoll.base.machine import program_words
from hpcoll.comm.plans.ledger import Ledger
from hpcoll.comm.requests.call_hooks import HOOKS
from hpcoll.comm.team.resources import CommunicatorCalls, Resources, live_contexts
from hpcoll.comm.telemetry.account import accounts
from hpcoll.runtime.program import wait_fields as w
from hpcoll.selection.config import log

EVERY_S = 10.0
_END_S = 1.0
_FAILURES = ("CollectiveTimeout", "MismatchError", "PeerFailed")  # counted from 0 on, so that a rise is seen
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_PACKAGE = __name__.partition(".")[0]

Labels: TypeAlias = Mapping[str, object]
# calls, bytes, timed calls and their seconds by operation and algorithm
_Sums: TypeAlias = dict[tuple[str, str], tuple[float, ...]]

_OF_CALLS = {
    "hpcoll_calls_total": "Collectives called.",
    "hpcoll_bytes_total": "Bytes of this rank's messages.",
    "hpcoll_timed_calls_total": "Collectives of which it is known how long they took.",
    "hpcoll_call_seconds_total": "Seconds in these, waiting and moving.",
}
_OF_WAITS = (
    ("hpcoll_compared_calls_total", "Collectives of which it is known who came last.", w.CALLS, 1),
    ("hpcoll_waited_seconds_total", "Seconds waited in compared calls for later ranks.", w.WAITED_NS, 1e-9),
    ("hpcoll_moved_seconds_total", "Seconds in compared calls that all ranks had reached.", w.MOVED_NS, 1e-9),
    (
        "hpcoll_hidden_seconds_total",
        "Seconds of calls in flight while the program ran on.",
        w.HIDDEN_NS,
        1e-9,
    ),
)
_BY_LATE_RANK = (
    (
        "hpcoll_held_up_calls_total",
        "Compared calls in which this rank waited, by the rank that came last.",
        1,
    ),
    ("hpcoll_waited_for_seconds_total", "Seconds waited, by the rank that came last.", 1e-9),
)


class Family(NamedTuple):
    """A metric with all its samples."""

    name: str  # a counter's ends in ``_total``
    help: str
    samples: Sequence[tuple[Labels, float]]


def as_text(families: Iterable[Family], common: Labels) -> str:
    """Return families as Prometheus text; all samples have the common labels, too. A family without samples is left out.

    >>> print(as_text([Family("a_total", "Calls.", [({"op": 'x"y'}, 2)])], {"rank": 0}), end="")
    # HELP a_total Calls.
    # TYPE a_total counter
    a_total{rank="0",op="x\\"y"} 2
    """
    lines = []
    for name, what, samples in families:
        if samples:
            lines += [
                f"# HELP {name} {what}",
                f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}",
            ]
        for labels, value in samples:
            given = ",".join(
                f'{key}="{str(text).translate(_ESCAPED)}"' for key, text in {**common, **labels}.items()
            )
            lines.append(f"{name}{{{given}}} {value!r}")
    return "".join(f"{line}\n" for line in lines)


class Metrics:
    """The metrics of this process, and the thread that writes them.

    Args:
        resources: Of the first communicator.
        folder: Made if it is not there.
    """

    def __init__(self, resources: Resources, folder: str) -> None:
        self._pid, self._rank = os.getpid(), MPI.COMM_WORLD.rank
        job = job_of(os.environ, self._pid)
        self._common, self._path = (
            {"jobid": job, "rank": self._rank},
            Path(folder, f"{_PACKAGE}_{job}_rank{self._rank}.prom"),
        )
        with suppress(OSError):  # the program is in no folder
            self._path = self._path.absolute()  # it may go to another one
        self._about = {
            "version": sys.modules[_PACKAGE].__version__,
            "program": Path(program_words()[0]).name,
            "host": resources.host,
            "ranks": MPI.COMM_WORLD.size,
            "pid": self._pid,
        }
        # ledgers of communicators that left, and sums of those before
        self._left, self._sums = (
            list[Ledger](),
            _Sums(),
        )
        self._failures, self._failed = Counter(dict.fromkeys(_FAILURES, 0)), WeakSet[CommunicatorCalls]()
        self._reading, self._stopping, self._warned = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="hpcoll-metrics", daemon=True)
        self._thread.start()
        HOOKS.observe(self)

    def goes(self, context: CommunicatorCalls) -> None:
        """Keep the sums of a communicator that is about to go; nothing in a fork."""
        if os.getpid() == self._pid:  # else the thread may have held the lock
            with self._reading:
                self._left.append(context.ledger)
                self._note_failures([context])

    def write(self) -> None:
        """Write the file as a whole; where that fails, warn once, and try again the next time."""
        try:
            with self._reading:
                text = as_text(self._families(), self._common)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._path, text)
        except Exception as error:
            if not self._warned:
                log.warning("rank %d: no metrics are written: %s", self._rank, error)
            self._warned = True

    def program_ends(self, in_mpi: bool) -> None:
        """End the thread, and write for the last time; nothing in a fork, which has no such thread."""
        if os.getpid() != self._pid or self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join(_END_S)
        self.write()

    def _run(self) -> None:
        while True:
            self.write()
            if self._stopping.wait(EVERY_S):
                return

    def _note_failures(self, contexts: Iterable[CommunicatorCalls]) -> None:
        """Count each communicator once on which a call has failed: it is closed then."""
        for context in contexts:
            if context.resources.settled is not None and context not in self._failed:
                self._failed.add(context)
                self._failures[context.resources.settled[0].__name__] += 1

    def _ledgers(self, contexts: Iterable[CommunicatorCalls]) -> _Sums:
        """Return the sums of all ledgers by what is summed, operation and algorithm; of each ledger once."""
        live = {id(context.ledger): context.ledger for context in contexts}
        gone = {id(one): one for one in self._left if id(one) not in live}
        for ledger in gone.values():
            _add(self._sums, ledger)
        self._left = [one for one in self._left if id(one) in live]
        sums = self._sums.copy()
        for ledger in live.values():
            _add(sums, ledger)
        return sums

    def _families(self) -> list[Family]:
        """Return all metrics, as they are now."""
        contexts = list(live_contexts)
        self._note_failures(contexts)
        rows = sorted(self._ledgers(contexts).items())
        return [
            Family("hpcoll_info", "The process, always 1.", [(self._about, 1)]),
            *(
                Family(
                    name, told, [({"operation": of, "algorithm": by}, sums[at]) for (of, by), sums in rows]
                )
                for at, (name, told) in enumerate(_OF_CALLS.items())
            ),
            *_of_waits(),
            Family(
                "hpcoll_failures_total",
                "Communicators closed because a call failed, by the error that ranks raised.",
                [({"error": name}, number) for name, number in sorted(self._failures.items())],
            ),
        ]


def _add(sums: _Sums, ledger: Ledger) -> None:
    for row in ledger.rows():
        before = sums.get((row.operation, row.algorithm), (0, 0, 0, 0.0))
        more = row.calls, row.nbytes, row.timed, row.seconds
        sums[row.operation, row.algorithm] = tuple(map(add, before, more))


def _of_waits() -> list[Family]:
    """Return the metrics of calls that ranks have compared."""
    every = accounts()
    totals = [
        Family(name, told, [({}, scale * sum(int(account.sums[field]) for account in every))])
        for name, told, field, scale in _OF_WAITS
    ]
    for row, (name, told, scale) in enumerate(_BY_LATE_RANK):
        late = Counter[int]()
        for account in every:
            late.update(dict(zip(account.world_ranks, account.by_rank[row].tolist(), strict=True)))
        samples = [({"late_rank": rank}, scale * value) for rank, value in sorted(late.items()) if value]
        totals.append(Family(name, told, samples))
    return totals
