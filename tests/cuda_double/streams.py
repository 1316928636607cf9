"""Work on streams, done as late as it may be, in any order that streams and events allow.

The host **knows** of work that is done once it has waited for something behind it. Work that it does not know of may still be under way,
so whatever touches the same bytes must come behind it by streams and events, or it is a race.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

from cuda_double.failures import CAPTURE_UNSUPPORTED, INVALID_HANDLE, UNKNOWN, require

LEGACY, PER_THREAD = 1, 2
PATIENCE_S = 60.0  # with work that waits for another process
MOST_QUERIES = 3  # that say "not ready" before an event is
Span = tuple[int, int]  # first byte, last + 1


class Race(NamedTuple):
    """Two that touch the same bytes in no order; ``first`` was there first."""

    first: str
    second: str
    lo: int
    hi: int


@dataclass(eq=False)
class Operation:
    """A piece of work.

    Attributes:
        run: Does it; False where it waits for another process, and is to be asked again.
        after: What it waits for, as far as the host does not know it done.
        known: Whether the host knows it done.
    """

    name: str
    run: Callable[[], bool | None] | None = None
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    after: set["Operation"] = field(default_factory=set)
    number: int = 0
    done: bool = False
    known: bool = False

    def before(self) -> set["Operation"]:
        """All that is done before it."""
        found: set[Operation] = set()
        todo = list(self.after)
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += one.after
        return found


@dataclass(eq=False)
class Stream:
    """A stream; a blocking one and the legacy default stream of its GPU wait for each other."""

    name: str
    ordinal: int
    blocking: bool
    last: Operation | None = None
    capturing: bool = False
    graph: list[Callable[[], None]] = field(default_factory=list)  # launches that were captured


@dataclass(eq=False)
class Event:
    """An event: what it was recorded behind, and how often a query will say that this is not done."""

    ordinal: int
    mark: Operation | None = None
    nqueries: int = 0


def _conflicts(one: Operation, reads: Iterable[Span], writes: Iterable[Span]) -> list[Span]:
    """Bytes that both touch and that one of them writes."""
    pairs = [(a, b) for a in one.writes for b in (*reads, *writes)] + [
        (a, b) for a in one.reads for b in writes
    ]
    return [(max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs if max(a[0], b[0]) < min(a[1], b[1])]


class Streams:
    """All streams, and their work; chance chooses among what is allowed."""

    def __init__(self) -> None:
        self.races: list[Race] = []
        self._rng = Random(0)
        self._by_handle: dict[int, Stream] = {}
        self._default: dict[tuple[int, int], Stream] = {}  # ordinal, thread or 0 for the legacy stream
        self._all: list[Stream] = []  # destroyed ones too: their work goes on
        self._unknown: list[Operation] = []
        self._handles, self._numbers = count(0x51000010, 0x10), count()

    def create(self, ordinal: int, blocking: bool) -> int:
        """A stream's handle."""
        handle = next(self._handles)
        self._by_handle[handle] = self._new(f"stream {handle:#x}", ordinal, blocking)
        return handle

    def _new(self, name: str, ordinal: int, blocking: bool) -> Stream:
        self._all.append(Stream(name, ordinal, blocking))
        return self._all[-1]

    def destroy(self, handle: int) -> None:
        """Forget a stream; its work goes on."""
        require(handle in self._by_handle, INVALID_HANDLE, f"no stream {handle:#x}")
        del self._by_handle[handle]

    def is_default(self, handle: int) -> bool:
        """Say whether a handle means a default stream of the thread's context."""
        return handle in (0, LEGACY, PER_THREAD)

    def get(self, handle: int, ordinal: int) -> Stream:
        """A stream; ``ordinal`` tells which GPU's default streams are meant."""
        if self.is_default(handle):
            thread = threading.get_native_id() if handle == PER_THREAD else 0
            if (ordinal, thread) not in self._default:
                name = f"default stream of thread {thread}" if thread else "legacy default stream"
                self._default[ordinal, thread] = self._new(name, ordinal, True)
            return self._default[ordinal, thread]
        require(handle in self._by_handle, INVALID_HANDLE, f"no stream {handle:#x}")
        return self._by_handle[handle]

    def put(
        self,
        stream: Stream,
        name: str,
        run: Callable[[], bool | None] | None = None,
        reads: tuple[Span, ...] = (),
        writes: tuple[Span, ...] = (),
        behind: Operation | None = None,
    ) -> Operation:
        """Queue work, behind what the stream has and one more."""
        require(not stream.capturing, CAPTURE_UNSUPPORTED, f"{stream.name} is being captured")
        legacy = self._default.get((stream.ordinal, 0))
        waits = [stream.last, behind]
        if stream is legacy:
            waits += [other.last for other in self._all if other.blocking and other.ordinal == stream.ordinal]
        elif stream.blocking and legacy:
            waits.append(legacy.last)
        one = Operation(
            f"{name} on {stream.name}",
            run,
            reads,
            writes,
            {wait for wait in waits if wait and not wait.known},
        )
        one.number = next(self._numbers)
        before = one.before() if run else set()
        for other in self._unknown:
            if other not in before:
                self.races += self._races(other, one.name, reads, writes)
        if run:
            self._unknown.append(one)
        stream.last = one
        return one

    def _races(
        self, other: Operation, name: str, reads: tuple[Span, ...], writes: tuple[Span, ...]
    ) -> list[Race]:
        return [Race(other.name, name, lo, hi) for lo, hi in _conflicts(other, reads, writes)]

    def _do(self, one: Operation) -> bool:
        """Do a piece of work and what it waits for, nothing more; say whether that is done, which the host knows then."""
        todo, waiting = one.before() | {one}, set[Operation]()
        while ready := [
            other for other in todo - waiting if not other.done and all(wait.done for wait in other.after)
        ]:
            chosen = self._rng.choice(sorted(ready, key=lambda other: other.number))
            if chosen.run and chosen.run() is False:
                waiting.add(chosen)
            else:
                chosen.done = True
        if not one.done:
            return False
        for other in todo:
            other.known, other.run = True, None
            other.after.clear()
        self._unknown = [other for other in self._unknown if not other.known]
        return True

    def finish(self, one: Operation | None) -> None:
        """Let the host wait for a piece of work."""
        end = time.monotonic() + PATIENCE_S
        while one is not None and not one.known and not self._do(one):
            require(time.monotonic() < end, UNKNOWN, f"{one.name} waits for another process")
            time.sleep(0.0002)

    def finish_all(self, ordinal: int | None = None) -> None:
        """Let the host wait for all work of a GPU, or of all."""
        for stream in self._all:
            if ordinal is None or stream.ordinal == ordinal:
                self.finish(stream.last)

    def is_idle(self, stream: Stream) -> bool:
        """Say whether a stream's work is done; that of the legacy default stream includes what blocking streams have."""
        is_legacy = stream is self._default.get((stream.ordinal, 0))
        others = [
            other for other in self._all if is_legacy and other.blocking and other.ordinal == stream.ordinal
        ]
        last = [one.last for one in (stream, *others) if one.last]
        if not all(one.done for one in last):
            return False
        for one in last:
            self.finish(one)
        return True

    def pending(self) -> list[str]:
        """Names of the work that is not done."""
        return [one.name for one in self._unknown if not one.done]

    def touch(self, lo: int, hi: int, *, writes: bool) -> None:
        """Note where the host reads or writes bytes that work under way writes or touches."""
        name, span = f"the host {'writes' if writes else 'reads'}", ((lo, hi),)
        for one in self._unknown:
            self.races += self._races(one, name, () if writes else span, span if writes else ())

    def record(self, event: Event, stream: Stream) -> None:
        """Put an event behind all that a stream has."""
        event.mark, event.nqueries = self.put(stream, "an event"), self._rng.randint(0, MOST_QUERIES)

    def query(self, event: Event) -> bool:
        """Say whether an event has happened: it does so when it was asked often enough."""
        if event.mark and not event.mark.done and event.nqueries > 0:
            event.nqueries -= 1
            return False
        return event.mark is None or event.mark.known or self._do(event.mark)
