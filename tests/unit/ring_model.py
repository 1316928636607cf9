"""A model of shared memory between ranks: the steps of `shm_ops` on one staging slot, small enough to try all their interleavings.

Ranks run rows. A step is one load, or one store that becomes visible; what only the rank itself sees happens together with the step
before. Stores wait in a buffer. On ARM they leave it in any order, except that a release store leaves it behind all before it and that
stores to one address keep their order; on x86 they leave it in order, except those past the caches. A load behind the announcing one
may be done before it on ARM, unless that acquires. A wait that fails is no step: it changes nothing that matters. So each step brings
a rank forward or empties its buffer, there are no circles, and nothing deadlocks where every state without a next one is the end.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ring_rows import CAPACITY, SLOTS, Row, Rows
from store_buffer import PLAIN, RELEASE, UNCACHED, Store, may_leave

NUMBERS = 4  # before they start anew

State = tuple[tuple["Rank", ...], tuple[Any, ...]]  # ranks and memory


class Broken(Exception):
    """A property that does not hold."""


class Rank(NamedTuple):
    """The state of a rank: operations, stores, acknowledgements seen, staging memory (used, this lane's, peers looked at), messages."""

    pc: int
    stores: tuple[Store, ...]
    acked: tuple[int, ...]
    used: int
    base: int
    looked: int
    landed: tuple[Any, ...]
    early: tuple[int, Any] | None


class Model(Rows):
    """Ranks with their rows, and the memory that they share.

    Args:
        rows: Of each rank.
        arm: Whether memory is as weak as on ARM; else as on x86.
        near: Lanes after which staging starts anew if all has been used; at `CAPACITY` it must.
        uncached: Whether STAGE writes past the caches.
        breaks: What is done wrong.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[Row]],
        *,
        arm: bool,
        near: int = 1,
        uncached: bool = False,
        breaks: str = "",
    ) -> None:
        super().__init__(rows, fenced=uncached and breaks != "no fence")
        self.arm, self.near, self.uncached, self.breaks = arm, near, uncached, breaks

    def start(self) -> State:
        rank = Rank(0, (), (0,) * self.n, 0, 0, 0, (None,) * self.n, None)
        memory = [0 if name[0] in ("word", "ack") else None for name in self.names]
        return tuple(self._alone(r, rank) for r in range(self.n)), tuple(memory)

    def _alone(self, r: int, rank: Rank) -> Rank:
        """A rank after what nobody else sees: stores into its buffer."""
        while True:
            op, count = self.ops[r][rank.pc], self.counts[r][rank.pc]
            if op[0] in ("STAGE", "OWN"):
                area = ("staging", r, rank.base) if op[0] == "STAGE" else ("own", r)
                kind = UNCACHED if self.uncached and op[0] == "STAGE" else PLAIN
                new = tuple(Store(self.places[(*area, part)], (op[1], part), kind) for part in (0, 1))
            elif op[0] == "ACK":
                new = (Store(self.places["ack", r, op[1]], count["ACK"][op[1]] + 1, RELEASE),)
            else:
                return rank
            rank = rank._replace(pc=rank.pc + 1, stores=rank.stores + new)

    def next(self, state: State) -> Iterator[State]:
        """Every step that some rank can take."""
        ranks, memory = state
        for r, rank in enumerate(ranks):
            for i, store in enumerate(rank.stores):
                if may_leave(rank.stores, i, arm=self.arm):
                    self._check(r, store, state)
                    left = rank._replace(stores=rank.stores[:i] + rank.stores[i + 1 :])
                    changed = (*memory[: store.address], store.value, *memory[store.address + 1 :])
                    yield (*ranks[:r], left, *ranks[r + 1 :]), changed
            for moved in self._step(r, rank, memory):
                yield (*ranks[:r], self._alone(r, moved), *ranks[r + 1 :]), memory

    def _check(self, r: int, store: Store, state: State) -> None:
        """Nobody needs what a store overwrites."""
        ranks, memory = state
        what, name = memory[store.address], self.names[store.address]
        if store.number >= 0 and self.counts[name[2]][ranks[name[2]].pc]["USED"][r] <= store.number - SLOTS:
            raise Broken("a ring slot is written before its message was read")
        readers = self.readers.get(what[0], ()) if name[0] in ("staging", "own") and what is not None else ()
        if any(memory[self.places["ack", reader, r]] <= number for reader, number in readers):
            raise Broken(f"{name[0]} memory is written before all readers have acknowledged")

    def _step(self, r: int, rank: Rank, memory: tuple[Any, ...]) -> Iterator[Rank]:
        """The load of the next operation, if what it waits for is there."""
        op, count, done = self.ops[r][rank.pc], self.counts[r][rank.pc], rank._replace(pc=rank.pc + 1)
        if op[0] == "POST":
            yield from self._post(r, done, op, count["POST"][op[1]], memory)
        elif op[0] == "RESERVE":
            yield from self._reserve(r, rank, count["POST"], memory)
        elif op[0] == "DRAIN":
            if (
                self.breaks == "no drain"
                or self._acked(r, rank, op[1], count["POST"][op[1]], memory)[op[1]] == count["POST"][op[1]]
            ):
                yield done
        elif op[0] == "FENCE" and not rank.stores:
            yield done
        elif op[0] == "AWAIT":
            number = count["AWAIT"][op[1]]
            if memory[self.places["word", op[1], r, number % SLOTS]] == self._announced(number):
                yield done if self.breaks == "plain load" else done._replace(early=None)
            ahead = self.places["slot", op[1], r, number % SLOTS, 0]
            if self.arm and rank.early is None:
                yield rank._replace(early=(ahead, memory[ahead]))
        elif op[0] in ("WHERE", "USE", "USED"):
            yield self._read(r, done, op, count[op[0]][op[1]], memory)

    def _announced(self, number: int) -> int:
        return (number % SLOTS + 1) if self.breaks == "numbers do not grow" else (number + 1) % NUMBERS

    def _acked(self, r: int, rank: Rank, peer: int, enough: int, memory: tuple[Any, ...]) -> tuple[int, ...]:
        """Return what the rank knows of acknowledgements; those of a peer are loaded unless enough are known."""
        if rank.acked[peer] >= enough:
            return rank.acked
        return (*rank.acked[:peer], memory[self.places["ack", peer, r]], *rank.acked[peer + 1 :])

    def _post(self, r: int, done: Rank, op: Row, number: int, memory: tuple[Any, ...]) -> Iterator[Rank]:
        acked = self._acked(r, done, op[1], number - SLOTS + 1, memory)
        if number - acked[op[1]] >= SLOTS and self.breaks != "no credit check":
            return
        slot = [self.places["slot", r, op[1], number % SLOTS, part] for part in (0, 1)]
        if op[2] == "inline":
            stores = [Store(address, (op[3], part), PLAIN, number) for part, address in enumerate(slot)]
        else:
            where = self.places["staging", r, done.base, 0] if op[2] == "staged" else self.places["own", r, 0]
            stores = [Store(slot[0], where, PLAIN, number)]
        kind = PLAIN if self.breaks == "plain announcement" else RELEASE
        word = Store(self.places["word", r, op[1], number % SLOTS], self._announced(number), kind, number)
        yield done._replace(acked=acked, stores=(*done.stores, *stores, word))

    def _reserve(self, r: int, rank: Rank, sent: tuple[int, ...], memory: tuple[Any, ...]) -> Iterator[Rank]:
        if rank.used >= self.near:
            peer = rank.looked
            acked = self._acked(r, rank, peer, sent[peer], memory)
            if acked[peer] < sent[peer] and rank.used >= CAPACITY:
                return
            rank = rank._replace(acked=acked)
            if acked[peer] == sent[peer]:
                last = self.n - 1 if self.breaks != "reserve looks at one reader" else (r == 0)
                if peer < last:
                    yield rank._replace(looked=peer + 1)
                    return
                rank = rank._replace(used=0)
        yield rank._replace(pc=rank.pc + 1, base=rank.used, used=rank.used + 1, looked=0)

    def _read(self, r: int, done: Rank, op: Row, number: int, memory: tuple[Any, ...]) -> Rank:
        """WHERE: where a message lies; USE and USED: the halves of its data, which must be those of this message."""
        peer, (kind, datum) = op[1], self.messages[op[1], r][number]
        address = self.places["slot", peer, r, number % SLOTS, 0]
        if op[0] != "WHERE":
            address = (address if kind == "inline" else done.landed[peer]) + (op[0] == "USED")
        value = done.early[1] if done.early and done.early[0] == address else memory[address]
        if op[0] == "WHERE" and kind != "inline":
            if value is None:
                raise Broken("a receiver reads what is not its message")
            return done._replace(landed=(*done.landed[:peer], value, *done.landed[peer + 1 :]), early=None)
        if op[0] != "WHERE" and value != (datum, int(op[0] == "USED")):
            raise Broken("a receiver reads what is not its message")
        return done if op[0] == "WHERE" else done._replace(early=None)

    def check_end(self, state: State) -> None:
        """A state without a next one is the end, and all agree there."""
        ranks, memory = state
        if any(self.ops[r][rank.pc][0] != "END" for r, rank in enumerate(ranks)):
            raise Broken("deadlock")
        for (s, d), messages in self.messages.items():
            if not len(messages) == self.counts[d][-1]["USED"][s] == memory[self.places["ack", d, s]]:
                raise Broken("counters disagree in the end")


def explore(model: Any) -> int:
    """Visit all states of this model, or of another with its methods, those of fewest steps first; returns how many there are."""
    level = [model.start()]
    seen = set(level)
    while level:
        following = []
        for state in level:
            more = False
            for new in model.next(state):
                more = True
                if new not in seen:
                    seen.add(new)
                    following.append(new)
            if not more:
                model.check_end(state)
        level = following
    return len(seen)
