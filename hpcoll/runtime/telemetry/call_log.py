"""The log of the calls on a message context: records of this rank's own, and the histories of the ranks of its node.

`hpcoll.runtime.engine.compiled.checks` writes it. Ranks that wait read it, and flight records are made of it.
"""

from collections import deque
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES

_KEPT = f.RECORDS_HOT * f.RECORD_BLOCKS
_TOOK_LONG_NS = 200_000
NEVER = (1 << 63) - 1
EVERY = 4096  # calls, a power of two, fewer than records are kept: then ranks tell each other when each came
PROCESS = np.zeros(f.PROCESS_NFIELDS, np.int64)  # the words of this process (`hpcoll.runtime.program.fields`)
_process = memoryview(PROCESS)  # type: ignore[arg-type]  # the same numbers, at a third of the price


class InLibrary(NamedTuple):
    """A rank's count of blocking collectives of the MPI library's own, those that hpcoll lets it serve."""

    begun: int
    ended: int
    method: int  # number of the last one in the table of methods


class CallLog:
    """The log of a message context; ``rank`` is the local rank.

    Args:
        histories: int64 ``(nlocal, 1 + REMEMBERED, 8)``, zeros: the latest calls of each local rank, in shared memory; or None.
        alarm: int64, the abort flag: 0 until a call has failed on any of these ranks; then 1 and the rank that says so, and no call begins.
    """

    def __init__(
        self, histories: np.ndarray | None = None, alarm: np.ndarray | None = None, rank: int = 0
    ) -> None:
        shape = (1, 1 + f.REMEMBERED, f.HISTORY_NBYTES // (1 + f.REMEMBERED) // 8)
        self.histories = np.zeros(shape, np.int64) if histories is None else histories
        self.alarm = np.zeros(1, np.int64) if alarm is None else alarm
        records = (1 + f.RECORD_BLOCKS, f.RECORDS_HOT, f.RECORD_NFIELDS)
        # not zeros: memory is touched where there is something to record
        self._records = np.empty(records, np.int64)
        self.fields, self._rank = np.zeros(f.LOG_NFIELDS, np.int64), rank
        self.address: int = self.fields.ctypes.data
        self.index = self.compared = (
            0  # of the message context, and the last call that was compared with other ranks', alike on all ranks
        )
        self.fields[f.HISTORY], self.fields[f.ALARM] = (
            self.histories[rank].ctypes.data,
            self.alarm.ctypes.data,
        )
        self.fields[f.RECORDED], self.fields[f.PROCESS] = self._records.ctypes.data, PROCESS.ctypes.data
        self.fields[f.DUE], self.fields[f.LONG] = NEVER, _TOOK_LONG_NS
        self.steps: np.ndarray | None = None
        self.before = self._library_before = self._nservices = (
            0  # calls of earlier communicators; service collectives of this one
        )
        self._services = deque[int](maxlen=f.REMEMBERED)  # the numbers of the last ones
        self._words, self._numbers = memoryview(self.fields), memoryview(self._records.reshape(-1))  # type: ignore[arg-type]
        self._own = memoryview(self.histories[rank, 0])  # the same numbers, at a third of the price

    @property
    def ncalls(self) -> int:
        """The number of calls so far."""
        return self._words[f.CALLS]

    def serve(self) -> None:
        """Count the calls of another communicator from now on."""
        self.before, self._library_before, self._nservices = self.ncalls, self._own[f.LIBRARY_BEGUN], 0
        self._services.clear()

    def note_service(self) -> None:
        """Note that the next call is a service collective, which the program does not make."""
        self._services.append(self.ncalls + 1)
        self._nservices += 1

    def counted(self, number: int, *, after: bool = False) -> int:
        """Return which blocking call of the program a call is, 0: not known; of a service collective the call that it is for.

        With ``after``, return how many blocking calls of the program have ended when it has.
        """
        library = self._own[f.LIBRARY_BEGUN] - self._library_before
        if library and number != self.ncalls:  # nobody knows how many the library had served by then
            return 0
        return (
            number
            + library
            - self.before
            - self._nservices
            + sum(service >= number + after for service in self._services)
        )

    def note_steps(self) -> None:
        """Let engines that are bound from now on note their steps."""
        self.steps = np.empty(f.FIRST_STEP + f.STEPS_ROOM * f.STEP_NFIELDS, np.int64)
        self.steps[: f.FIRST_STEP] = 0
        self.fields[f.STEPS] = self.steps.ctypes.data

    def take_steps(self) -> np.ndarray:
        """Return copies of the steps that were noted since they were last taken, in order: int64 ``(n, STEP_NFIELDS)``."""
        if self.steps is None:
            return np.empty((0, f.STEP_NFIELDS), np.int64)
        noted, taken = int(self.steps[f.STEPS_NOTED]), int(self.steps[f.STEPS_TAKEN])
        room = self.steps[f.FIRST_STEP :].reshape(f.STEPS_ROOM, f.STEP_NFIELDS)
        steps: np.ndarray = room[np.arange(taken, noted) % f.STEPS_ROOM]
        self.steps[f.STEPS_TAKEN] = noted
        return steps

    @property
    def lost_steps(self) -> int:
        """The number of steps that there was no room for."""
        return 0 if self.steps is None else int(self.steps[f.STEPS_LOST])

    @property
    def begun_and_ended(self) -> tuple[int, int]:
        """The numbers of this rank's latest call, and of the latest that has ended."""
        return self._own[f.BEGUN], self._own[f.CALLS_ENDED]

    def end_early(self) -> None:
        """Note that this rank has done its part of the latest call, which is none of the program's, and waits for nothing in it."""
        number = self.ncalls
        record = self._records[0, number % f.RECORDS_HOT]
        record[f.ITS_END], record[f.ITS_NAMES], self._own[f.CALLS_ENDED] = record[f.ITS_BEGIN], 0, number

    def end_parts(self, now_ns: int) -> None:
        """Note that the latest call has ended, which went on in parts; ``now_ns``: nanoseconds on the clock `time.monotonic_ns`."""
        number = self.ncalls
        self._own[f.ENDED_AT] = self._records[0, number % f.RECORDS_HOT][f.ITS_END] = now_ns
        self._own[f.CALLS_ENDED] = number

    @cached_property
    def _histories(self) -> list[tuple[memoryview, memoryview]]:
        """The first line of each local rank's history as numbers, and all of it as bytes, which are compared at little cost."""
        histories: Any = self.histories
        return [(memoryview(history[0]), memoryview(history).cast("B")) for history in histories]

    def end(self, life: int, *, idle: bool) -> list[bool]:
        """Note that this rank makes no more calls in a life of its communicator, and return which local ranks make none.

        Where calls in flight have yet to begin, it is not ``idle``, and says nothing.
        """
        if idle:
            self._own[f.LAST] = life
        return [first[f.LAST] == life for first, _ in self._histories]

    def unlike(self, over: list[bool], *, idle: bool) -> list[int]:
        """Return the local ranks whose calls may differ from this one's, which makes no more, as far as that is seen at once.

        Args:
            over: Local ranks that make no more, either.
            idle: Nothing of this rank's is in flight, so that all its calls have begun.
        """
        mine, ended, ranks = self._own[f.BEGUN], self._own[f.CALLS_ENDED], []
        for rank, (first, lines) in enumerate(self._histories):
            theirs = first[f.BEGUN]
            if mine != theirs and idle and (first[f.CALLS_ENDED] > mine or (over[rank] and ended > theirs)):
                ranks.append(rank)
            elif mine and theirs and rank != self._rank:
                at = (1 + min(mine, theirs) % f.REMEMBERED) * CACHE_LINE_NBYTES
                if (
                    lines[at : at + CACHE_LINE_NBYTES]
                    != self._histories[self._rank][1][at : at + CACHE_LINE_NBYTES]
                ):
                    ranks.append(rank)
        return ranks

    def set_abort_flag(self, rank: int) -> None:
        """Let no call begin any more, because a rank of the communicator says that one has failed."""
        self.alarm[0] = 1 + rank

    @property
    def aborted_by(self) -> int | None:
        """The rank that set the abort flag last; None while it is not set."""
        return int(self.alarm[0]) - 1 if self.alarm[0] else None

    def begin_library(self, method: int) -> None:
        """Note that a blocking collective of the MPI library's own begins on the caller's communicator; ``method`` as in `InLibrary`."""
        self._own[f.LIBRARY_METHOD] = method
        self._own[f.LIBRARY_BEGUN] += 1

    def end_library(self) -> None:
        """Note that it has ended."""
        self._own[f.LIBRARY_ENDED] = self._own[f.LIBRARY_BEGUN]

    def in_library(self, local_rank: int) -> InLibrary:
        """Return a local rank's count of such collectives."""
        return InLibrary(*self.histories[local_rank, 0, f.LIBRARY_BEGUN : f.LIBRARY_METHOD + 1].tolist())

    @property
    def first_kept(self) -> int:
        """The number of the first call whose record is still there."""
        last = self.ncalls
        return max(1, (last // f.RECORDS_HOT - f.RECORD_BLOCKS) * f.RECORDS_HOT, last - _KEPT + 1)

    def records(self, first: int = 1, last: int = NEVER) -> tuple[int, np.ndarray]:
        """Return copies of the records of calls from one to another, as far as there are any.

        Another thread may call meanwhile.

        Returns:
            Number of the first one, and int64 ``(n, RECORD_NFIELDS)``.
        """
        while True:
            newest = self.ncalls
            hot, begin, end = newest // f.RECORDS_HOT, max(first, self.first_kept), min(last, newest) + 1
            parts = [self._records[0, :0]]
            for block in range(begin // f.RECORDS_HOT, (end - 1) // f.RECORDS_HOT + 1):
                at, stop = (
                    min(max(number - block * f.RECORDS_HOT, 0), f.RECORDS_HOT) for number in (begin, end)
                )
                parts.append(self._records[self._block(block, hot), at:stop])
            records = np.concatenate(parts)
            if self.ncalls // f.RECORDS_HOT == hot:  # else a block has been overwritten
                return begin, records

    def region(self, number: int) -> int:
        """Return the number of the region of a call whose record is still there."""
        return self._numbers[self._record(number) + f.ITS_NAMES] & f.REGION_BITS

    def note_place(self, number: int, place: int) -> None:
        """Note where the program made a call, by its number in `hpcoll.comm.status.names`."""
        self._numbers[self._record(number) + f.ITS_NAMES] |= place << f.PLACE_AT

    def note_wait(self, number: int, begin_ns: int, end_ns: int, place: int) -> None:
        """Note that the program has waited for a call in flight, from one time to another, and where it had called.

        Times are as of `time.monotonic_ns`; ``place`` as in `note_place`.
        """
        if number >= self.first_kept:
            record = self._record(number)
            self._numbers[record + f.ITS_WAIT_BEGIN], self._numbers[record + f.ITS_WAIT_END] = (
                begin_ns,
                end_ns,
            )
            self._numbers[record + f.ITS_NAMES] |= place << f.PLACE_AT
        _process[f.SPENT] += end_ns - begin_ns
        self._words[f.OWN_SPENT] += end_ns - begin_ns

    def _record(self, number: int) -> int:
        """Return where the record of a call begins among the numbers of all records."""
        block, at = divmod(number, f.RECORDS_HOT)
        return (self._block(block, self.ncalls // f.RECORDS_HOT) * f.RECORDS_HOT + at) * f.RECORD_NFIELDS

    @staticmethod
    def _block(block: int, hot: int) -> int:
        """Return where a block of records is, while ``hot`` is the one that is written."""
        return 0 if block == hot else 1 + (block + 1) % f.RECORD_BLOCKS

    def compare_at(self, number: int) -> None:
        """Let blocking calls from that number on say that it is time to compare."""
        self._words[f.DUE] = number

    @property
    def is_due(self) -> bool:
        """Say whether it is time to compare."""
        return self._words[f.CALLS] >= self._words[f.DUE]

    @property
    def took_long(self) -> bool:
        """Say whether the latest blocking call took long."""
        return self._words[f.TOOK] >= self._words[f.LONG]
