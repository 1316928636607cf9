"""GPU programs in the reference engine: streams whose operations run when they like, memory of GPUs and of hosts.

COPY, REDUCE and STAGE are queued on the stream of their rank and window slot and run in order at random moments, events among them.
What the caller did before the call ends at a random moment, too; until then INPUT and OUTPUT hold garbage. A lane knows
only what it waited for: an operation owns its memory until a SYNC behind it has passed, and what is lent is its reader's until an
UNREAD has passed, however early things are done; what a peer may write is the peer's alone. Refused besides: rows of the host on
memory that is only the GPU's, MPI messages there unless the library takes them, and messages in place for ranks that do not map them.
"""

from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
from reference_calls import SCRATCH, Call, Reach, Setting, operands_of
from reference_engine import Operands, Position, World
from reference_memory import STAGING_SLOTS, Area, Message

from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import MESSAGES, PINNED, STAGING, Code

MOST_SOURCES = MOST_DESTINATIONS = 8
PINNED_AT = 3  # of PINNED among the buffers of a memory
_ASYNCHRONOUS = (Code.COPY, Code.REDUCE, Code.STAGE)


class _Operation:
    """On a stream, from its row to the SYNC behind it: what it works on, and the messages among that."""

    def __init__(self, operands: Operands, messages: Sequence[Message]) -> None:
        self.operands, self.messages = operands, messages
        self.count(1)

    def count(self, change: int) -> None:
        for message in self.messages:
            message.queued += change
        for area in self.operands.writes:
            area.memory.queued_write[area.span] += change
        for area in self.operands.reads:
            area.memory.queued_read[area.span] += change

    def meets(self, other: "_Operation") -> bool:
        """Say whether one of the two writes what the other works on."""
        both = (self.operands, other.operands), (other.operands, self.operands)
        return not all(one.apart(two) for a, b in both for one in a.writes for two in (*b.writes, *b.reads))

    def meets_area(self, area: Area) -> bool:
        return not all(area.apart(one) for one in (*self.operands.writes, *self.operands.reads))


class _Stream:
    """Of one rank and window slot; what its lane has waited for."""

    def __init__(self) -> None:
        self.queue: deque[_Operation | int] = deque()  # operations, and events
        self.unsynced: list[_Operation] = []
        self.events: dict[int, _Operation] = {}  # recorded behind
        self.reached: set[int] = set()
        self.started = False  # the lane knows that the caller's earlier work is done
        self.lent: dict[int, list[Message]] = defaultdict(list)  # peer -> lent to it

    def idle(self) -> bool:
        return not (self.queue or self.unsynced or any(self.lent.values()))


class GpuWorld(World):
    """Calls one after another on the same ranks; of GPU programs, and of host programs."""

    def __init__(self, calls: Sequence[Call], setting: Setting) -> None:
        self.streams: dict[tuple[int, int], _Stream] = defaultdict(_Stream)
        self.busy: list[tuple[int, int]] = []  # streams with something to do
        self.earlier: dict[
            int, list[tuple[Area, np.ndarray]]
        ] = {}  # ranks whose callers' earlier work goes on, and what it writes
        self.starting: list[tuple[int, int]] = []
        super().__init__(calls, setting)
        self.moves += [(self.busy, self._turn), (self.starting, self._start)]

    def _reach(self, rank: int) -> Reach | None:
        reach = self.calls[self.at[rank]].reach
        return reach[rank] if reach else None

    def _begin(self, rank: int) -> None:
        super()._begin(rank)
        if self.at[rank] < len(self.calls) and self._reach(rank):
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

    def _end_lane(self, rank: int, slot: int, at: Position) -> None:
        super()._end_lane(rank, slot, at)
        stream = self.streams.pop((rank, slot), _Stream())
        assert stream.idle(), (
            f"rank {rank}: lane {at.lane} ends and did not wait for its stream, or for those who read its memory"
        )

    def _turn(self, rank: int, slot: int) -> None:
        """The next thing on a stream."""
        stream = self.streams[rank, slot]
        first = stream.queue.popleft()
        if isinstance(first, int):
            stream.reached.add(first)
        else:
            assert not any(message.used for message in first.messages), (
                "reads a message that was acknowledged"
            )
            self._operate(rank, first.operands)
        if stream.queue:
            self.busy.append((rank, slot))
        self._moved(rank, True)

    def _queue(self, rank: int, slot: int, what: _Operation | int) -> None:
        queue = self.streams[rank, slot].queue
        queue.append(what)
        if len(queue) == 1 and rank not in self.earlier:
            self.busy.append((rank, slot))

    def _execute(self, rank: int, slot: int, at: Position, row: list[int]) -> bool:
        reach, stream = self._reach(rank), self.streams[rank, slot]
        code, event = row[f.CODE], row[f.EVENT]
        if reach is None or code in (Code.WAIT, Code.RESERVE, Code.AWAIT):
            return super()._execute(rank, slot, at, row)
        if code in _ASYNCHRONOUS:
            self._operation(rank, slot, at, row)
        elif code == Code.RECORD:
            assert 0 < event < self._call(rank)[0].nevents, f"event {event} is not among those of the lane"
            assert event not in stream.events, f"event {event} is in use"
            assert stream.unsynced, "records nothing"
            stream.events[event] = stream.unsynced[-1]
            self._queue(rank, slot, event)
        elif code in (Code.SYNC, Code.UNREAD):
            passed = (
                self._sync(rank, stream, event)
                if code == Code.SYNC
                else self._unread(rank, slot, row[f.LOCAL_PEER], row[f.ALLOWED])
            )
            if not passed:
                self.parked[rank].append((rank, slot))
            return passed
        else:
            return self._act(rank, slot, at, row)
        return True

    def _operation(self, rank: int, slot: int, at: Position, row: list[int]) -> None:
        operands = self._operands(rank, at, row)
        writes, reads = operands_of(self._call(rank)[0], row)
        assert len(reads) <= MOST_SOURCES, "more sources than a kernel takes"
        assert len(writes) <= MOST_DESTINATIONS, "more destinations than a kernel takes"
        assert row[f.CODE] == Code.STAGE or STAGING not in dict(writes), "only STAGE writes staging memory"
        assert STAGING not in dict(reads), "reads staging memory"
        for areas, to_write in ((operands.writes, True), (operands.reads, False)):
            for area in areas:
                area.check_free(to_write=to_write, by=rank)
        operation = _Operation(
            operands, [at.messages[buffer - MESSAGES] for buffer, _ in writes + reads if buffer >= MESSAGES]
        )
        for other, stream in self.streams.items():
            if other[0] == rank and other[1] != slot:
                assert not any(operation.meets(theirs) for theirs in stream.unsynced), (
                    "works on what another stream works on"
                )
        self.streams[rank, slot].unsynced.append(operation)
        self._queue(rank, slot, operation)

    def _sync(self, rank: int, stream: _Stream, event: int) -> bool:
        if event == 0:
            stream.started |= rank not in self.earlier
            return stream.started
        assert event in stream.events, f"event {event} was not recorded"
        if event not in stream.reached:
            return False
        stream.reached.discard(event)
        last = stream.events.pop(event)
        while last in stream.unsynced:
            stream.unsynced.pop(0).count(-1)
        stream.started = True
        return True

    def _unread(self, rank: int, slot: int, local: int, allowed: int) -> bool:
        peer = self.node.ranks[rank][local]
        if self.node.rings[rank, peer, (slot + self.at[rank]) % STAGING_SLOTS].unread() > allowed:
            return False
        lent = self.streams[rank, slot].lent[peer]
        while len(lent) > allowed:
            message = lent.pop(0)
            area = message.area
            if message.granted:
                area.memory.granted[area.span] = 0
            else:
                area.memory.read_by[area.span] -= 1
        return True

    def _act(self, rank: int, slot: int, at: Position, row: list[int]) -> bool:
        """SEND, RECV, POST and ACK: what they hand out or give back must not be at work on the stream."""
        code, buffer = row[f.CODE], row[f.BUFFER]
        reach = self._reach(rank)
        assert reach is not None
        if code in (Code.SEND, Code.RECV):
            assert buffer in ((0, 1, SCRATCH, PINNED) if reach.mpi_takes_gpu else (PINNED,)), (
                f"an MPI message in buffer {buffer}"
            )
            area = self._area(rank, at, buffer, row[f.DISPL], row[f.NBYTES])
            self._check_synced(rank, slot, buffer, area, to_write=code == Code.RECV)
            return super()._execute(rank, slot, at, row)
        peer = self.node.ranks[rank][row[f.LOCAL_PEER]]
        if code == Code.ACK:
            awaited = self.node.rings[peer, rank, (slot + self.at[rank]) % STAGING_SLOTS].awaited
            assert not awaited or not awaited[0].queued, (
                "acknowledges a message that its stream may still read"
            )
            return super()._execute(rank, slot, at, row)
        assert code == Code.POST, f"{Code(code).name} in a GPU program"
        return self._post(rank, slot, at, row, peer)

    def _post(self, rank: int, slot: int, at: Position, row: list[int], peer: int) -> bool:
        buffer, displ, in_place = row[f.BUFFER], row[f.DISPL], row[f.IN_PLACE]
        reach, stream = self._reach(rank), self.streams[rank, slot]
        assert reach is not None
        assert peer != rank, "a message to itself"
        how = "in place" if in_place else "a copy"
        assert bool(in_place) == (peer in reach.readers), (
            f"posts {how} for rank {peer}: {reach.readers} map it"
        )
        assert in_place or (buffer, displ) == (STAGING, row[f.STAGED_DISPL]), (
            "posts a copy that is not in staging memory"
        )
        assert not in_place or buffer == SCRATCH or reach.exported[buffer], (
            f"posts buffer {buffer}, which cannot be mapped"
        )
        area, grants = self._area(rank, at, buffer, displ, row[f.NBYTES]), in_place == f.WRITTEN
        assert reach.puts or not grants, "lets a rank write that does not know of it"
        if grants:
            self._check_granted(rank, slot, buffer, area, peer)
        else:
            self._check_synced(rank, slot, buffer, area, to_write=False)
        ring = self.node.rings[rank, peer, (slot + self.at[rank]) % STAGING_SLOTS]
        if not ring.post(area, inline=False, granted=grants):
            self.parked[rank].append((rank, slot))
            return False
        if grants:
            area.memory.granted[area.span] = 1 + peer
        elif in_place:
            area.memory.read_by[area.span] += 1
        if in_place:
            stream.lent[peer].append(ring.posted[-1])
        return self._moved(peer, True)

    def _check_synced(self, rank: int, slot: int, buffer: int, area: Area, *, to_write: bool) -> None:
        area.check_free(to_write=to_write)
        memory, span = area.memory, area.span
        assert buffer not in (0, 1) or self.streams[rank, slot].started, "the caller's earlier work may go on"
        assert not memory.queued_write[span].any(), "touches what a stream may still write"
        assert not (to_write and memory.queued_read[span].any()), "overwrites what a stream may still read"

    def _check_granted(self, rank: int, slot: int, buffer: int, area: Area, peer: int) -> None:
        """Nobody works there but, as a reader, the peer itself, which does things in order."""
        assert buffer not in (0, 1) or self.streams[rank, slot].started, "the caller's earlier work may go on"
        memory, read_by = area.memory, np.zeros(area.nbytes, np.int16)
        for message in self.streams[rank, slot].lent[peer]:
            if message.area.memory is memory and not message.granted:
                lo, hi = max(message.area.lo, area.lo), min(message.area.hi, area.hi)
                read_by[max(0, lo - area.lo) : max(0, hi - area.lo)] += 1 + (not message.used)
        assert (memory.read_by[area.span] == read_by).all(), "lets a peer write what another may still read"
        assert not (memory.written_by[area.span] + memory.granted[area.span]).any(), "lets two write the same"
        for (other, _), stream in self.streams.items():
            own = [one for one in stream.unsynced if other == rank]
            assert not any(one.meets_area(area) for one in own), (
                "lets a peer write what a stream may still work on"
            )

    def _area(self, rank: int, at: Position, buffer: int, displ: int, nbytes: int) -> Area:
        if buffer != PINNED:
            return super()._area(rank, at, buffer, displ, nbytes)
        program, memory = self._call(rank)
        whole = memory.area(PINNED_AT).part(
            at.lane % program.window * program.pinned_nbytes, program.pinned_nbytes, "pinned memory"
        )
        return whole.part(displ, nbytes, "pinned memory of its lane")
