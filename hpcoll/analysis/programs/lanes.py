"""Fewer channels in place of several that depend on one another: what an engine, the simulator and the drawings can take.

Channels that depend on one another, on any rank, are a **part** of a program. A part becomes one channel of every rank, and small parts
share one. The old channels run once, in virtual time: a message takes a unit, everything else none. The steps of a rank in the order of
that run are the new channel. Every dependence points forward in the order, so no channel waits for what comes behind. What `verify_program`
has proven of the old channels is proven again of the new ones, by `hpcoll.analysis.verify`.

    channel 0   recv a from 1   send a to 2                  recv a from 1   recv b from 2   send a to 2   reduce b, a
    channel 1   recv b from 2   after 2 of 0   reduce b, a

All messages from one rank to another in a part have one link then. A message whose turn comes before its receiver wants it is landed in
scratch, as is the oldest one where a send finds no room. A chunk that is overwritten before its message has arrived is sent from a copy.
Scratch cells that hold chunks of different sizes in turn become several cells.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import groupby

from hpcoll.analysis.programs.lane import Lane, LaneMessage, LaneScratch
from hpcoll.analysis.programs.parts import program_parts
from hpcoll.base.budget import Budget
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import RING_SLOTS, Buffer, Chunk, Op, Schedule, Step, cells_of

# messages from one rank to another that may be under way: one less than the engine has slots for
_ROOM = RING_SLOTS - 1


class _ChannelInTime:
    """An old channel of a rank, and how far it is."""

    def __init__(self, lane: Lane, index: int) -> None:
        s = lane.schedule
        self.lane, self.index, self.link, self.steps = (
            lane,
            index,
            s.links[index] if s.links else index,
            s.channels[index],
        )
        self.pc = self.time = 0
        self.times: list[int] = []  # at which its steps were done
        self.followers: list[_ChannelInTime] = []


class _Run:
    """The channels of all ranks in virtual time."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes, self.now, self.pushed = lanes, 0, 0
        self.channels = [_ChannelInTime(lane, index) for lane in lanes for index in lane.channels]
        self.of = {(channel.lane.rank, channel.index): channel for channel in self.channels}
        self.heap: list[tuple[int, int, _ChannelInTime]] = []
        # messages that nobody has taken
        self.links: dict[tuple[int, int, int], deque[LaneMessage]] = defaultdict(deque)
        self.receivers: dict[tuple[int, int, int], _ChannelInTime] = {}
        # messages that are not received, in order
        self.pairs: dict[tuple[int, int], deque[LaneMessage]] = defaultdict(deque)
        # channels that find no room
        self.held: dict[tuple[int, int], list[_ChannelInTime]] = defaultdict(list)
        for channel in self.channels:
            self.push(channel, 0)

    def push(self, channel: _ChannelInTime, time: int) -> None:
        """Let a channel go on at a time."""
        self.pushed += 1
        heapq.heappush(self.heap, (time, self.pushed, channel))

    def run_channels(self) -> None:
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
            raise ScheduleError(
                "deadlock", rank=stuck.lane.rank, step=stuck.pc, op=str(stuck.steps[stuck.pc])
            )

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
        elif step.op is not Op.COPY or step.dst not in step.srcs:
            assert step.dst is not None
            srcs, kinds = tuple(map(lane.read, step.srcs)), lane.kinds_of(step.srcs[0])
            lane.add(step._replace(dst=lane.written(step.dst, kinds), srcs=srcs))
        return True

    def _send(self, channel: _ChannelInTime, step: Step) -> bool:
        pair, key = (channel.lane.rank, step.peer), (channel.lane.rank, step.peer, channel.link)
        if step.srcs[0].n and len(self.pairs[pair]) >= _ROOM:
            self.held[pair].append(channel)
            return False
        message = LaneMessage(channel.lane, step.peer, step.srcs[0], channel.time + 1)
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
            lane.add(
                Step(
                    Op.REDUCE,
                    -1,
                    dst,
                    (message.landed, *srcs) if step.received_first else (*srcs, message.landed),
                )
            )
        return True

    def _land(self, message: LaneMessage) -> None:
        """Receive a message into scratch."""
        lane = self.lanes[message.peer]
        message.landed = lane.scratch.take(message.kinds)
        lane.add(Step(Op.RECV, message.lane.rank, message.landed, ()))
        self._arrive(message)

    def _arrive(self, message: LaneMessage) -> None:
        message.arrived = True
        held = self.held.pop((message.lane.rank, message.peer), [])
        for channel in held:
            self.push(channel, self.now)


def in_lanes(
    schedules: Sequence[Schedule],
    meaning: Collective | None = None,
    *,
    in_place: bool = False,
    shared: bool = False,
) -> tuple[Schedule, ...]:
    """Return the schedules of a program that `verify_program` has proven, with one channel for each part.

    Args:
        schedules: The schedules in rank order.
        meaning: The meaning, whose ``aliases`` name the chunks that are one memory in place; None: that of the schedules' collective.
        in_place: The program is of calls in place. The new schedules are of any call: they copy INPUT first.
        shared: The program is of calls out of place, and maybe of others: chunks of INPUT are sent from copies where those of OUTPUT would
            overwrite them in place.

    Raises:
        ScheduleError: chunks of different sizes have one place in turn, so that the program cannot run on messages of any count.
    """
    meaning = meaning or schedules[0].meaning
    who = [(s.rank, s.nranks, s.root, s.nchunks) for s in schedules]
    aliases = [meaning.aliases(*numbers) if meaning.aliases else [] for numbers in who]
    pairs = [mine if in_place else [] for mine in aliases]
    same = [{(Buffer.OUTPUT, o): (Buffer.INPUT, i) for i, o in (mine if shared else ())} for mine in aliases]
    schedules = [_reading_input(s, {o: i for i, o in mine}) for s, mine in zip(schedules, pairs, strict=True)]
    budget = Budget()
    scratch = [LaneScratch(s, meaning, budget) for s in schedules]
    channels_of = program_parts(schedules, [[target for _, target in mine] for mine in pairs])
    parts = [
        [Lane(*given) for given in zip(schedules, part, scratch, same, strict=True)] for part in channels_of
    ]
    for s, mine, *lanes in zip(schedules, pairs, *parts, strict=True):
        _copy_in(s, mine, lanes)
    for lanes in parts:
        _Run(lanes).run_channels()
    channels = [
        [[step for steps in lane.steps for step in steps] for lane in lanes]
        for lanes in zip(*parts, strict=True)
    ]
    return tuple(slots.compact(s, c) for s, c, slots in zip(schedules, channels, scratch, strict=True))


def _reading_input(s: Schedule, sources: dict[int, int]) -> Schedule:
    """Return a schedule of a call in place that reads chunks as INPUT which no step writes; ``sources``: by chunk of OUTPUT."""
    written = {cell for steps in s.channels for step in steps if step.dst for cell in cells_of(step.dst)}

    def moved(run: Chunk) -> Chunk:
        untouched = run.buffer is Buffer.OUTPUT and all(
            cell[1] in sources and cell not in written for cell in cells_of(run)
        )
        return Chunk(Buffer.INPUT, sources[run.index], run.n) if untouched and run.n else run

    channels = tuple(
        tuple(step._replace(srcs=tuple(map(moved, step.srcs))) for step in steps) for steps in s.channels
    )
    return s._replace(channels=channels)


def _copy_in(s: Schedule, pairs: Iterable[tuple[int, int]], lanes: Sequence[Lane]) -> None:
    """Let each lane copy the chunks of INPUT that it uses as chunks of OUTPUT, and the first lane those that no other uses."""
    used = {
        cell: number
        for number, lane in enumerate(lanes)
        for c in lane.channels
        for step in s.channels[c]
        for cell in _touched(step)
    }
    for (number, _), run in groupby(
        pairs, key=lambda pair: (used.get((Buffer.OUTPUT, pair[1]), 0), pair[1] - pair[0])
    ):
        copied = list(run)
        source, target = (
            Chunk(buffer, copied[0][buffer], len(copied)) for buffer in (Buffer.INPUT, Buffer.OUTPUT)
        )
        lanes[number].add(Step(Op.COPY, -1, target, (source,)))


def _touched(step: Step) -> list[tuple[Buffer, int]]:
    return [cell for run in step.runs for cell in cells_of(run)]
