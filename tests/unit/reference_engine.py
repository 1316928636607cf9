"""A slow engine that runs the programs of all ranks in one process, as `hpcoll.engines.host` does, and trusts none of them.

Lanes and messages move in a random order, drawn from a seed. A message is written at its receiver when it completes and, if
it is above the eager limit, read at its sender only then. What is posted fills the receive's memory with garbage at once.
Refused besides wrong data: a deadlock; a touch of memory that a request owns before its WAIT has passed; a request used twice
or never waited for; a message without its twin or of another size; bytes outside a buffer or partly overlapping operands.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations
from typing import NamedTuple

import numpy as np

from hpcoll.program import Code, Program

GUARD = 64
Place = tuple[int, int]  # rank, place of the window


class Operator(NamedTuple):
    """What is reduced: bytes of an element, and a function of the bytes of two runs of elements."""

    itemsize: int
    combine: Callable[[np.ndarray, np.ndarray], np.ndarray]


class Memory:
    """One rank's memory: INPUT, OUTPUT and SCRATCH of the given sizes in one arena, guards around each; None must not be touched."""

    def __init__(self, nbytes: Sequence[int | None], rng: np.random.Generator) -> None:
        bases = np.cumsum([GUARD, *(-(-(n or 0) // GUARD) * GUARD + GUARD for n in nbytes)]).tolist()
        self.arena = rng.integers(0, 256, bases[-1], np.uint8)
        self.spans = [(base, base + n) if n is not None else None for base, n in zip(bases, nbytes)]
        self.read_by, self.written_by = np.zeros(bases[-1], np.int16), np.zeros(bases[-1], np.int16)  # requests per byte

    def buffer(self, index: int) -> np.ndarray:
        """The bytes of a buffer."""
        span = self.spans[index]
        assert span is not None, f"buffer {index} is not there"
        return self.arena[slice(*span)]

    def check_free(self, span: slice, *, to_write: bool) -> None:
        """Nobody may read what a receive will write, nor write what a send will read."""
        assert not self.written_by[span].any(), "touches memory of a receive that was not waited for"
        assert not (to_write and self.read_by[span].any()), "writes memory of a send that was not waited for"


class _Request:
    """A message of one rank under way; ``data`` is what an eager send carried away at once."""

    def __init__(self, memory: Memory, span: slice, counter: np.ndarray) -> None:
        self.memory, self.span, self.counter = memory, span, counter
        self.data: np.ndarray | None = None
        self.done = False
        self.waiting: Place | None = None
        counter[span] += 1


class _Position:
    """What runs in one place of a rank's window."""

    def __init__(self, lane: int, row: int) -> None:
        self.lane, self.row = lane, row
        self.requests: dict[int, _Request] = {}


class Setting(NamedTuple):
    """How a run goes: the seed of its order; the largest message, in bytes, that a send does not wait for."""

    seed: int
    eager_nbytes: int = 0


class World:
    """The programs of all ranks, in rank order, each with its memory."""

    def __init__(self, programs: Sequence[Program], memories: Sequence[Memory], operator: Operator, setting: Setting) -> None:
        assert len({(p.window, len(p.lanes)) for p in programs}) == 1, "ranks must agree on lanes and window: a place is a tag"
        self.programs, self.memories, self.operator, self.setting = programs, memories, operator, setting
        self.random = random.Random(setting.seed)
        self.rows = [p.rows.tolist() for p in programs]
        self.lanes = [p.lanes.tolist() for p in programs]
        self.positions = {(r, i): _Position(i, self.lanes[r][i][0]) for r, p in enumerate(programs) for i in range(p.window)}
        self.ready = list(self.positions)
        self.links: dict[tuple[int, int, int], tuple[deque[_Request], ...]] = defaultdict(lambda: (deque(), deque()))
        self.moving: list[tuple[_Request, _Request]] = []
        self.messages = 0

    def run(self) -> None:
        """Run until all lanes have ended."""
        while self.ready or self.moving:
            i = self.random.randrange(len(self.ready) + len(self.moving))
            options: list = self.ready if i < len(self.ready) else self.moving
            i -= 0 if options is self.ready else len(self.ready)
            options[i], options[-1] = options[-1], options[i]
            (self._advance if options is self.ready else self._deliver)(*options.pop())
        stuck = [f"rank {r} lane {at.lane} row {at.row}" for (r, _), at in self.positions.items() if at.lane < len(self.lanes[r])]
        assert not stuck, f"deadlock: {'; '.join(stuck)}"
        assert not any(sends or receives for sends, receives in self.links.values()), "messages without a receive"

    def _advance(self, rank: int, place: int) -> None:
        at = self.positions[rank, place]
        for _ in range(self.random.choice((1, 2, 5, 50))):
            if at.row < self.lanes[rank][at.lane][1]:
                if not self._execute(rank, place, at, *self.rows[rank][at.row]):
                    return
                at.row += 1
                continue
            assert not at.requests, f"rank {rank}: lane {at.lane} ends and did not wait for requests {list(at.requests)}"
            at.lane += self.programs[rank].window
            if at.lane >= len(self.lanes[rank]):
                return
            at.row = self.lanes[rank][at.lane][0]
        self.ready.append((rank, place))

    def _execute(self, rank: int, place: int, at: _Position, code: int, a: int, b: int, c: int, d: int, e: int) -> bool:
        memory, lane = self.memories[rank], at.lane
        if code == Code.WAIT:
            request = at.requests[a]
            if not request.done:
                request.waiting = rank, place
                return False
            request.counter[request.span] -= 1
            del at.requests[a]
        elif code == Code.COPY:
            to, source = self._span(rank, lane, a, b, e), self._span(rank, lane, c, d, e)
            assert e > 0, "an empty copy"
            assert to.stop <= source.start or source.stop <= to.start, "memcpy of overlapping memory"
            self._write(memory, to, self._read(memory, source))
        elif code == Code.REDUCE:
            self._reduce(rank, lane, c, (a, b), self.programs[rank].sources[d : d + e].tolist())
        else:
            self._post(rank, place, at, Code(code), a, b, self._span(rank, lane, c, d, e))
        return True

    def _reduce(self, rank: int, lane: int, count: int, to: tuple[int, int], sources: list[list[int]]) -> None:
        assert count > 0 < len(sources), "an empty reduction"
        spans = [self._span(rank, lane, *at, count * self.operator.itemsize) for at in (to, *sources)]
        for one, other in combinations(spans, 2):
            assert one == other or one.stop <= other.start or other.stop <= one.start, "operands overlap partly"
        assert all(self._aligned(rank, span) for span in spans), "an operand lies across elements"
        memory = self.memories[rank]
        self._write(memory, spans[0], reduce(self.operator.combine, [self._read(memory, span) for span in spans[1:]]))

    def _post(self, rank: int, place: int, at: _Position, code: Code, index: int, peer: int, span: slice) -> None:
        memory = self.memories[rank]
        assert index not in at.requests, f"request {index} is in use"
        assert 0 <= index < self.programs[rank].nrequests, f"request {index} is not among those of the lane"
        assert span.stop > span.start, "an empty message"
        memory.check_free(span, to_write=code == Code.RECV)
        request = at.requests[index] = _Request(memory, span, memory.written_by if code == Code.RECV else memory.read_by)
        if code == Code.RECV:
            memory.arena[span] ^= 0x5A
            self.links[peer, rank, place][1].append(request)
        else:
            self.links[rank, peer, place][0].append(request)
            if span.stop - span.start <= self.setting.eager_nbytes:
                request.data, request.done = memory.arena[span].copy(), True
        sends, receives = self.links[(peer, rank, place) if code == Code.RECV else (rank, peer, place)]
        if sends and receives:
            self.moving.append((sends.popleft(), receives.popleft()))

    def _deliver(self, send: _Request, receive: _Request) -> None:
        self.messages += 1
        data = send.memory.arena[send.span] if send.data is None else send.data
        assert len(data) == receive.span.stop - receive.span.start, "a message and its receive differ in size"
        receive.memory.arena[receive.span] = data
        for request in (send, receive):
            request.done = True
            if request.waiting:
                self.ready.append(request.waiting)
                request.waiting = None

    def _read(self, memory: Memory, span: slice) -> np.ndarray:
        memory.check_free(span, to_write=False)
        return memory.arena[span]

    def _write(self, memory: Memory, span: slice, data: np.ndarray) -> None:
        memory.check_free(span, to_write=True)
        memory.arena[span] = data

    def _span(self, rank: int, lane: int, buffer: int, displ: int, nbytes: int) -> slice:
        limits = self.memories[rank].spans[buffer]
        assert limits is not None, f"rank {rank} touches buffer {buffer}, which this call does not have"
        base, end = limits
        if buffer == 2:
            room = self.programs[rank].scratch_nbytes
            base += lane % self.programs[rank].window * room
            end = base + room
        else:
            base += self.lanes[rank][lane][2]
        assert limits[0] <= base + displ <= base + displ + nbytes <= end, f"rank {rank} leaves buffer {buffer}"
        return slice(base + displ, base + displ + nbytes)

    def _aligned(self, rank: int, span: slice) -> bool:
        base, _ = next(s for s in self.memories[rank].spans if s and s[0] <= span.start < s[1])
        return (span.start - base) % self.operator.itemsize == 0
