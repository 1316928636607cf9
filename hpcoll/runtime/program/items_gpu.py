"""Steps as operations on spans, for arrays in GPU memory.; what `hpcoll.runtime.program.items` does otherwise there.

Messages to ranks elsewhere pass through pinned memory where the MPI library takes no GPU addresses. Ranks of the node that map
this rank's memory read messages where they lie, or, where that may not be, from a copy in SCRATCH; the others from the shared window.
No message travels in the line that announces it.

What lies in memory that is overwritten behind its message makes the lane wait for the reader there. Two ranks that exchange a chunk and
reduce into it would wait for each other: such messages are copied, too.
"""

from collections.abc import Hashable, Mapping, Sequence

from hpcoll.runtime.program.chunk_layout import Layout
from hpcoll.runtime.program.items import STAGED, Item, Items, Pieces, Span, contiguous, join
from hpcoll.runtime.program.opcodes import Code, Ways
from hpcoll.schedules.ir import Buffer, Schedule, Step

MAX_SOURCES = 8  # of one reduction: operands of a kernel are passed by value


class DeviceItems(Items):
    """The steps of one channel as items on spans.

    Args:
        schedule, layout, itemsize, aliases, local_peers: As in `Items`.
        ways: How messages travel.
        copied: Which of the messages to ranks that map this one's memory are copied, by number.
    """

    boundary = 256

    def __init__(
        self, schedule: Schedule, layout: Layout, itemsize: int, aliases: dict[int, int], local_peers: Mapping[int, int], ways: Ways,
        copied: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        super().__init__(schedule, layout, itemsize, aliases, local_peers)
        self.ways, self.direct, self._copied = ways, ways.direct, copied
        self._numbers: dict[int, int] = {}  # index of a message that is read where it lies -> its number
        self._nmapped = 0  # messages so far to ranks that map this one's memory
        self._copies: dict[tuple[Hashable, ...], tuple[Pieces, int]] = {}  # chunks, and for whom -> copy, and items up to then
        self._written: dict[Hashable, int] = {}  # chunk -> items up to the last that wrote it
        self._partial: int | None = None  # landing slot of partial results

    def _append(self, item: Item) -> None:
        super()._append(item)
        self._written.update(dict.fromkeys(item.writes, len(self.list)))

    def _packed(self, pieces: Pieces, *, for_local: bool = False) -> Pieces:
        """A contiguous copy, to be sent as often as the chunks do not change."""
        key = (for_local, *(name for name, _ in pieces))
        copy, since = self._copies.get(key, ([], 0))
        if not copy or any(self._written.get(name, 0) > since for name, _ in pieces):
            copy = self.stage(pieces, for_local=for_local)
            self.local(Code.COPY, copy, pieces)
            self._copies[key] = copy, len(self.list)
        return copy

    def _post(self, peer: int, pieces: Pieces) -> None:
        """A message to a rank of the node: where it lies, from a copy in SCRATCH, or from the shared window."""
        groups = [join(group) for (group,) in contiguous([pieces])]
        if peer in self.ways.mapped:
            buffer = groups[0].buffer
            readable = len(groups) == 1 and (buffer == Buffer.SCRATCH or self.ways.exported[buffer]) and self._nmapped not in self._copied
            source = pieces if readable else self._packed(pieces, for_local=True)
            span, names = join(source), [name for name, _ in source]
            staged = Span(STAGED, 0, span.nbytes)
            self._numbers[len(self.list)] = self._nmapped
            self._nmapped += 1
        else:
            span = staged = self._into_window(tuple(name for name, _ in pieces), groups)
            names = [("staged", staged.displ)]
        self._append(Item(Code.POST, self.local_peers[peer], [span, staged], names, []))

    def overwritten_soon(self) -> frozenset[int]:
        """Messages in memory that is overwritten before the lane has used another message of the node: the reader may itself wait there."""
        found: set[int] = set()
        lent: dict[Hashable, list[tuple[int, int]]] = {}  # chunk -> message, and how many messages had been used before it
        used = 0
        for i, item in enumerate(self.list):
            for name in item.writes:
                found.update(number for number, before in lent.pop(name, ()) if before == used)
            used += item.code == Code.ACK
            for name in item.reads if i in self._numbers else ():
                lent.setdefault(name, []).append((self._numbers[i], used))
        return frozenset(found)

    def _operate(self, code: Code, spans: list[Span], names: list[list[Hashable]]) -> None:
        """Long folds in several reductions, left to right; the destination, which may be a source, is written by the last one."""
        while len(spans) > 1 + MAX_SOURCES:
            if self._partial is None:
                self._partial = len(self.landings)
                self.landings.append(0)
            self.landings[self._partial] = max(self.landings[self._partial], spans[0].nbytes)
            partial = Span(3 + self._partial, 0, spans[0].nbytes)
            name: list[Hashable] = [("landing", self._partial)]
            super()._operate(code, [partial, *spans[1 : 1 + MAX_SOURCES]], [name, *names[1 : 1 + MAX_SOURCES]])
            spans, names = [spans[0], partial, *spans[1 + MAX_SOURCES :]], [names[0], name, *names[1 + MAX_SOURCES :]]
        super()._operate(code, spans, names)


def device_items(
    schedule: Schedule, layout: Layout, itemsize: int, aliases: dict[int, int], local_peers: Mapping[int, int], steps: Sequence[Step],
    ways: Ways,
) -> DeviceItems:
    """The steps of one channel, with copies of what is overwritten too soon."""
    what = (schedule, layout, itemsize, aliases, local_peers, ways)
    items = DeviceItems(*what)
    items.add(steps)
    copied = items.overwritten_soon()
    if copied:
        items = DeviceItems(*what, copied)
        items.add(steps)
    return items
