"""One channel for each rank, in place of several that depend on one another: what an engine, the simulator and the drawings can take.

The channels run once, in virtual time: a message takes a unit, everything else none. The steps of a rank in the order of that run are one
channel. Every dependence points forward in the order, so the channel never waits for what comes behind. What `verify_program` has proven
of the channels is proven again of the new schedules, by `hpcoll.analysis.verify`.

    channel 0   recv a from 1   send a to 2                  recv a from 1   recv b from 2   send a to 2   reduce b, a
    channel 1   recv b from 2   after 2 of 0   reduce b, a

All messages from one rank to another have one link then. A message whose turn comes before its receiver wants it is landed in scratch, as
is the oldest one where a send finds no room. A chunk that is overwritten before its message has arrived is sent from a copy. Scratch cells
that hold chunks of different sizes in turn become several cells.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import RING_SLOTS, Buffer, Chunk, Op, Schedule, Step

_ROOM = RING_SLOTS - 1  # messages from one rank to another that may be under way: one less than the engine has slots for
_Cell = tuple[Buffer, int]


class _Lane:
    """The new channel of a rank, and the new places of what was in its buffers.

    A **kind** numbers the size of a chunk: chunks of one kind have one size on all ranks. The **image** of a buffer is its copy in the new
    scratch memory; each difference between kinds and indices has an image of its own.
    """

    def __init__(self, schedule: Schedule, meaning: Collective, pairs: Sequence[tuple[int, int]]) -> None:
        self.schedule, self.rank, self.blocks = schedule, schedule.rank, meaning.blocks
        self.nkinds = schedule.nchunks // schedule.nranks if meaning.blocks else schedule.nchunks
        self.sizes = {Buffer.INPUT: meaning.ninputs(schedule.rank, schedule.nranks, schedule.root, schedule.nchunks)}
        self.sizes[Buffer.SCRATCH] = len(schedule.scratch)
        self.moved = {Buffer.SCRATCH}  # buffers that have images
        self.steps: list[list[Step]] = []  # a send may become two steps
        self.kinds: list[int] = []  # of the new scratch cells
        self.images: dict[tuple[Buffer, int], int] = {}  # buffer and difference -> first new cell
        self.places: dict[_Cell, _Cell] = {}  # of what has been written
        self.lent: dict[_Cell, list[_Message]] = defaultdict(list)
        if any(step.dst and step.dst.buffer is Buffer.INPUT for steps in schedule.channels for step in steps):
            self.moved.add(Buffer.INPUT)
            whole = Chunk(Buffer.INPUT, 0, self.sizes[Buffer.INPUT])
            self.add(Step(Op.COPY, -1, self.written(whole, self.kinds_of(whole)), (whole,)))
        self.pairs = pairs
        self._copy_pairs()

    def _copy_pairs(self) -> None:
        """Copy the chunks of INPUT that were one memory with chunks of OUTPUT there; both follow one another."""
        if self.pairs:
            (source, target), n = self.pairs[0], len(self.pairs)
            self.add(Step(Op.COPY, -1, Chunk(Buffer.OUTPUT, target, n), (self.read(Chunk(Buffer.INPUT, source, n)),)))

    def add(self, *steps: Step) -> None:
        """Append steps that stay together."""
        self.steps.append(list(steps))

    def scratch(self, kinds: Iterable[int]) -> Chunk:
        """Allocate new cells of these kinds."""
        first = len(self.kinds)
        self.kinds += kinds
        return Chunk(Buffer.SCRATCH, first, len(self.kinds) - first)

    def read(self, run: Chunk) -> Chunk:
        """Return the new place of a run of chunks."""
        cells = [self.places.get(cell, cell) for cell in _cells(run)]
        if any(one != (cells[0][0], cells[0][1] + i) for i, one in enumerate(cells)):
            raise self.error(f"{run} holds chunks of different sizes in turn")
        return Chunk(*cells[0], run.n)

    def written(self, run: Chunk, kinds: Sequence[int]) -> Chunk:
        """Return the new place for a run of chunks of these kinds; messages that are under way from there are sent from a copy."""
        found = Chunk(run.buffer, run.index, run.n)
        difference = (kinds[0] - run.index) % self.nkinds
        if any((kind - run.index - i) % self.nkinds != difference for i, kind in enumerate(kinds)):
            raise self.error(f"{run} holds chunks that do not follow one another")
        if run.buffer in self.moved:
            if (run.buffer, difference) not in self.images:
                image = self.scratch((index + difference) % self.nkinds for index in range(self.sizes[run.buffer]))
                self.images[run.buffer, difference] = image.index
            found = Chunk(Buffer.SCRATCH, self.images[run.buffer, difference] + run.index, run.n)
            self.places.update(zip(_cells(run), _cells(found)))
        elif difference:
            raise self.error(f"{run} holds another chunk for a while, whose size may differ")
        for cell in _cells(found):
            for message in self.lent.pop(cell, ()):
                message.copy()
        return found

    def kinds_of(self, run: Chunk) -> list[int]:
        """Return the kinds of the chunks that a run holds."""
        cells = (self.places.get(cell, cell) for cell in _cells(run))
        return [self.kinds[i] if buffer is Buffer.SCRATCH else i % self.nkinds for buffer, i in cells]

    def error(self, text: str) -> ScheduleError:
        """Return the error of a schedule that is right and cannot run."""
        return ScheduleError(f"{text}, so it cannot run on messages of any count", rank=self.rank)

    def finished(self) -> Schedule:
        """Return the new schedule; results that have an image are copied to OUTPUT."""
        if Buffer.INPUT in self.moved:
            self._copy_pairs()
        s = self.schedule
        extents = tuple((0, kind) if self.blocks and self.nkinds > 1 else kind for kind in self.kinds)
        return s._replace(channels=(tuple(step for steps in self.steps for step in steps),), scratch=extents, links=())


class _Message:
    """A message from one rank to another; of a signal nothing is sent."""

    def __init__(self, lane: _Lane, peer: int, src: Chunk, arrival: int) -> None:
        self.lane, self.peer, self.arrival = lane, peer, arrival
        self.kinds, self.number = lane.kinds_of(src), len(lane.steps)
        self.landed: Chunk | None = None
        self.arrived = not src.n
        if src.n:
            self.src = lane.read(src)
            lane.add(Step(Op.SEND, peer, None, (self.src,)))
            for cell in _cells(self.src):
                lane.lent[cell].append(self)

    def copy(self) -> None:
        """Let the sender send from a copy, unless the message has arrived."""
        if not self.arrived:
            copy = self.lane.scratch(self.kinds)
            self.lane.steps[self.number] = [Step(Op.COPY, -1, copy, (self.src,)), Step(Op.SEND, self.peer, None, (copy,))]
            self.arrived = True


class _ChannelInTime:
    """An old channel of a rank, and how far it is."""

    def __init__(self, lane: _Lane, index: int) -> None:
        s = lane.schedule
        self.lane, self.index, self.link, self.steps = lane, index, s.links[index] if s.links else index, s.channels[index]
        self.pc = self.time = 0
        self.times: list[int] = []  # at which its steps were done
        self.followers: list[_ChannelInTime] = []


class _Run:
    """The channels of all ranks in virtual time."""

    def __init__(self, lanes: Sequence[_Lane]) -> None:
        self.lanes, self.now, self.pushed = lanes, 0, 0
        self.channels = [_ChannelInTime(lane, index) for lane in lanes for index in range(len(lane.schedule.channels))]
        self.of = {(channel.lane.rank, channel.index): channel for channel in self.channels}
        self.heap: list[tuple[int, int, _ChannelInTime]] = []
        self.links: dict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)  # messages that nobody has taken
        self.receivers: dict[tuple[int, int, int], _ChannelInTime] = {}
        self.pairs: dict[tuple[int, int], deque[_Message]] = defaultdict(deque)  # messages that are not received, in order
        self.held: dict[tuple[int, int], list[_ChannelInTime]] = defaultdict(list)  # channels that find no room
        for channel in self.channels:
            self.push(channel, 0)

    def push(self, channel: _ChannelInTime, time: int) -> None:
        """Let a channel go on at a time."""
        self.pushed += 1
        heapq.heappush(self.heap, (time, self.pushed, channel))

    def run(self) -> None:
        """Run all channels to their ends."""
        while self.heap or self._make_room():
            self.now, _, channel = heapq.heappop(self.heap)
            channel.time, start = max(channel.time, self.now), channel.pc
            while channel.pc < len(channel.steps) and self._execute(channel, channel.steps[channel.pc]):
                channel.pc += 1
                channel.times.append(channel.time)
            if channel.pc > start:
                for follower in channel.followers:
                    self.push(follower, self.now)
                channel.followers.clear()
        stuck = next((channel for channel in self.channels if channel.pc < len(channel.steps)), None)
        if stuck:
            raise ScheduleError("deadlock", rank=stuck.lane.rank, step=stuck.pc, op=str(stuck.steps[stuck.pc]))

    def _make_room(self) -> bool:
        """Land the oldest message of a pair of ranks where a send waits for room; return False where none does."""
        for pair, channels in self.held.items():
            if channels:
                self._land(self.pairs[pair].popleft())
                return True
        return False

    def _execute(self, channel: _ChannelInTime, step: Step) -> bool:
        """Write the step of a channel; return False, and leave it for later, if it must wait."""
        lane = channel.lane
        if step.op is Op.AFTER:
            other = self.of[lane.rank, step.after[0]]
            if other.pc < step.after[1]:
                other.followers.append(channel)
                return False
            channel.time = max(channel.time, other.times[step.after[1] - 1])
        elif step.op is Op.SEND:
            return self._send(channel, step)
        elif step.op in (Op.RECV, Op.RECV_REDUCE):
            return self._receive(channel, step)
        else:
            assert step.dst is not None
            srcs, kinds = tuple(map(lane.read, step.srcs)), lane.kinds_of(step.srcs[0])
            lane.add(step._replace(dst=lane.written(step.dst, kinds), srcs=srcs))
        return True

    def _send(self, channel: _ChannelInTime, step: Step) -> bool:
        pair, key = (channel.lane.rank, step.peer), (channel.lane.rank, step.peer, channel.link)
        if step.srcs[0].n and len(self.pairs[pair]) >= _ROOM:
            self.held[pair].append(channel)
            return False
        message = _Message(channel.lane, step.peer, step.srcs[0], channel.time + 1)
        self.links[key].append(message)
        if step.srcs[0].n:
            self.pairs[pair].append(message)
        if key in self.receivers:
            self.push(self.receivers.pop(key), message.arrival)
        return True

    def _receive(self, channel: _ChannelInTime, step: Step) -> bool:
        lane, key = channel.lane, (step.peer, channel.lane.rank, channel.link)
        if not self.links[key]:
            self.receivers[key] = channel
            return False
        message = self.links[key][0]
        if message.arrival > channel.time:
            self.push(channel, message.arrival)
            return False
        self.links[key].popleft()
        if not message.kinds:
            return True
        assert step.dst is not None
        pair = self.pairs[key[:2]]
        if message.landed is None:
            while pair[0] is not message:
                self._land(pair.popleft())
            self._arrive(pair.popleft())
        srcs = tuple(map(lane.read, step.srcs))
        dst = lane.written(step.dst, message.kinds)
        if message.landed is None:
            lane.add(step._replace(dst=dst, srcs=srcs, put=False))
        elif step.op is Op.RECV:
            lane.add(Step(Op.COPY, -1, dst, (message.landed,)))
        else:
            lane.add(Step(Op.REDUCE, -1, dst, (message.landed, *srcs) if step.received_first else (*srcs, message.landed)))
        return True

    def _land(self, message: _Message) -> None:
        """Receive a message into scratch."""
        lane = self.lanes[message.peer]
        message.landed = lane.scratch(message.kinds)
        lane.add(Step(Op.RECV, message.lane.rank, message.landed, ()))
        self._arrive(message)

    def _arrive(self, message: _Message) -> None:
        message.arrived = True
        held = self.held.pop((message.lane.rank, message.peer), [])
        for channel in held:
            self.push(channel, self.now)


def _cells(run: Chunk) -> list[_Cell]:
    return [(run.buffer, index) for index in range(run.index, run.index + run.n)]


def one_lane(schedules: Sequence[Schedule], meaning: Collective | None = None, *, in_place: bool = False) -> tuple[Schedule, ...]:
    """Return the schedules of a program that `verify_program` has proven with one channel for each rank.

    Args:
        schedules: The schedules in rank order.
        meaning: The meaning, whose ``aliases`` name the chunks that are one memory in place; None: that of the schedules' collective.
        in_place: The program is of calls in place. The new schedules are of any call: they copy INPUT first.

    Raises:
        ScheduleError: chunks of different sizes have one place in turn, so that the program cannot run on messages of any count.
    """
    meaning = meaning or schedules[0].meaning
    lanes = []
    for s in schedules:
        pairs = meaning.aliases(s.rank, s.nranks, s.root, s.nchunks) if in_place and meaning.aliases else ()
        lanes.append(_Lane(s, meaning, pairs))
    _Run(lanes).run()
    return tuple(lane.finished() for lane in lanes)
