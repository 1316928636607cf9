"""The verifier's values: interned expressions over the ranks' contributions, and the memory of a rank that holds them."""

from collections.abc import Hashable, Sequence

from hpcoll.base.canonical import split
from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import Buffer, Chunk, Schedule

NOTHING = 0  # the value of an unwritten cell
_NOBODY, _SEVERAL = -1, -2  # in place of the only channel that uses a cell
_INPUT, _SCRATCH = Buffer.INPUT, Buffer.SCRATCH  # looking up members of an enum is slow


Facts = tuple[Hashable, int, bool, bool, int, int]


class Values:
    """Interned expressions: value number -> item, mask of contributing ranks, whether in rank order, whether canonical, two operands."""

    def __init__(self, idempotent: bool) -> None:
        self.idempotent = idempotent
        self.facts: list[Facts] = [(None, 0, True, True, NOTHING, NOTHING)]
        self._pairs: dict[tuple[int, int], int] = {}

    def leaves(self, items: Sequence[Hashable], rank: int) -> range:
        """Return the values of a rank's own contributions to items."""
        self.facts += [(item, 1 << rank, True, True, NOTHING, NOTHING) for item in items]
        return range(len(self.facts) - len(items), len(self.facts))

    def combine(self, lefts: list[int], rights: list[int]) -> list[int]:
        """Return the values of ``left op right``, pair by pair; ValueError for a pair that must not be combined."""
        new = []
        for pair in zip(lefts, rights):
            value = self._pairs.get(pair)
            if value is None:
                self.facts.append(self._combine(*pair))
                value = self._pairs[pair] = len(self.facts) - 1
            new.append(value)
        return new

    def _combine(self, left: int, right: int) -> Facts:
        item, mask_l, in_order_l, canonical_l, _, _ = self.facts[left]
        item_r, mask_r, in_order_r, canonical_r, _, _ = self.facts[right]
        if item != item_r:
            raise ValueError(f"combines data of different places: {item} and {item_r}")
        if mask_l & mask_r and not self.idempotent:
            raise ValueError(f"counts the contribution of rank {(mask_l & mask_r).bit_length() - 1} twice")
        # in rank order: both are intervals of ranks, and the right one begins where the left one ends
        in_order = in_order_l and in_order_r and mask_l.bit_length() == (mask_r & -mask_r).bit_length() - 1
        mask = mask_l | mask_r
        canonical = in_order and canonical_l and canonical_r and mask_l.bit_count() == split(mask.bit_count())
        return item, mask, in_order, canonical, left, right

    def shapes(self) -> list[int]:
        """Return the number of each value's shape; expressions that differ only in the order of operands have one shape."""
        known: dict[tuple[Hashable, ...], int] = {}
        shapes = [0]
        for item, mask, _, _, left, right in self.facts[1:]:
            pair = (item, mask) if left == NOTHING else tuple(sorted((shapes[left], shapes[right])))
            shapes.append(known.setdefault((left == NOTHING, *pair), len(known) + 1))
        return shapes


class RankMemory:
    """A rank's memory: cells, in which INPUT, OUTPUT and SCRATCH are windows; in place, INPUT and OUTPUT overlap."""

    def __init__(
        self, schedule: Schedule, collective: Collective, values: Values, in_place: bool, uniform: bool
    ) -> None:
        s, c = schedule, collective
        who = (s.rank, s.nranks, s.root, s.nchunks)
        self.schedule, self.rank = s, s.rank
        self.counts = nin, nout, nscratch = c.ninputs(*who), c.noutputs(*who), len(s.scratch)
        overlap = c.aliases(*who) if in_place and c.aliases else []
        shift = overlap[0][0] - overlap[0][1] if overlap else nin  # from INPUT's first cell to OUTPUT's
        assert all(i - o == shift for i, o in overlap), "aliases must be pairs in one window"
        assert len(overlap) in (0, min(nin, nout)), "one window must lie in the other"
        first = max(0, -shift)
        self.bases = (first, first + shift, nin + nout - len(overlap))
        total = nin + nout - len(overlap) + nscratch
        self.values, self.in_use = [NOTHING] * total, [0] * total
        self.extents: list[Hashable] = [0] * total
        self.shared = len(s.channels) > 1
        # the channel that uses a cell; whether one writes it
        self.users, self.written = (
            [_NOBODY] * total,
            bytearray(total),
        )
        self.values[first : first + nin] = values.leaves(
            [c.input_item(s.rank, i) for i in range(nin)], s.rank
        )
        if not uniform:
            names = (
                [c.input_extent(s.rank, i) for i in range(nin)],
                [c.output_extent(s.rank, i) for i in range(nout)],
                s.scratch,
            )
            for base, window in zip(self.bases, names):
                self.extents[base : base + len(window)] = window
        self.sent, self.told_apart = 0, False
        # 1: written, 2: copied onto itself
        self.rewritten = bytearray(total if overlap and not c.always_in_place else 0)

    def span(self, chunk: Chunk, channel: int, write: bool = False) -> slice:
        """Return the cells of a run of chunks; refuse wrong bounds, writes to INPUT, and channels that are not independent."""
        buffer, index, n = chunk
        if index < 0 or n < 1 or index + n > self.counts[buffer]:
            raise ValueError(f"{chunk} is outside its buffer of {self.counts[buffer]} chunks")
        if write and buffer is _INPUT:
            raise ValueError(f"writes {chunk}: input is read-only")
        first = self.bases[buffer] + index
        if self.shared:
            self._check_channels(range(first, first + n), channel, write, chunk)
        return slice(first, first + n)

    def are_shared(self, cells: range) -> bool:
        """Say whether some of these cells are both of INPUT and of OUTPUT."""
        inside = [range(first, first + n) for first, n in zip(self.bases[:2], self.counts)]
        return any(cell in inside[0] and cell in inside[1] for cell in cells)

    def _check_channels(self, cells: range, channel: int, write: bool, chunk: Chunk) -> None:
        for cell in cells:
            self.users[cell] = channel if self.users[cell] in (_NOBODY, channel) else _SEVERAL
            self.written[cell] |= write
            if self.written[cell] and self.users[cell] == _SEVERAL:
                raise ValueError(f"{chunk} is used by channels {self._users(cell)} and one of them writes it")

    def _users(self, cell: int) -> list[int]:
        def uses(run: Chunk) -> bool:
            return 0 <= cell - self.bases[run.buffer] - run.index < run.n

        return [
            c
            for c, steps in enumerate(self.schedule.channels)
            if any(map(uses, (run for step in steps for run in step.runs)))
        ]

    def read(self, cells: slice, chunk: Chunk) -> list[int]:
        """Return the values of cells; refuse those that nothing was written to."""
        values = self.values[cells]
        if NOTHING in values:
            raise ValueError(f"reads {chunk} before anything is in it")
        if self.rewritten and chunk[0] is not _SCRATCH and (chunk[0] is _INPUT) in self.rewritten[cells]:
            self.told_apart = True
        return values
