"""The parts of a program of several channels: those that depend on one another, on any rank, are together."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from hpcoll.schedules.ir import Buffer, Op, Schedule, cells_of

MAX_PARTS = 8  # each is a channel of its own; further ones share these
_Channel = tuple[int, int]  # rank and channel


class _Sets:
    """Disjoint sets of channels (union-find)."""

    def __init__(self) -> None:
        self.above: dict[_Channel, _Channel] = {}

    def first(self, channel: _Channel) -> _Channel:
        """Return the channel that stands for the set of another."""
        while (above := self.above.setdefault(channel, channel)) != channel:
            self.above[channel] = channel = self.above[above]
        return channel

    def join(self, one: _Channel, other: _Channel) -> None:
        """Make one set of two."""
        low, high = sorted((self.first(one), self.first(other)))
        self.above[high] = low


def program_parts(schedules: Sequence[Schedule], copied: Sequence[Collection[int]]) -> list[list[list[int]]]:
    """Return, for each part, the channels of each rank that are in it; at most `MAX_PARTS`, with alike numbers of steps.

    ``copied`` has for each rank the chunks of OUTPUT that are written before all steps, by one channel that uses them.
    """
    sets, links = _Sets(), dict[tuple[int, int, int], _Channel]()
    for s, before in zip(schedules, copied, strict=True):
        users: dict[tuple[Buffer, int], list[_Channel]] = defaultdict(list)
        written = {(Buffer.OUTPUT, index) for index in before}
        for index, steps in enumerate(s.channels):
            here, link = (s.rank, index), s.links[index] if s.links else index
            sets.first(here)
            for step in steps:
                if step.op is Op.AFTER:
                    sets.join(here, (s.rank, step.after[0]))
                elif step.peer >= 0:
                    pair = (s.rank, step.peer) if step.op is Op.SEND else (step.peer, s.rank)
                    sets.join(here, links.setdefault((*pair, link), here))
                for run in step.runs:
                    for cell in cells_of(run):
                        if not users[cell] or users[cell][-1] != here:
                            users[cell].append(here)
                        if run is step.dst:
                            written.add(cell)
        for cell in written:
            for user in users[cell]:
                sets.join(users[cell][0], user)
    return _dealt(schedules, sets)


def _dealt(schedules: Sequence[Schedule], sets: _Sets) -> list[list[list[int]]]:
    """Deal the sets out, the largest first, each to the part with the fewest steps."""
    members: dict[_Channel, list[_Channel]] = defaultdict(list)
    for s in schedules:
        for index in range(len(s.channels)):
            members[sets.first((s.rank, index))].append((s.rank, index))
    sizes = {
        first: sum(len(schedules[rank].channels[index]) for rank, index in channels)
        for first, channels in members.items()
    }
    parts: list[list[list[int]]] = [
        [[] for _ in schedules] for _ in range(max(1, min(MAX_PARTS, len(members))))
    ]
    loads = [0] * len(parts)
    for first in sorted(members, key=lambda channel: (-sizes[channel], channel)):
        part = loads.index(min(loads))
        loads[part] += sizes[first]
        for rank, index in members[first]:
            parts[part][rank].append(index)
    return parts
