"""Device programs in the reference engine: streams whose operations run when they like, memory of GPUs and of hosts.

COPY, REDUCE and STAGE are queued on the stream of their rank and place and run in order at random moments; an event is reached when its
turn comes. What the caller did before the call ends at a random moment, too; until then INPUT and OUTPUT hold garbage. A lane knows
only what it waited for: an operation owns its memory until a SYNC behind it has passed, and what is posted where it lies is its
reader's until an UNREAD has passed, however early things are done. Refused besides: rows of the host on memory that is only the GPU's,
MPI messages there unless the library takes them, and messages where they lie for ranks that do not map them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
from reference_engine import SCRATCH, Call, Position, Setting, World
from reference_memory import PLACES, Area, Message

from hpcoll.runtime.program.opcodes import MESSAGES, PINNED, STAGING, Code, Ways

MOST_SOURCES = 8
PINNED_AT = 3  # of PINNED among the buffers of a memory
_ASYNCHRONOUS = (Code.COPY, Code.REDUCE, Code.STAGE)


class _Operation:
    """On a stream, from its row to the SYNC behind it: what it works on, and the messages among that."""

    def __init__(self, areas: Sequence[Area], messages: Sequence[Message]) -> None:
        self.areas, self.messages = areas, messages
        self.count(1)

    def count(self, change: int) -> None:
        for message in self.messages:
            message.queued += change
        self.areas[0].memory.queued_write[self.areas[0].span] += change
        for area in self.areas[1:]:
            area.memory.queued_read[area.span] += change

    def meets(self, other: _Operation) -> bool:
        """Whether one of the two writes what the other works on."""
        return not all(one.apart(two) for a, b in ((self, other), (other, self)) for one in a.areas[:1] for two in b.areas)


class _Stream:
    """Of one rank and place; what its lane has waited for."""

    def __init__(self) -> None:
        self.queue: deque[_Operation | int] = deque()  # operations, and slots of events
        self.unsynced: list[_Operation] = []
        self.events: dict[int, _Operation] = {}  # recorded behind
        self.reached: set[int] = set()
        self.started = False  # the lane knows that the caller's earlier work is done
        self.lent: dict[int, list[Message]] = defaultdict(list)  # peer -> posted where they lie

    def idle(self) -> bool:
        return not (self.queue or self.unsynced or any(self.lent.values()))


class DeviceWorld(World):
    """Calls one after another on the same ranks; of device programs, and of host programs."""

    def __init__(self, calls: Sequence[Call], setting: Setting) -> None:
        self.streams: dict[tuple[int, int], _Stream] = defaultdict(_Stream)
        self.busy: list[tuple[int, int]] = []  # streams with something to do
        self.earlier: dict[int, list[tuple[Area, np.ndarray]]] = {}  # ranks whose callers' earlier work goes on, and what it writes
        self.starting: list[tuple[int, int]] = []
        super().__init__(calls, setting)
        self.moves += [(self.busy, self._turn), (self.starting, self._start)]

    def _ways(self, rank: int) -> Ways | None:
        ways = self.calls[self.at[rank]].ways
        return ways[rank] if ways else None

    def _begin(self, rank: int) -> None:
        super()._begin(rank)
        if self.at[rank] < len(self.calls) and self._ways(rank):
            memory = self._call(rank)[1]
            areas = [memory.area(buffer) for buffer in (0, 1) if memory.spans[buffer] is not None]
            self.earlier[rank] = [(area, memory.arena[area.span].copy()) for area in areas]
            for area in areas:
                area.spoil()
            self.starting.append((rank, self.at[rank]))

    def _start(self, rank: int, call: int) -> None:
        """The caller's earlier work is done."""
        if call == self.at[rank] and rank in self.earlier:
            for area, data in self.earlier.pop(rank):
                area.memory.arena[area.span] = data
            self.busy += [key for key, stream in self.streams.items() if key[0] == rank and stream.queue]
            self._moved(rank, True)

    def _end(self, rank: int) -> None:
        self._start(rank, self.at[rank])
        super()._end(rank)

    def _end_lane(self, rank: int, place: int, at: Position) -> None:
        super()._end_lane(rank, place, at)
        stream = self.streams.pop((rank, place), _Stream())
        assert stream.idle(), f"rank {rank}: lane {at.lane} ends and did not wait for its stream, or for those who read its memory"

    def _turn(self, rank: int, place: int) -> None:
        """The next thing on a stream."""
        stream = self.streams[rank, place]
        first = stream.queue.popleft()
        if isinstance(first, int):
            stream.reached.add(first)
        else:
            assert not any(message.used for message in first.messages), "reads a message that was acknowledged"
            self._operate(rank, first.areas)
        if stream.queue:
            self.busy.append((rank, place))
        self._moved(rank, True)

    def _queue(self, rank: int, place: int, what: _Operation | int) -> None:
        queue = self.streams[rank, place].queue
        queue.append(what)
        if len(queue) == 1 and rank not in self.earlier:
            self.busy.append((rank, place))

    def _execute(self, rank: int, place: int, at: Position, row: list[int]) -> bool:
        ways, stream = self._ways(rank), self.streams[rank, place]
        code, a, b, *_ = row
        if ways is None or code in (Code.WAIT, Code.RESERVE, Code.AWAIT):
            return super()._execute(rank, place, at, row)
        if code in _ASYNCHRONOUS:
            self._operation(rank, place, at, row)
        elif code == Code.RECORD:
            assert 0 < a < self._call(rank)[0].nevents, f"event slot {a} is not among those of the lane"
            assert a not in stream.events, f"event slot {a} is in use"
            assert stream.unsynced, "records nothing"
            stream.events[a] = stream.unsynced[-1]
            self._queue(rank, place, a)
        elif code in (Code.SYNC, Code.UNREAD):
            passed = self._sync(rank, stream, a) if code == Code.SYNC else self._unread(rank, place, a, b)
            if not passed:
                self.parked[rank].append((rank, place))
            return passed
        else:
            return self._act(rank, place, at, row)
        return True

    def _operation(self, rank: int, place: int, at: Position, row: list[int]) -> None:
        code, a, _, c, d, e, *_ = row
        areas = self._operands(rank, at, row)
        assert len(areas) <= 1 + MOST_SOURCES, "more sources than a kernel takes"
        places = self._call(rank)[0].sources[d : d + e].tolist() if code == Code.REDUCE else [(c, d)]
        assert code == Code.STAGE or a != STAGING, "only STAGE writes the shared window"
        assert not any(buffer == STAGING for buffer, _ in places), "reads the shared window"
        areas[0].check_free(to_write=True)
        for area in areas[1:]:
            area.check_free(to_write=False)
        operation = _Operation(areas, [at.slots[buffer - MESSAGES] for buffer, _ in places if buffer >= MESSAGES])
        for other, stream in self.streams.items():
            if other[0] == rank and other[1] != place:
                assert not any(operation.meets(theirs) for theirs in stream.unsynced), "works on what another stream works on"
        self.streams[rank, place].unsynced.append(operation)
        self._queue(rank, place, operation)

    def _sync(self, rank: int, stream: _Stream, slot: int) -> bool:
        if slot == 0:
            stream.started |= rank not in self.earlier
            return stream.started
        assert slot in stream.events, f"event slot {slot} was not recorded"
        if slot not in stream.reached:
            return False
        stream.reached.discard(slot)
        last = stream.events.pop(slot)
        while last in stream.unsynced:
            stream.unsynced.pop(0).count(-1)
        stream.started = True
        return True

    def _unread(self, rank: int, place: int, local: int, allowed: int) -> bool:
        peer = self.node.ranks[rank][local]
        if self.node.rings[rank, peer, (place + self.at[rank]) % PLACES].unread() > allowed:
            return False
        lent = self.streams[rank, place].lent[peer]
        while len(lent) > allowed:
            area = lent.pop(0).area
            area.memory.read_by[area.span] -= 1
        return True

    def _act(self, rank: int, place: int, at: Position, row: list[int]) -> bool:
        """SEND, RECV, POST and ACK: what they hand out or give back must not be at work on the stream."""
        code, a, _, c, d, e, *_ = row
        ways = self._ways(rank)
        assert ways is not None
        if code in (Code.SEND, Code.RECV):
            assert c in ((0, 1, SCRATCH, PINNED) if ways.direct else (PINNED,)), f"an MPI message in buffer {c}"
            self._check_synced(rank, place, c, self._area(rank, at, c, d, e), to_write=code == Code.RECV)
            return super()._execute(rank, place, at, row)
        peer = self.node.ranks[rank][a]
        if code == Code.ACK:
            awaited = self.node.rings[peer, rank, (place + self.at[rank]) % PLACES].awaited
            assert not awaited or not awaited[0].queued, "acknowledges a message that its stream may still read"
            return super()._execute(rank, place, at, row)
        assert code == Code.POST, f"{Code(code).name} in a device program"
        return self._post(rank, place, at, row, peer)

    def _post(self, rank: int, place: int, at: Position, row: list[int], peer: int) -> bool:
        staged, buffer, displ, nbytes, direct = row[2:7]
        ways, stream = self._ways(rank), self.streams[rank, place]
        assert ways is not None
        assert peer != rank, "a message to itself"
        assert direct == (peer in ways.mapped), f"posts {'where it lies' if direct else 'a copy'} for rank {peer}, which maps {ways.mapped}"
        assert direct or (buffer, displ) == (STAGING, staged), "posts a copy that is not in the shared window"
        assert not direct or buffer == SCRATCH or ways.exported[buffer], f"posts buffer {buffer}, which cannot be mapped"
        area = self._area(rank, at, buffer, displ, nbytes)
        self._check_synced(rank, place, buffer, area, to_write=False)
        ring = self.node.rings[rank, peer, (place + self.at[rank]) % PLACES]
        if not ring.post(area, inline=False):
            self.parked[rank].append((rank, place))
            return False
        if direct:
            stream.lent[peer].append(ring.posted[-1])
            area.memory.read_by[area.span] += 1
        return self._moved(peer, True)

    def _check_synced(self, rank: int, place: int, buffer: int, area: Area, *, to_write: bool) -> None:
        area.check_free(to_write=to_write)
        memory, span = area.memory, area.span
        assert buffer not in (0, 1) or self.streams[rank, place].started, "the caller's earlier work may go on"
        assert not memory.queued_write[span].any(), "touches what a stream may still write"
        assert not (to_write and memory.queued_read[span].any()), "overwrites what a stream may still read"

    def _area(self, rank: int, at: Position, buffer: int, displ: int, nbytes: int) -> Area:
        if buffer != PINNED:
            return super()._area(rank, at, buffer, displ, nbytes)
        program, memory = self._call(rank)
        whole = memory.area(PINNED_AT).part(at.lane % program.window * program.pinned_nbytes, program.pinned_nbytes, "pinned memory")
        return whole.part(displ, nbytes, "pinned memory of its lane")
