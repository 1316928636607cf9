"""Verification of programs whose channels depend on one another, as thread blocks of other formats do; `hpcoll.analysis.verify` runs them.

A send copies its chunks at once into a buffer of so many messages, and an AFTER waits for steps of another channel of its rank. Nothing
else orders channels, so two of them may touch a chunk, and one write it, only where AFTER steps or messages put one before the other.

**Vector clocks** say what does. The clock of a channel has, for every channel of all ranks, the number of its steps that have happened
before. A message and an AFTER carry the clock of the step that they come from. An access is ordered behind an earlier one where the clock
has that step (Mattern 1989; reads and writes of a cell as in FastTrack, Flanagan and Freund 2009). Steps wait for nothing but messages and
steps, so the same pairs are ordered in every run, and one run finds every race.

    channel 0   recv a   recv_reduce a                       (2, 0)
                                  \\
    channel 1                      after 2 steps of 0   send a   (2, 2): ordered; without the AFTER (0, 1): a race
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from hpcoll.analysis.symbolic_values import RankMemory, Values
from hpcoll.analysis.verify import ChannelRun, Link, Machine, Proof
from hpcoll.base.budget import CLOCKS, TURNS, Budget
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import RING_SLOTS, Buffer, Chunk, Op, Schedule, Step

Where = Callable[[int, int, int], str]  # (rank, channel, step) -> the place in a file
_Access = tuple[int, int]  # number of a channel, and how many of its steps there were with that access


class _SharedMemory(RankMemory):
    """A rank's memory whose cells know who wrote them last and who has read them since."""

    def __init__(
        self, schedule: Schedule, collective: Collective, values: Values, in_place: bool, uniform: bool
    ) -> None:
        super().__init__(schedule, collective, values, in_place, uniform)
        self.shared = False  # by channels that are not independent
        self.writers: list[_Access | None] = [None] * len(self.values)
        self.readers: list[dict[int, int]] = [{} for _ in self.values]

    def span(self, chunk: Chunk, channel: int, write: bool = False) -> slice:
        """Return the cells of a run of chunks; of a signal none."""
        return super().span(chunk, channel, write) if chunk.n else slice(0, 0)


class _Program(Machine):
    """The channels of all ranks, with their clocks."""

    memory: ClassVar[type[RankMemory]] = _SharedMemory

    def __init__(
        self, schedules: Sequence[Schedule], collective: Collective, in_place: bool, slots: int, where: Where
    ) -> None:
        super().__init__(schedules, collective, in_place, uniform=True, slots=slots)
        self.where = where
        self.numbers = {channel: number for number, channel in enumerate(self.channels)}
        self.of = {(channel.rank.rank, channel.index): channel for channel in self.channels}
        for channel in self.channels:
            channel.used_at = list(range(len(channel.steps)))
        self.budget = Budget()
        kind = np.dtype(
            np.uint16 if max(len(channel.steps) for channel in self.channels) < 1 << 16 else np.int32
        )
        self.budget.spend(len(self.channels) ** 2 * kind.itemsize, CLOCKS)
        self.clocks = np.zeros((len(self.channels), len(self.channels)), kind)
        # id of a link -> clocks of the messages on it
        self.carried: dict[int, deque[np.ndarray]] = defaultdict(deque)
        self.awaited = Counter(
            (rank.rank, *step.after) for rank in self.ranks for c in rank.schedule.channels for step in c
        )
        # clocks, and lengths of chains of messages, behind steps that others wait for
        self.kept: dict[tuple[int, int, int], tuple[np.ndarray, int]] = {}
        self.needless: list[tuple[int, int, int]] | None = (
            None  # a list: rank, channel and step of waits that others imply
        )
        self.before: dict[int, np.ndarray] = {}  # clocks of channels before the waits that they are at

    def _execute(self, channel: ChannelRun, step: Step) -> bool:
        number, rank, clock = self.numbers[channel], channel.rank, self.clocks[self.numbers[channel]]
        clock[number] = channel.pc + 1
        if step.op is Op.AFTER:
            done = self._follow(channel, clock, *step.after)
        else:
            if step.op in (Op.RECV, Op.RECV_REDUCE):
                link = self.links[step.peer, rank.rank, channel.link]
                if link.messages:
                    self._meet(channel, link, step)
            done = super()._execute(channel, step)
            if done:
                for run in step.srcs:
                    self._touch(channel, run, write=False)
                if step.dst is not None:
                    self._touch(channel, step.dst, write=True)
        place = rank.rank, channel.index, channel.pc + 1
        if done and place in self.awaited:
            self.kept[place] = self._copied(clock), channel.depth
        return done

    def _copied(self, clock: np.ndarray) -> np.ndarray:
        self.budget.spend(clock.nbytes, CLOCKS)
        return clock.copy()

    def _follow(self, channel: ChannelRun, clock: np.ndarray, index: int, steps: int) -> bool:
        """Take the clock behind steps of another channel; return False, and let the channel follow it, while they are not done."""
        rank = channel.rank.rank
        other = self.of.get((rank, index))
        if other is None or other is channel or not 0 < steps <= len(other.steps):
            raise ValueError(
                f"waits for {steps} steps of channel {index}, which has {len(other.steps) if other else 'none'}"
            )
        kept = self.kept.get((rank, index, steps))
        if kept is None:
            other.followers.append(channel)
            return False
        self.awaited[rank, index, steps] -= 1
        if self.needless is not None:
            self.needless += self._needless_at(channel, clock)
        elif not self.awaited[rank, index, steps]:
            del self.kept[rank, index, steps]
            self.budget.free(clock.nbytes, CLOCKS)
        np.maximum(clock, kept[0], out=clock)
        channel.depth = max(channel.depth, kept[1])
        return True

    def _needless_at(self, channel: ChannelRun, clock: np.ndarray) -> list[tuple[int, int, int]]:
        """Return, at the last of consecutive waits, those that the others, or what the channel knew before, imply."""
        rank, number, steps, end = channel.rank.rank, self.numbers[channel], channel.steps, channel.pc + 1
        if end == 1 or steps[end - 2].op is not Op.AFTER:
            self.before[number] = self._copied(clock)
        if end < len(steps) and steps[end].op is Op.AFTER:
            return []
        first = end
        while first and steps[first - 1].op is Op.AFTER:
            first -= 1
        # of each channel
        latest = {
            steps[at].after[0]: at for at in sorted(range(first, end), key=lambda at: steps[at].after[1])
        }
        left = {at: (rank, *steps[at].after) for at in latest.values()}
        self.budget.spend(len(left) ** 2, TURNS)
        for at, wait in list(left.items()):
            known = [self.before[number], *(self.kept[one][0] for one in left.values() if one is not wait)]
            if any(found[self.numbers[self.of[wait[:2]]]] >= wait[2] for found in known):
                del left[at]
        return [(rank, channel.index, at) for at in range(first, end) if at not in left]

    def _meet(self, channel: ChannelRun, link: Link, step: Step) -> None:
        """Take the clock of the next message; where its sender wrote this rank's memory, look whether it was free then."""
        clock = self.carried[id(link)].popleft()
        self.budget.free(clock.nbytes, CLOCKS)
        self.sent_by = self._sender(link, clock)
        assert step.dst is not None
        if step.put:
            self._touch(channel, step.dst, write=True, clock=clock)
        np.maximum(self.clocks[self.numbers[channel]], clock, out=self.clocks[self.numbers[channel]])

    def _touch(
        self, channel: ChannelRun, run: Chunk, *, write: bool, clock: np.ndarray | None = None
    ) -> None:
        """Take down an access to a run of chunks; refuse one that nothing orders behind an earlier one of another channel."""
        number, memory = self.numbers[channel], channel.rank
        assert isinstance(memory, _SharedMemory)
        known = self.clocks[number] if clock is None else clock
        cells = memory.span(run, channel.index)
        for cell in range(cells.start, cells.stop):
            writer, readers = memory.writers[cell], memory.readers[cell]
            earlier = [writer] if writer else []
            earlier += readers.items() if write else ()
            for other, steps in earlier:
                if (other != number or clock is not None) and known[other] < steps:
                    raise ValueError(
                        self._race(run, other, steps, "wrote" if (other, steps) == writer else "reads")
                    )
            if clock is None and write:
                memory.writers[cell] = number, channel.pc + 1
                readers.clear()
            elif clock is None:
                readers[number] = channel.pc + 1

    def _race(self, run: Chunk, number: int, steps: int, verb: str) -> str:
        other = self.channels[number]
        place = self.where(other.rank.rank, other.index, steps - 1)
        return (
            f"race: uses {run}, which {place} ({other.steps[steps - 1]}) {verb}, and nothing orders the two"
        )

    def _send(self, channel: ChannelRun, peer: int, src: Chunk) -> bool:
        rank, step = channel.rank, channel.steps[channel.pc]
        link, cells = self.links[rank.rank, peer, channel.link], rank.span(src, channel.index)
        counts = bool(src.n) and not step.put
        if counts and link.slots >= self.slots:
            channel.held_up = True
            return False
        link.slots += counts
        self.carried[id(link)].append(self._copied(self.clocks[self.numbers[channel]]))
        self._deliver(channel, link, cells, src)
        return True

    def _receive(self, channel: ChannelRun, link: Link, extents: list[object]) -> list[int]:
        sender, cells, values, depth = link.messages.popleft()
        n = cells.stop - cells.start
        if n != len(extents):
            raise ValueError(f"expects {len(extents)} chunks, {self.sent_by} sends {n}")
        if n and link.slots:
            channel.received.append((sender, link))
        channel.depth = max(channel.depth, depth)
        return values

    def _sender(self, link: Link, clock: np.ndarray) -> str:
        """Return the place of the step that sent the first message on a link, which carries a clock."""
        sender = link.messages[0][0]
        return self.where(sender.rank.rank, sender.index, int(clock[self.numbers[sender]]) - 1)

    def _check_ended(self) -> None:
        for (_, dst, _), link in self.links.items():
            if link.messages and all(channel.ended for channel in self.channels):
                place = self._sender(link, self.carried[id(link)][0])
                raise ScheduleError(f"{place}: sends a message to rank {dst} that is never received")
        super()._check_ended()

    def judge(self) -> Proof:
        """Compare every chunk of OUTPUT with what the collective wants; an error names the step that wrote the chunk."""
        try:
            return super().judge()
        except ScheduleError as error:
            writer = self._writer_of_wrong(self.ranks[error.rank])
            raise ScheduleError(f"{writer}: {error}" if writer else str(error)) from None

    def _writer_of_wrong(self, memory: RankMemory) -> str:
        """Return the place of the last step that wrote the first wrong chunk of OUTPUT; the empty text where none has."""
        assert isinstance(memory, _SharedMemory)
        s, first = memory.schedule, memory.bases[Buffer.OUTPUT]
        for index in range(memory.counts[Buffer.OUTPUT]):
            mask = self.collective.wanted(s.rank, index, s.nranks, s.root)
            wanted = self.collective.output_item(s.rank, index), mask
            if mask and self.values.facts[memory.values[first + index]][:2] != wanted:
                number, steps = memory.writers[first + index] or (0, 0)
                channel = self.channels[number]
                return self.where(channel.rank.rank, channel.index, steps - 1) if steps else ""
        return ""

    def _refusal(self, channel: ChannelRun, text: str) -> ScheduleError:
        error = ScheduleError(f"{self.where(channel.rank.rank, channel.index, channel.pc)}: {text}")
        error.rank, error.step = channel.rank.rank, channel.pc
        return error

    def _cause(self, channel: ChannelRun, stuck: Sequence[ChannelRun]) -> str:
        step = channel.steps[channel.pc]
        if step.op is not Op.AFTER:
            return super()._cause(channel, stuck)
        return f"it waits for another thread block: {self._whereabouts(self.of[channel.rank.rank, step.after[0]])}"

    def _whereabouts(self, channel: ChannelRun) -> str:
        return (
            f"{self.where(channel.rank.rank, channel.index, channel.pc)} waits at {channel.steps[channel.pc]}"
        )


def verify_program(
    schedules: Sequence[Schedule],
    collective: Collective | None = None,
    *,
    in_place: bool,
    slots: int = RING_SLOTS,
    where: Where = lambda rank, channel, step: f"rank {rank}, channel {channel}, step {step}",
) -> Proof:
    """Prove a program, from the schedules of all ranks; all chunks have one size.

    Args:
        schedules: The schedules in rank order. A message of a run of no chunks is a signal, which
            only orders. A RECV with ``put`` is of data that the sender has written into this rank's memory when it sent.
        collective: The meaning; None: that of the schedules' collective.
        in_place: The chunks that the collective's ``aliases`` names are one memory.
        slots: Messages on one link that may wait to be received before a send waits, ``>= 1``.
        where: Names the place of a step, for errors.

    Returns:
        The properties that hold whatever the timing.

    Raises:
        ScheduleError: names the place of the step and the cause: a race of two channels, a deadlock, a message without its counterpart, a
            read of nothing, a contribution counted twice, or an OUTPUT that is not what the collective wants.
    """
    machine = _Program(schedules, collective or schedules[0].meaning, in_place, slots, where)
    machine.run_channels()
    return machine.judge()


def needless_waits(
    schedules: Sequence[Schedule], collective: Collective, *, in_place: bool
) -> list[tuple[int, int, int]]:
    """Return rank, channel and step of the AFTER steps whose order others imply, of a program that `verify_program` has proven."""
    any_slots = sum(len(steps) for s in schedules for steps in s.channels)
    machine = _Program(schedules, collective, in_place, any_slots, lambda rank, channel, step: "")
    machine.needless = []
    machine.run_channels()
    return sorted(machine.needless)
