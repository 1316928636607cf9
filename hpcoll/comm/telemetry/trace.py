"""The trace of a run, in the Trace Event Format of ui.perfetto.dev and chrome://tracing, written while the program runs.

A thread writes each half second the calls that have ended. What waits for whom is written, and the calls of a fast program, whenever ranks
have compared calls, by the thread that calls. So the last half second at most is lost when a process is killed.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from mpi4py import MPI

from hpcoll.base.machine import program_words
from hpcoll.comm.plans.plan import MessageContext
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.requests.call_hooks import HOOKS
from hpcoll.comm.status.names import region_text
from hpcoll.comm.team.resources import CommunicatorCalls, Resources, live_contexts
from hpcoll.comm.telemetry.clock import clock_of
from hpcoll.comm.telemetry.compared import ComparedCalls
from hpcoll.comm.telemetry.trace_file import TraceFile, path_in
from hpcoll.comm.telemetry.trace_lines import line
from hpcoll.comm.telemetry.trace_rows import Lines, Positions, Row, counter, slices
from hpcoll.comm.telemetry.trace_steps import StepRow
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.selection.config import log

_PACKAGE = __name__.partition(".")[0]
_EVERY_S, _END_S = 0.5, 5.0
_BATCH = 4096 + 512  # calls that are formatted at once: all those between two comparisons
_POINTS = 64  # at most, of the counter of bytes, for a batch
_MOST_PIECES = 1 << 12  # of counters that wait to be written
_MOST_REGIONS = 1 << 14  # that wait to be written


class Trace:
    """The trace of this process.

    Args:
        file: File to which it is appended.
        resources: Resources of the first communicator.
    """

    def __init__(self, file: TraceFile, resources: Resources) -> None:
        self._file: TraceFile | None = file
        self._positions = Positions(resources)
        self._rows: WeakKeyDictionary[CallLog, Row] = WeakKeyDictionary()
        self._numbers: WeakKeyDictionary[CallLog, int] = WeakKeyDictionary()  # of rows
        self._steps: WeakKeyDictionary[CallLog, StepRow] = WeakKeyDictionary()
        # steps are in the rows behind those of their calls
        self._stride = 1 + (resources.log.steps is not None)
        self._nrows = self._stride  # with the one of blocking calls
        self._writing, self._stopping = threading.RLock(), threading.Event()
        # pairs of a time and a change of a counter
        self._moved, self._in_flight = (
            list[np.ndarray](),
            list[np.ndarray](),
        )
        self._nbytes = self._nflights = 0
        self._regions: list[tuple[int, int, int]] = []
        self._thread = threading.Thread(target=self._run, name="hpcoll-trace", daemon=True)
        self._clock = clock_of(resources.team)
        self._common: Callable[[np.ndarray], np.ndarray] = self._clock.common
        self._introduce(resources)
        self._handle = HOOKS.observe(self)
        os.register_at_fork(after_in_child=self._forget)
        self._thread.start()

    def _introduce(self, resources: Resources) -> None:
        """Write who this process is."""
        rank, where = self._positions.rank, self._positions.own(0)
        told = {
            "version": sys.modules[_PACKAGE].__version__,
            "ranks": MPI.COMM_WORLD.size,
            "rank": rank,
            "host": self._positions.host,
            "pid": os.getpid(),
            "clock_error_us": self._clock.error_ns / 1000 if self._clock.crosses_hosts else 0.0,
            "started": time.time(),
            "program": program_words(),
        }
        self._append(
            [
                _meta("process_name", where, name=self._positions.host),
                _meta("process_sort_index", where, sort_index=self._positions.node),
                _meta("hpcoll", where, **told),
            ]
        )
        self._name_rows(f"rank {rank}", where, self._positions.own(1))

    def _name_rows(self, name: str, *rows: dict[str, Any]) -> None:
        """Write the name of a row of calls, and of the row of their steps, where there is one."""
        for at, text in list(zip(rows, (name, f"{name} steps"), strict=True))[: self._stride]:
            self._append(
                [_meta("thread_name", at, name=text), _meta("thread_sort_index", at, sort_index=at["tid"])]
            )

    def compared(self, calls: ComparedCalls) -> None:
        """Write compared calls: who waited for whom, and those calls that have not been written; called by the thread that makes them."""
        self._safely(partial(self._add, calls))

    def _add(self, calls: ComparedCalls) -> None:
        on = calls.resources.every_message_context()[calls.lane]
        row = self._row(calls.resources, calls.lane, on)
        if calls.first > row.written + 1:
            self._calls(row, calls.resources, *on.log.records(row.written + 1, calls.first - 1))
        known = max(row.written + 1 - calls.first, 0)
        self._calls(row, calls.resources, calls.first + known, calls.records[known:])
        self._append(row.waits(calls))
        self._append(self._steps[on.log].lines(calls.resources, on))

    def region_left(self, number: int, begin_ns: int, end_ns: int) -> None:
        """Note that the program has left a region, with its number and times as `time.monotonic_ns` tells them."""
        if self._file is not None:
            self._regions.append((number, begin_ns, end_ns))
        if len(self._regions) > _MOST_REGIONS:
            self._safely(self._write_regions)

    def goes(self, context: CommunicatorCalls) -> None:
        """Write the calls of a communicator that is about to go."""
        self._safely(partial(self._write, context.resources))

    def program_ends(self, in_mpi: bool) -> None:
        """Write what there is, also calls that have not ended, and end the trace."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)
        self._safely(self._finish)

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S) and self._file is not None:
            self._safely(partial(self._write, None))

    def _write(self, resources: Resources | None) -> None:
        for on in [one.resources for one in list(live_contexts)] if resources is None else [resources]:
            for lane, context in enumerate(on.every_message_context()):
                if context.log.ncalls:
                    self._write_lane(on, lane, context)
        self._write_regions()
        self._write_counters()

    def _write_lane(self, resources: Resources, lane: int, on: MessageContext) -> None:
        row = self._row(resources, lane, on)
        first, records = on.log.records(row.written + 1)
        if len(records):  # at most the last one has not ended
            last = records[-1]
            under_way = not last[f.ITS_END] or (
                lane > 0 and last[f.ITS_WAIT_BEGIN] > 0 and not last[f.ITS_WAIT_END]
            )
            self._count_begun(row, first, records)
            self._calls(row, resources, first, records[: len(records) - int(under_way)])
        self._append(self._steps[on.log].lines(resources, on))

    def _calls(self, row: Row, resources: Resources, first: int, records: np.ndarray) -> None:
        """Write calls in a row, the first one's number given."""
        if len(records) and first > row.written + 1:
            self._append([row.missing(first, records)])
        self._count_begun(row, first, records)
        for at in range(0, len(records), _BATCH):
            batch = records[at : at + _BATCH]
            texts, nbytes = row.calls(resources, first + at, batch)
            row.written = first + at + len(batch) - 1
            self._append(texts)
            starts = np.arange(0, len(batch), -(-len(batch) // _POINTS))
            times = batch[np.append(starts[1:], len(batch)) - 1, f.ITS_END]
            self._moved.append(np.stack([times, np.add.reduceat(nbytes, starts)]))
            if row.lane:
                self._in_flight.append(np.stack([batch[:, f.ITS_END], np.full(len(batch), -1)]))
        if len(self._moved) + len(self._in_flight) > _MOST_PIECES:
            self._write_counters()

    def _count_begun(self, row: Row, first: int, records: np.ndarray) -> None:
        if row.lane:
            begins = records[max(row.begun + 1 - first, 0) :, f.ITS_BEGIN]
            self._in_flight.append(np.stack([begins, np.ones_like(begins)]))
        row.begun = max(row.begun, first + len(records) - 1)

    def _write_counters(self) -> None:
        who = f"rank {self._positions.rank}"
        for name, series, changes, before in (
            ("total", "bytes", self._moved, self._nbytes),
            ("in flight", "calls", self._in_flight, self._nflights),
        ):
            times, values = np.concatenate(changes, axis=1) if changes else np.empty((2, 0), np.int64)
            changes.clear()
            if len(times):
                order = np.argsort(times, kind="stable")
                sums = before + np.cumsum(values[order])
                event = {"name": f"{who} {name}", "pid": self._positions.node}
                self._append([counter(event, series, self._common(times[order]), sums)])
                if changes is self._moved:
                    self._nbytes = int(sums[-1])
                else:
                    self._nflights = int(sums[-1])

    def _write_regions(self) -> None:
        """Write the regions that the program has left: those of one name at once."""
        noted = self._regions[:]  # others may come meanwhile
        del self._regions[: len(noted)]
        found = np.array(noted, np.int64).reshape(-1, 3)
        for number in np.unique(found[:, 0]).tolist():
            _, begin, end = found[found[:, 0] == number].T
            event = {"cat": "region", "name": region_text(number), **self._positions.own(0)}
            self._append([slices(event, self._common(begin), end - begin)])

    def _finish(self) -> None:
        self._write(None)
        now = time.monotonic_ns()
        for resources in [one.resources for one in list(live_contexts)]:
            for lane, on in enumerate(resources.every_message_context()):
                if on.log.ncalls:
                    row = self._row(resources, lane, on)
                    first, records = on.log.records(row.written + 1)
                    if len(records):
                        self._append(row.unfinished(resources, first, records, now))
        self._end()

    def _row(self, resources: Resources, lane: int, on: MessageContext) -> Row:
        """Return the row of a message context, which is introduced when it is first seen."""
        if on.log not in self._rows:
            # alike on all ranks, whichever of them they use first
            for one in resources.every_message_context()[1:] if lane else ():
                if one.log not in self._numbers:
                    self._numbers[one.log], self._nrows = self._nrows, self._nrows + self._stride
            number = self._numbers[on.log] if lane else 0
            self._rows[on.log] = row = Row(self._positions, number, lane, self._common)
            # by calls before hpcoll has measured its own Python
            row.written = row.begun = on.log.compared if resources.nranks == 1 else 0
            self._steps[on.log] = steps = StepRow(self._positions.own(number + 1), self._common)
            if lane:
                self._name_rows(
                    f"rank {self._positions.rank} {resources.form(on.index)} {number}", row.at, steps.at
                )
        return self._rows[on.log]

    def _safely(self, write: Callable[[], None]) -> None:
        """Write: where that fails the trace ends with one warning, and the program goes on."""
        with self._writing:
            try:
                if self._file is not None:
                    write()
            except Exception as error:
                log.warning(
                    "rank %d: its trace ends: %s: %s", self._positions.rank, type(error).__name__, error
                )
                self._end()

    def _append(self, texts: Lines) -> None:
        if self._file is not None and texts:
            self._file.append(*texts)

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
        self._forget()

    def _forget(self) -> None:
        """Write no more; in a fork, whose parent writes."""
        self._file, self._writing = None, threading.RLock()
        self._handle.remove()


def begin(resources: Resources, folder: str) -> Trace:
    """Begin the trace of this process with its first communicator; OSError: it cannot be written."""
    team = resources.team
    clock = clock_of(team)
    if clock.crosses_hosts and not clock.is_known and threading.current_thread() is threading.main_thread():
        clock.measure(partial(resources.service_collectives.gather, purpose=Purpose.CLOCKS))
    return Trace(TraceFile(path_in(Path(folder), team)), resources)


def _meta(event: str, where: dict[str, Any], /, **told: Any) -> bytes:
    return line(ph="M", **{"name": event, **where, "args": told})
