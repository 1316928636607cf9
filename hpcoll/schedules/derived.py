"""Costs that are derived from the schedules of all ranks, for rows without formulas: all messages, one at a time on each rank's port.

A rank sends one message at a time, and receives one at a time; a message takes as long as it has chunks, and work within a rank no time.
Nothing is proven here: of schedules that are wrong, the part counts that runs.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from hpcoll.schedules.ir import Op, Schedule

_EXACT = 16  # chunks up to which rows that take any number are looked at; beyond, costs grow as they do from half as many


class Costs(NamedTuple):
    """The costs of a row, as of `hpcoll.schedules.row.Algorithm`; bytes are fractions of m."""

    rounds: float
    critical: float
    sent: float
    received: float
    largest: float
    messages: float
    staged: float


class _Walk:
    """A channel of a rank: its next step, its time, the length of its chain of messages, and both after each step."""

    def __init__(self, schedule: Schedule, index: int) -> None:
        self.rank, self.steps = schedule.rank, schedule.channels[index]
        self.link = schedule.links[index] if schedule.links else index
        self.pc = self.time = self.depth = 0
        self.after: list[tuple[int, int]] = [(0, 0)]


class _Ports:
    """All ranks, run in the order of time until no channel can move."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self.channels = [[_Walk(s, index) for index in range(len(s.channels))] for s in schedules]
        # end and depth of each message
        self.links: dict[tuple[int, int, int], deque[tuple[int, int]]] = defaultdict(deque)
        # by link, or by the channel whose steps they wait for
        self.waiting: dict[Any, list[_Walk]] = defaultdict(list)
        self.sending, self.receiving = [0] * len(schedules), [0] * len(schedules)  # until when a port is busy
        # chunks of each message
        self.sent, self.received = (
            [list[int]() for _ in schedules],
            [list[int]() for _ in schedules],
        )
        self.events: list[
            tuple[int, int, Any]
        ] = []  # time, number, and a channel that goes on, or a message that arrives
        self.numbers = count()

    def run_channels(self) -> None:
        """Run every channel as far as it goes."""
        for channels in self.channels:
            for channel in channels:
                self._at(0, channel)
        while self.events:
            time, _, event = heappop(self.events)
            if isinstance(event, _Walk):
                self._go_on(event, time)
            else:
                self._arrive(time, *event)

    def _at(self, time: int, event: Any) -> None:
        heappush(self.events, (time, next(self.numbers), event))

    def _wake(self, key: Any, time: int) -> None:
        for channel in self.waiting.pop(key, ()):
            self._at(max(channel.time, time), channel)

    def _arrive(self, time: int, link: tuple[int, int, int], n: int, depth: int) -> None:
        """Let a message through the port of its receiver."""
        rank = link[1]
        self.receiving[rank] = end = max(time, self.receiving[rank] + n)
        self.links[link].append((end, depth))
        self.received[rank].append(n)
        self._wake(link, end)

    def _go_on(self, channel: _Walk, now: int) -> None:
        while channel.pc < len(channel.steps) and self._step(channel):
            channel.pc += 1
            channel.after.append((channel.time, channel.depth))
            self._wake(channel, channel.time)
            if channel.time > now:
                self._at(channel.time, channel)
                return

    def _step(self, channel: _Walk) -> bool:
        """Run the next step; return False where it must wait."""
        step, rank, came = channel.steps[channel.pc], channel.rank, (channel.time, channel.depth)
        if step.op == Op.SEND:
            n = step.srcs[0].n
            self.sending[rank] = end = max(channel.time, self.sending[rank]) + n
            self._at(end, ((rank, step.peer, channel.link), n, channel.depth + 1))
            self.sent[rank].append(n)
        elif step.op in (Op.RECV, Op.RECV_REDUCE):
            link = step.peer, rank, channel.link
            if not self.links[link]:
                self.waiting[link].append(channel)
                return False
            came = self.links[link].popleft()
        elif step.op == Op.AFTER:
            other = self.channels[rank][step.after[0]]
            if other.pc < step.after[1]:
                self.waiting[other].append(channel)
                return False
            came = other.after[step.after[1]]
        channel.time, channel.depth = max(channel.time, came[0]), max(channel.depth, came[1])
        return True

    def costs(self, m: int) -> Costs:
        """Return the costs of the run, of a message of ``m`` chunks."""
        channels = [channel for channels in self.channels for channel in channels]
        every = [*self.sent, *self.received]
        sent, received = (max(map(sum, side), default=0) / m for side in (self.sent, self.received))
        return Costs(
            max(channel.depth for channel in channels),
            max([channel.time for channel in channels] + self.sending) / m,
            sent,
            received,
            max([0, *(n for one in every for n in one)]) / m,
            max(map(len, every)),
            sent,
        )


def costs_of(schedules: Sequence[Schedule]) -> Costs:
    """Return the costs of the schedules of all ranks."""
    machine = _Ports(schedules)
    machine.run_channels()
    return machine.costs(schedules[0].nchunks)


@lru_cache(maxsize=1024)
def derived(
    write: Callable[..., Schedule], row: Any, nranks: int, nchunks: int, nodes: tuple[int, ...]
) -> Costs:
    """Return the costs of a row; ``write`` and the other arguments are those of `hpcoll.schedules.row.schedule`."""
    if row.chunked and nchunks > _EXACT:
        low, high = (derived(write, row, nranks, n, nodes) for n in (_EXACT // 2, _EXACT))
        return Costs(*(_beyond(name, a, b, nchunks) for name, a, b in zip(Costs._fields, low, high)))
    return costs_of([write(row, nranks, rank, 0, nchunks, nodes) for rank in range(nranks)])


def _beyond(name: str, low: float, high: float, n: int) -> float:
    """Return a cost with ``n`` chunks, from those with half of `_EXACT` and with `_EXACT`: in chunks or messages it grows evenly."""
    unit = name in ("rounds", "messages")
    low, high = (low, high) if unit else (low * (_EXACT // 2), high * _EXACT)
    grown = high + (high - low) / (_EXACT // 2) * (n - _EXACT)
    return grown if unit else grown / n
