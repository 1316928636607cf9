"""A slow engine that runs the programs of all ranks in one process, as the compiled interpreter does, and trusts none of them.

Lanes and messages move in a random order, drawn from a seed; a rank may be calls ahead of another. An MPI message is written at
its receiver when it completes and, if it is above the eager limit, read at its sender only then. What is posted fills the
receive's memory with garbage at once. Refused besides wrong data: a deadlock; a touch of memory that a request owns before its
WAIT has passed, or of a message outside the time from AWAIT to ACK; a request used twice or never waited for; a message
without its twin, of another size, or never acknowledged; bytes outside a buffer or partly overlapping operands; a return
to the caller while somebody reads his buffers.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from reference_calls import SCRATCH, Call, Setting, operands_of
from reference_memory import STAGING_SLOTS, Area, Memory, Message, Ring, SharedMemory

from hpcoll.base.canonical import fold
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import INLINE_NBYTES, MESSAGES, STAGING, Code, Program


class _Request:
    """An MPI message of one rank under way; ``data`` is what an eager send carried away at once."""

    def __init__(self, area: Area, counter: np.ndarray) -> None:
        self.area, self.counter = area, counter
        self.data: np.ndarray | None = None
        self.done = False
        self.waiting: tuple[int, int] | None = None
        counter[area.span] += 1


class Position:
    """The position of a rank in one window slot."""

    def __init__(self, lane: int, row: int) -> None:
        self.lane, self.row = lane, row
        self.requests: dict[int, _Request] = {}
        self.messages: dict[int, Message] = {}  # by message slot
        self.staging: Area | None = None


class Operands(NamedTuple):
    """The bytes that a COPY, REDUCE or STAGE writes and reads."""

    writes: list[Area]
    reads: list[Area]


class World:
    """Calls one after another on the same ranks."""

    def __init__(self, calls: Sequence[Call], setting: Setting) -> None:
        for call in calls:
            widest = max(p.window for p in call.programs)
            assert all(p.window == min(widest, len(p.lanes)) for p in call.programs), (
                "ranks must agree on the window: slots are tags"
            )
        self.calls, self.setting = calls, setting
        self.rows = [[p.rows.tolist() for p in call.programs] for call in calls]
        self.lanes = [[p.lanes.tolist() for p in call.programs] for call in calls]
        self.random = random.Random(setting.seed)
        nodes = setting.nodes or range(len(calls[0].programs))
        greediest = max(p.staging_nbytes for call in calls for p in call.programs)
        self.node = SharedMemory(nodes, setting.room * greediest, np.random.default_rng(setting.seed))
        self.at = [-1 for _ in nodes]  # call of each rank
        self.positions: dict[tuple[int, int], Position] = {}
        self.ready: list[tuple[int, int]] = []
        # by rank, until something happens in its shared memory
        self.parked: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.links: dict[tuple[int, int, int], tuple[deque[_Request], ...]] = defaultdict(
            lambda: (deque(), deque())
        )
        self.moving: list[tuple[_Request, _Request]] = []
        self.messages = 0
        self.moves: list[tuple[list, Callable[..., None]]] = [
            (self.ready, self._advance),
            (self.moving, self._deliver),
        ]
        for rank in range(len(nodes)):
            self._begin(rank)

    def run(self) -> None:
        """Run until all lanes of all calls have ended."""
        while total := sum(len(options) for options, _ in self.moves):
            i = self.random.randrange(total)
            for options, move in self.moves:
                if i < len(options):
                    options[i], options[-1] = options[-1], options[i]
                    move(*options.pop())
                    break
                i -= len(options)
        stuck = "; ".join(self._where(*key) for key, at in self.positions.items() if at.row >= 0)
        assert not stuck, f"deadlock: {stuck}"
        assert not any(sends or receives for sends, receives in self.links.values()), (
            "messages without a receive"
        )
        assert not any(ring.unread() for ring in self.node.rings.values()), "messages that nobody awaited"

    def _call(self, rank: int) -> tuple[Program, Memory]:
        call = self.calls[self.at[rank]]
        return call.programs[rank], call.memories[rank]

    def _where(self, rank: int, slot: int) -> str:
        at = self.positions[rank, slot]
        code, *columns = self.rows[self.at[rank]][rank][at.row]
        return (
            f"call {self.at[rank]} rank {rank} lane {at.lane} row {at.row} {Code(code).name}{tuple(columns)}"
        )

    def _begin(self, rank: int) -> None:
        self.at[rank] += 1
        if self.at[rank] < len(self.calls):
            program, _ = self._call(rank)
            for slot in range(program.window):
                self.positions[rank, slot] = Position(slot, self.lanes[self.at[rank]][rank][slot][0])
                self.ready.append((rank, slot))

    def _end(self, rank: int) -> None:
        """The caller gets his buffers back, and does with them what he likes."""
        _, memory = self._call(rank)
        memory.returned = memory.arena.copy()
        for buffer in (0, 1):
            if memory.spans[buffer] is not None:
                area = memory.area(buffer)
                assert not memory.read_by[area.span].any(), (
                    f"rank {rank} returns while buffer {buffer} may still be read"
                )
                assert not memory.granted[area.span].any(), (
                    f"rank {rank} returns while buffer {buffer} may still be written"
                )
                area.spoil()
        self._begin(rank)

    def _advance(self, rank: int, slot: int) -> None:
        rows, lanes, at = (
            self.rows[self.at[rank]][rank],
            self.lanes[self.at[rank]][rank],
            self.positions[rank, slot],
        )
        window = self._call(rank)[0].window
        for _ in range(self.random.choice((1, 2, 5, 50))):
            if at.row < lanes[at.lane][1]:
                try:
                    passed = self._execute(rank, slot, at, rows[at.row])
                except AssertionError as error:
                    raise AssertionError(f"{self._where(rank, slot)}: {error}") from error
                if not passed:
                    return
                at.row += 1
                continue
            self._end_lane(rank, slot, at)
            lane = at.lane + window
            if lane >= len(lanes):
                at.row = -1
                if all(self.positions[rank, other].row < 0 for other in range(window)):
                    self._end(rank)
                return
            at = self.positions[rank, slot] = Position(lane, lanes[lane][0])
        self.ready.append((rank, slot))

    def _end_lane(self, rank: int, slot: int, at: Position) -> None:
        assert not at.requests, (
            f"rank {rank}: lane {at.lane} ends and did not wait for requests {list(at.requests)}"
        )
        unused = [slot for slot, message in at.messages.items() if not message.used]
        assert not unused, (
            f"rank {rank}: lane {at.lane} ends and did not acknowledge messages in slots {unused}"
        )

    def _execute(self, rank: int, slot: int, at: Position, row: list[int]) -> bool:
        code = row[f.CODE]
        if code == Code.WAIT:
            request = at.requests.get(row[f.REQUEST])
            if request is None:  # the message is empty, and nobody sent it
                return True
            if not request.done:
                request.waiting = rank, slot
                return False
            request.counter[request.area.span] -= 1
            del at.requests[row[f.REQUEST]]
        elif code in (Code.COPY, Code.REDUCE):
            self._operate(rank, self._operands(rank, at, row))
        elif code in (Code.SEND, Code.RECV):
            if row[f.NBYTES] == 0:
                return True
            area = self._area(rank, at, row[f.BUFFER], row[f.DISPL], row[f.NBYTES])
            self._message(rank, slot, at, Code(code), row[f.REQUEST], row[f.PEER], area)
        elif not self._share(rank, slot, at, row):
            self.parked[rank].append((rank, slot))
            return False
        return True

    def _share(self, rank: int, slot: int, at: Position, row: list[int]) -> bool:
        """The operations on shared memory; False while one has to wait."""
        code, peer, buffer, nbytes = row[f.CODE], row[f.LOCAL_PEER], row[f.BUFFER], row[f.NBYTES]
        memory, slot = self._call(rank)[1], (slot + self.at[rank]) % STAGING_SLOTS
        ranks = self.node.ranks[rank]
        in_place = bool(row[f.IN_PLACE]) and memory.shared[buffer]
        if code == Code.RESERVE:
            assert at.staging is None, "reserves twice"
            at.staging = self.node.reserve(rank, slot, self._call(rank)[0].staging_nbytes)
            return at.staging is not None
        if code == Code.STAGE:
            operands = self._operands(rank, at, row)
            if not in_place:
                self._operate(rank, operands)
            return True
        assert ranks[peer] != rank, "a message to itself"
        if code == Code.POST:
            here = nbytes <= INLINE_NBYTES or in_place
            source = (buffer, row[f.DISPL]) if here else (STAGING, row[f.STAGED_DISPL])
            return self._moved(
                ranks[peer],
                self.node.rings[rank, ranks[peer], slot].post(self._area(rank, at, *source, nbytes)),
            )
        if code == Code.DRAIN:
            return not memory.shared[buffer] or not self.node.rings[rank, ranks[peer], slot].unread()
        return self._receive(ranks[peer], at, self.node.rings[ranks[peer], rank, slot], row)

    def _receive(self, peer: int, at: Position, ring: Ring, row: list[int]) -> bool:
        """AWAIT and ACK."""
        slot = row[f.MESSAGE_SLOT]
        if row[f.CODE] == Code.ACK:
            ring.acknowledge()
            return self._moved(peer, True)
        assert slot not in at.messages or at.messages[slot].used, f"slot {slot} is in use"
        message = ring.take(row[f.NBYTES])
        if message is not None:
            at.messages[slot] = message
        return message is not None

    def _moved(self, rank: int, moved: bool) -> bool:
        """Note that what a rank waits for in shared memory may have come."""
        if moved:
            self.ready += self.parked.pop(rank, [])
        return moved

    def _operands(self, rank: int, at: Position, row: list[int]) -> Operands:
        """Destinations and sources of a COPY, REDUCE or STAGE; of blocks that vary they may be empty."""
        writes, reads = operands_of(self._call(rank)[0], row)
        size, reduces = self.calls[self.at[rank]].operator.itemsize, row[f.CODE] == Code.REDUCE
        nbytes = row[f.COUNT] * size if reduces else row[f.NBYTES]
        found = Operands(
            *([self._area(rank, at, *where, nbytes) for where in side] for side in (writes, reads))
        )
        assert reads, "a reduction of nothing"
        for one, other in combinations(found.writes, 2):
            assert one.apart(other), "writes the same bytes twice"
        for one, other in combinations(found.writes + found.reads, 2):
            overlap = "operands overlap partly" if reduces else "memcpy of overlapping memory"
            assert one.apart(other) or (reduces and one == other), overlap
        assert not reduces or all(displ % size == 0 for _, displ in writes + reads), (
            "an operand lies across elements"
        )
        return found

    def _operate(self, rank: int, operands: Operands) -> None:
        result = fold(
            self.calls[self.at[rank]].operator.combine, [area.read(rank) for area in operands.reads]
        ).copy()
        for area in operands.writes:
            area.write(result, rank)

    def _message(
        self, rank: int, slot: int, at: Position, code: Code, index: int, peer: int, area: Area
    ) -> None:
        assert index not in at.requests, f"request {index} is in use"
        assert 0 <= index < self._call(rank)[0].nrequests, f"request {index} is not among those of the lane"
        assert peer not in self.node.ranks[rank], f"an MPI message to rank {peer} of the same node"
        area.check_free(to_write=code == Code.RECV)
        request = at.requests[index] = _Request(
            area, area.memory.written_by if code == Code.RECV else area.memory.read_by
        )
        link = self.links[(peer, rank, slot) if code == Code.RECV else (rank, peer, slot)]
        if code == Code.RECV:
            area.memory.arena[area.span] ^= 0x5A
        elif area.nbytes <= self.setting.eager_nbytes:
            request.data, request.done = area.memory.arena[area.span].copy(), True
        link[code == Code.RECV].append(request)
        if all(link):
            self.moving.append((link[0].popleft(), link[1].popleft()))

    def _deliver(self, send: _Request, receive: _Request) -> None:
        self.messages += 1
        data = send.area.memory.arena[send.area.span] if send.data is None else send.data
        assert len(data) == receive.area.nbytes, "a message and its receive differ in size"
        receive.area.memory.arena[receive.area.span] = data
        for request in (send, receive):
            request.done = True
            if request.waiting:
                self.ready.append(request.waiting)
                request.waiting = None

    def _area(self, rank: int, at: Position, buffer: int, displ: int, nbytes: int) -> Area:
        program, memory = self._call(rank)
        if buffer >= MESSAGES:
            assert buffer - MESSAGES in at.messages, f"no message has come to slot {buffer - MESSAGES}"
            return at.messages[buffer - MESSAGES].use().part(displ, nbytes, "its message")
        if buffer == STAGING:
            assert at.staging is not None, "has no staging memory"
            return at.staging.part(displ, nbytes, "its staging memory")
        if buffer == SCRATCH:
            first = at.lane % program.window * program.scratch_nbytes
            return (
                memory.area(SCRATCH)
                .part(first, program.scratch_nbytes, "scratch")
                .part(displ, nbytes, "scratch of its lane")
            )
        return memory.area(buffer).part(
            self.lanes[self.at[rank]][rank][at.lane][2] + displ, nbytes, f"buffer {buffer}"
        )
