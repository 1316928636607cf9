"""The waits of thread blocks of one-sided programs (`hpcoll.formats.mscclpp.one_sided`): signals, semaphores, barriers and packets."""

from collections import defaultdict
from typing import NamedTuple, NoReturn

from hpcoll.base.budget import TURNS, WAITS, Budget
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.formats.mscclpp.channels import Action, ChannelMark, Direction, Local, MemoryRun, OpenChannel

_Name = Direction | Local | None


class _OpenWait(NamedTuple):
    """The wait of a channel, and the marks that it waits for, as far as they are known."""

    action: Action
    channel: OpenChannel
    marks: list[ChannelMark]


class _Done(NamedTuple):
    """A signal or a release; ``early``: its thread block has touched no memory before."""

    action: Action
    mark: ChannelMark
    early: bool


class Waits:
    """All waits of a program, and what they wait for."""

    def __init__(self, path: str, budget: Budget) -> None:
        """``path``: the file, for errors; ``budget``: what is left for it."""
        self.path, self._budget = path, budget
        self._done: dict[_Name, list[_Done]] = defaultdict(list)
        self._waits: dict[_Name, list[_OpenWait]] = defaultdict(list)
        self._arrived: dict[_Name, dict[OpenChannel, list[tuple[ChannelMark, _OpenWait]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._packets: dict[tuple[int, int], list[ChannelMark]] = defaultdict(list)
        self._reads: list[_OpenWait] = []
        self._owners: dict[tuple[str, _Name], OpenChannel] = {}

    def own(self, channel: OpenChannel, what: str, name: _Name, action: Action) -> None:
        """Let one thread block alone do something: several would do it in an order that nobody knows."""
        if self._owners.setdefault((what, name), channel) is not channel:
            raise ArgumentError(
                f"{self.path}, {action.place}: expected one thread block to {what} {name}, got several"
            )

    def done(self, action: Action, mark: ChannelMark, early: bool = False) -> None:
        """Take down a signal or a release."""
        self._done[action.name].append(_Done(action, mark, early))

    def wait(self, channel: OpenChannel, action: Action) -> None:
        """Take down a wait or an acquire, which the channel makes here."""
        self.own(channel, action.verb, action.name, action)
        self._waits[action.name].append(self._waiting(channel, action))

    def arrive(self, channel: OpenChannel, action: Action) -> None:
        """Take down that a thread block is at a barrier, and waits here."""
        mark = channel.mark()
        self._arrived[action.name][channel].append((mark, self._waiting(channel, action)))

    def read(self, channel: OpenChannel, action: Action) -> None:
        """Take down that a thread block waits here for packets."""
        self._reads.append(self._waiting(channel, action))

    def write(self, run: MemoryRun, mark: ChannelMark) -> None:
        """Take down a write of packets."""
        for cell in range(run.chunk.index, run.chunk.index + run.chunk.n):
            self._packets[run.gpu, cell].append(mark)

    def resolve(self) -> None:
        """Find what every wait waits for; ScheduleError: there is none, too much, or it is not known which."""
        for name in list(self._waits | self._done):
            self._match(name)
        for name, arrived in self._arrived.items():
            self._meet(name, arrived)
        for waiting in self._reads:
            for src in waiting.action.srcs:
                for cell in range(src.chunk.index, src.chunk.index + src.chunk.n) if src.packets else ():
                    self._see(waiting, src.gpu, cell)

    def _waiting(self, channel: OpenChannel, action: Action) -> _OpenWait:
        waiting = _OpenWait(action, channel, [])
        channel.wait(waiting.marks, action.place)
        return waiting

    def _order(self, waiting: _OpenWait, marks: list[ChannelMark]) -> None:
        """Let a wait wait for marks."""
        self._budget.spend(len(marks), WAITS)
        waiting.marks.extend(marks)

    def _match(self, name: _Name) -> None:
        """Match signals and waits, or releases and acquires, which must be as many."""
        waits, done = self._waits[name], self._done[name]
        counts = f"{name} has {len(done)} signals or releases and {len(waits)} waits for them"
        if len(waits) > len(done):
            self._refuse(waits[len(done)].action, f"deadlock: {counts}")
        if len(done) > len(waits):
            self._refuse(done[len(waits)].action, f"{counts}: the next call would find one that is left")
        if isinstance(name, Local):
            self._acquire(waits, done)
            return
        for waiting, signal in zip(waits, done):
            if signal.early or not (signal.action.relaxed or waiting.action.relaxed):
                waiting.marks.append(signal.mark)

    def _acquire(self, waits: list[_OpenWait], done: list[_Done]) -> None:
        """Let each acquire wait for the releases of each thread block that must have been, however many others there have been."""
        released: dict[OpenChannel, list[ChannelMark]] = defaultdict(list)
        for release in done:
            released[release.mark.channel].append(release.mark)
        for number, waiting in enumerate(waits, 1):
            self._budget.spend(len(released), TURNS)
            for marks in released.values():
                least = number - waiting.action.count - (len(done) - len(marks))
                if least > 0:
                    self._order(waiting, [marks[least - 1]])

    def _meet(self, name: _Name, arrived: dict[OpenChannel, list[tuple[ChannelMark, _OpenWait]]]) -> None:
        """Let each thread block at a barrier wait for the others."""
        times = {channel: len(meetings) for channel, meetings in arrived.items()}
        most = max(times.values())
        for channel, meetings in arrived.items():
            for number, (_, waiting) in enumerate(meetings):
                if waiting.action.count != len(arrived) or times[channel] != most:
                    expected = f"{waiting.action.count} thread blocks as often as one another"
                    self._refuse(
                        waiting.action,
                        f"deadlock: {name} is for {expected}, and {len(arrived)} come {sorted(times.values())} times",
                    )
                self._budget.spend(len(arrived), TURNS)
                marks = [
                    others[number][0]
                    for other, others in arrived.items()
                    if other is not channel and number < times[other]
                ]
                self._order(waiting, marks)

    def _see(self, waiting: _OpenWait, gpu: int, cell: int) -> None:
        """Let a read of packets wait for their write; were there two, nobody would know which the flag speaks of."""
        written = self._packets.get((gpu, cell), [])
        where = f"it waits for the packets of scratch[{cell}] of gpu {gpu}, which are written {len(written)} times"
        if len(written) != 1:
            self._refuse(waiting.action, f"{'race' if written else 'deadlock'}: {where}")
        self._order(waiting, written)

    def _refuse(self, action: Action, text: str) -> NoReturn:
        raise ScheduleError(f"{self.path}, {action.place}: {text}")
