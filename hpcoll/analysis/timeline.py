"""How long a schedule takes on a simple network, and what each rank does when. No MPI, no data.

The network is LogGP with one send port and one receive port per rank, which work at the same time. A lone message of
``b`` bytes arrives ``alpha + beta b`` after it was sent and keeps both ports busy for ``overhead + beta b``, so
``overhead = alpha`` is Hockney's model. Sends queue for the send port and block nobody; receives block their lane;
a step that overwrites a chunk waits until the port has taken what is sent from it. One processor per rank reduces.
Refuses to know eager limits, nodes and unequal chunks: every chunk is ``nbytes / nchunks`` long.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.schedules.ir import Chunk, Op, Schedule, Step


@dataclass(frozen=True)
class Network:
    """Parameters of the network, all ``>= 0``.

    Attributes:
        alpha: Latency of a message, in seconds.
        overhead: Part of ``alpha`` during which either port is busy with the message, in seconds.
        beta: Seconds per byte sent.
        gamma: Seconds per byte reduced.
    """

    alpha: float = 1.0
    overhead: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.overhead <= self.alpha or min(self.beta, self.gamma) < 0:
            raise ArgumentError(f"network needs 0 <= overhead <= alpha, beta >= 0 and gamma >= 0, got {self}")


ROUNDS = Network(alpha=1.0, overhead=1.0)  # every message takes one unit of time: time is counted in rounds


class Event(NamedTuple):
    """One thing that one rank does.

    Attributes:
        start, end: In seconds; of a transfer: when this rank's port is busy with it.
        op: SEND, RECV or RECV_REDUCE (port), REDUCE (processor; also the second half of a RECV_REDUCE) or COPY (no time).
        step: The step it belongs to.
        channel: The channel that the step is in.
    """

    start: float
    end: float
    op: Op
    step: Step
    channel: int

    @property
    def peer(self) -> int:
        """Other end of a transfer; -1 for local work."""
        return self.step.peer

    @property
    def chunk(self) -> Chunk:
        """Chunks sent, or written."""
        return self.step.srcs[0] if self.step.dst is None else self.step.dst


class Timeline(NamedTuple):
    """What all ranks do: ``events[rank]`` in order of their start; ``total`` is when the last one ends, in seconds."""

    events: list[list[Event]]
    total: float


class _Lane:
    """One channel of one rank, and where it stands."""

    __slots__ = ("channel", "pc", "rank", "steps")

    def __init__(self, rank: int, channel: int, steps: Sequence[Step]) -> None:
        self.rank, self.channel, self.steps, self.pc = rank, channel, steps, 0


_Key = tuple[int, int, int]  # sender, receiver, channel


class _Clock:
    """The network in motion. Things happen in order of time and, at one time, in the order they were caused."""

    def __init__(self, schedules: Sequence[Schedule], nbytes: float, network: Network) -> None:
        nranks = len(schedules)
        self.network, self.chunk_nbytes = network, nbytes / schedules[0].nchunks
        self.events: list[list[Event]] = [[] for _ in schedules]
        self.send_port, self.recv_port, self.processor = [0.0] * nranks, [0.0] * nranks, [0.0] * nranks
        self.in_use: list[dict[tuple[int, int], float]] = [{} for _ in schedules]  # (buffer, index) -> free from then on
        self.lanes = [_Lane(s.rank, c, steps) for s in schedules for c, steps in enumerate(s.channels)]
        self.arrived: dict[_Key, deque[tuple[float, float]]] = defaultdict(deque)  # when the receive port had each message
        self.waiting: dict[_Key, _Lane] = {}
        # (time, order, what): a lane that goes on, or a message (key, bytes) whose first byte reaches the receiver
        self.agenda: list[tuple[float, int, _Lane | tuple[_Key, float]]] = [(0.0, i, lane) for i, lane in enumerate(self.lanes)]
        self.order = len(self.lanes)

    def at(self, time: float, what: _Lane | tuple[_Key, float]) -> None:
        heapq.heappush(self.agenda, (time, self.order, what))
        self.order += 1

    def run(self) -> None:
        """Play until nothing is left to happen."""
        while self.agenda:
            now, _, what = heapq.heappop(self.agenda)
            if isinstance(what, _Lane):
                self.advance(what, now)
            else:
                self.deliver(*what, now)
        lane = next((lane for lane in self.lanes if lane.pc < len(lane.steps)), None)
        if lane:
            raise ScheduleError("waits for a message that nobody sends", rank=lane.rank, step=lane.pc, op=str(lane.steps[lane.pc]))

    def advance(self, lane: _Lane, now: float) -> None:
        """Run a lane's steps until one takes time or waits."""
        while lane.pc < len(lane.steps):
            step, end = lane.steps[lane.pc], now
            if step.op == Op.SEND:
                self.send(lane, step, now)
            else:
                ready = self.ready(lane, step)
                if ready is None:
                    self.waiting[step.peer, lane.rank, lane.channel] = lane
                    return
                if ready > now:
                    self.at(ready, lane)
                    return
                end = self.execute(lane, step, now)
            lane.pc += 1
            if end > now:
                self.at(end, lane)
                return

    def send(self, lane: _Lane, step: Step, now: float) -> None:
        rank, net, nbytes = lane.rank, self.network, step.srcs[0].n * self.chunk_nbytes
        start = max(now, self.send_port[rank])
        end = self.send_port[rank] = start + net.overhead + net.beta * nbytes
        for cell in _cells(step.srcs):
            self.in_use[rank][cell] = end
        self.events[rank].append(Event(start, end, Op.SEND, step, lane.channel))
        self.at(start + net.alpha - net.overhead, ((rank, step.peer, lane.channel), nbytes))

    def deliver(self, key: _Key, nbytes: float, now: float) -> None:
        receiver, net = key[1], self.network
        start = max(now, self.recv_port[receiver])
        end = self.recv_port[receiver] = start + net.overhead + net.beta * nbytes
        self.arrived[key].append((start, end))
        if key in self.waiting:
            self.at(end, self.waiting.pop(key))

    def ready(self, lane: _Lane, step: Step) -> float | None:
        """When the step's message has arrived and nothing that it writes is being sent any more; None: not known yet."""
        time, in_use = 0.0, self.in_use[lane.rank]
        if step.peer >= 0:
            arrived = self.arrived[step.peer, lane.rank, lane.channel]
            if not arrived:
                return None
            time = arrived[0][1]
        return max(time, max((in_use.get(cell, 0.0) for cell in _cells((step.dst,))), default=0.0) if in_use else 0.0)

    def execute(self, lane: _Lane, step: Step, now: float) -> float:
        """When a step that is ready ends."""
        events, channel = self.events[lane.rank], lane.channel
        if step.peer >= 0:
            start, end = self.arrived[step.peer, lane.rank, channel].popleft()
            events.append(Event(start, end, step.op, step, channel))
        if step.op == Op.COPY:
            events.append(Event(now, now, step.op, step, channel))
        if step.op in (Op.RECV, Op.COPY):
            return now
        folds = len(step.srcs) - (step.op == Op.REDUCE)
        start = max(now, self.processor[lane.rank])
        end = self.processor[lane.rank] = start + self.network.gamma * folds * step.srcs[0].n * self.chunk_nbytes
        if end > start or step.op == Op.REDUCE:
            events.append(Event(start, end, Op.REDUCE, step, channel))
        return end


def _cells(chunks: Iterable[Chunk | None]) -> Iterable[tuple[int, int]]:
    return ((chunk.buffer, index) for chunk in chunks if chunk for index in range(chunk.index, chunk.index + chunk.n))


def simulate(schedules: Sequence[Schedule], nbytes: float, network: Network) -> Timeline:
    """Play one segment of a collective.

    Args:
        schedules: One per rank, in rank order.
        nbytes: Bytes of the segment; for block collectives of all ranks' blocks together, as in the catalogue.
        network: What messages cost.
    Raises:
        ScheduleError: a receive waits for a message that nobody sends.
    """
    clock = _Clock(schedules, nbytes, network)
    clock.run()
    events = [sorted(events, key=lambda event: (event.start, event.end)) for events in clock.events]
    return Timeline(events, max((event.end for rank in events for event in rank), default=0.0))
