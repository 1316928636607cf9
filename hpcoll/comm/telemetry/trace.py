"""The trace of a run, written while the program runs: ranks append records of calls as compiled code has them.

A thread writes each half second the calls that have ended. Those of a fast program are written whenever ranks have compared calls, by the
thread that calls. So the last half second at most is lost when a process is killed. ``hpcoll trace`` makes of it what people read.
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
from hpcoll.comm.plans.signature import Purpose, Signature
from hpcoll.comm.requests.call_hooks import HOOKS
from hpcoll.comm.status.names import PLACES, REGIONS, place_text, region_text
from hpcoll.comm.team.resources import CommunicatorCalls, Resources, live_contexts
from hpcoll.comm.telemetry.clock import clock_of
from hpcoll.comm.telemetry.trace_file import TraceFile, path_in
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.selection.config import log

_PACKAGE = __name__.partition(".")[0]
_EVERY_S, _END_S = 0.5, 5.0
_BATCH = 1 << 14  # records of a block
_MOST_REGIONS = 1 << 14  # that wait to be written
_NONE = np.empty(0, np.int64)
_STEP_CODE = (1 << f.STEP_SEGMENT_AT) - 1
_world: dict[
    str, str
] = {}  # by the world's name the key of its first communicator: calls of one that was recovered are numbered anew


class _Written:
    """The state of a message context in the trace, where it has a number while it serves one communicator."""

    def __init__(self, number: int, life: int, last: int, lost_steps: int) -> None:
        self.number, self.life, self.last, self.lost_steps = number, life, last, lost_steps


class Trace:
    """The trace of this process.

    Args:
        file: File to which it is appended.
        resources: Resources of the first communicator.
    """

    def __init__(self, file: TraceFile, resources: Resources) -> None:
        self._file: TraceFile | None = file
        self._rank, self._folder = MPI.COMM_WORLD.rank, os.getcwd() + os.sep
        self._contexts: WeakKeyDictionary[CallLog, _Written] = WeakKeyDictionary()
        self._ncontexts = 0
        self._signatures = set[int]()
        self._nplaces = self._nregions = 0  # whose names were written
        self._writing, self._stopping = threading.RLock(), threading.Event()
        self._regions: list[tuple[int, int, int]] = []
        self._thread = threading.Thread(target=self._run, name="hpcoll-trace", daemon=True)
        self._clock = clock_of(resources.team)
        self._append(
            {
                "version": sys.modules[_PACKAGE].__version__,
                "ranks": MPI.COMM_WORLD.size,
                "host": resources.host,
                "pid": os.getpid(),
                "clock_error_us": self._clock.error_ns / 1000 if self._clock.crosses_hosts else 0.0,
                "started": time.time(),
                "program": program_words(),
            }
        )
        self._handle = HOOKS.observe(self)
        os.register_at_fork(after_in_child=self._forget)
        self._thread.start()

    def compared(self, resources: Resources) -> None:
        """Write the calls of a communicator, which ranks have just compared; called by the thread that makes them."""
        self._safely(partial(self._write_calls, resources))

    def region_left(self, number: int, begin_ns: int, end_ns: int) -> None:
        """Note that the program has left a region, with its number and times as `time.monotonic_ns` tells them."""
        if self._file is not None:
            self._regions.append((number, begin_ns, end_ns))
        if len(self._regions) > _MOST_REGIONS:
            self._safely(self._write_regions)

    def goes(self, context: CommunicatorCalls) -> None:
        """Write the calls of a communicator that is about to go."""
        self._safely(partial(self._write_calls, context.resources))

    def program_ends(self, in_mpi: bool) -> None:
        """Write what there is, also calls that have not ended, and end the trace."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)
        self._safely(partial(self._write, now=time.monotonic_ns()))
        self._safely(self._end)

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S) and self._file is not None:
            self._safely(self._write)

    def _write(self, now: int = 0) -> None:
        for context in list(live_contexts):
            self._write_calls(context.resources, now)
        self._write_regions()

    def _write_calls(self, resources: Resources, now: int = 0) -> None:
        """Write the calls of a communicator that have ended, and with the time at its end those that have not."""
        for lane, message_context in enumerate(resources.every_message_context()):
            if message_context.log.ncalls:
                self._write_lane(resources, lane, message_context, now)

    def _write_lane(self, resources: Resources, lane: int, message_context: MessageContext, now: int) -> None:
        done, about = self._written(resources, lane, message_context), dict[str, Any]()
        first, records = message_context.log.records(done.last + 1)
        if len(records):  # at most the last one has not ended
            last = records[-1]
            waits = lane > 0 and last[f.ITS_WAIT_BEGIN] > 0 and not last[f.ITS_WAIT_END]
            if now:
                last[f.ITS_END] = last[f.ITS_END] or now
                last[f.ITS_WAIT_END] = now if waits else last[f.ITS_WAIT_END]
            elif waits or not last[f.ITS_END]:
                records = records[:-1]
        if len(records):
            about = {"lost": first - done.last - 1} | self._names(records[:, 0])
            done.last = first + len(records) - 1
        for at in range(0, len(records), _BATCH):
            self._append(about | {"calls": done.number, "first": first + at}, records[at : at + _BATCH])
            about = {}
        steps, lost = (
            _of_world(resources, message_context, message_context.log.take_steps()),
            message_context.log.lost_steps - done.lost_steps,
        )
        for at in range(0, len(steps), _BATCH):
            self._append({"steps": done.number, "lost": lost}, steps[at : at + _BATCH])
            done.lost_steps, lost = done.lost_steps + lost, 0

    def _written(self, resources: Resources, lane: int, message_context: MessageContext) -> _Written:
        """Return what was written of a message context, which is introduced where it is new."""
        written = self._contexts.get(message_context.log)
        if written is None or written.life != resources.life:
            # by calls before hpcoll has measured its own Python
            last = written.last if written else message_context.log.compared if resources.nranks == 1 else 0
            written = _Written(self._ncontexts, resources.life, last, written.lost_steps if written else 0)
            self._contexts[message_context.log], self._ncontexts = written, self._ncontexts + 1
            graph = resources.caller.graph()
            sources = graph.sources[resources.rank] if graph is not None else ()
            about = {
                "comm": _title(resources),
                "lane": lane,
                "form": resources.form(message_context.index),
                "at": resources.rank,
                "size": resources.nranks,
                "sources": sorted({end[0] for end in sources if end is not None}),
            }
            self._append({"context": written.number} | about)
        return written

    def _names(self, words: np.ndarray) -> dict[str, Any]:
        """Return names that records have numbers of, and that were not written: of places, regions, and signatures."""
        changes = np.append(words[:1], words[1:][words[1:] != words[:-1]])
        names: dict[str, Any] = {}
        if new := set(changes.tolist()) - self._signatures:
            self._signatures |= new
            names["signatures"] = {word: _signature(word) for word in new}
        if (now := len(PLACES)) > self._nplaces:
            places = range(self._nplaces + 1, now + 1)
            names["places"] = {number: place_text(number).removeprefix(self._folder) for number in places}
            self._nplaces = now
        return names | self._region_names()

    def _region_names(self) -> dict[str, Any]:
        before, self._nregions = self._nregions, len(REGIONS)
        names = {number: region_text(number) for number in range(before + 1, self._nregions + 1)}
        return {"regions": names} if names else {}

    def _write_regions(self) -> None:
        """Write the regions that the program has left."""
        noted = self._regions[:]  # others may come meanwhile
        del self._regions[: len(noted)]
        if noted:
            self._append({"left": len(noted)} | self._region_names(), np.array(noted, np.int64))

    def _safely(self, write: Callable[[], None]) -> None:
        """Write: where that fails the trace ends with one warning, and the program goes on."""
        with self._writing:
            try:
                if self._file is not None:
                    write()
            except Exception as error:
                log.warning("rank %d: its trace ends: %s: %s", self._rank, type(error).__name__, error)
                self._end()

    def _append(self, about: dict[str, Any], records: np.ndarray = _NONE) -> None:
        if self._file is not None:
            clock = {"clock": self._clock.line} if self._clock.crosses_hosts and len(records) else {}
            self._file.append({"rank": self._rank} | about | clock, records)

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


def _signature(word: int) -> dict[str, Any]:
    """Return what a signature says: of a call's count, the bytes of 1, and how many are an element."""
    signature = Signature.unpacked(word)
    call = signature.record(1)
    return {
        "name": signature.text(1).partition("(")[0],
        "service": bool(signature.purpose),
        "type": call["element"],
        "op": call["op"],
        "root": call["root"],
        "algorithm": call["algorithm"],
        "nbytes": signature.nbytes(1),
        "per_element": signature.per_element,
    }


def _of_world(resources: Resources, message_context: MessageContext, steps: np.ndarray) -> np.ndarray:
    """Return steps with peers that are ranks of ``MPI.COMM_WORLD``."""
    if len(steps):
        what, world = steps[:, f.STEP_WHAT], np.array(resources.team.world_ranks)
        local = world.copy()
        for rank, place in message_context.local_peers.items():
            local[place] = world[rank]
        peer = (what >> f.STEP_PEER_AT) - 1
        named = np.where(what & _STEP_CODE < Code.STAGE, world[peer], local[peer])
        rest = what & (1 << f.STEP_PEER_AT) - 1
        steps[:, f.STEP_WHAT] = rest | np.where(peer < 0, 0, named + 1) << f.STEP_PEER_AT
    return steps


def _title(resources: Resources) -> str:
    """Return a name of a communicator that no other one has, alike on all its ranks; of the world only the first has its plain name."""
    title = resources.title
    of_world = title == "MPI_COMM_WORLD" and resources.nranks == MPI.COMM_WORLD.size
    return (
        title
        if of_world and _world.setdefault(title, resources.key) == resources.key
        else f"{title} {resources.key}"
    )
