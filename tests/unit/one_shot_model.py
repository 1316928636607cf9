"""A model of one-shot kernels on GPUs that map each other's memory: the steps of one block, small enough to try all their interleavings.

A block of each rank runs calls, as threads that meet at barriers: for each peer one that writes the slot, one that tells the peer and waits
for its flag, and one that reads its slot. The model allows what PTX's memory model does, and a little more:

- Each rank sees memory of its own: a store is seen by one rank now, by another one later. So a step is a load, or one rank sees a store.
- Stores are seen in any order, except that a release store stays behind all that its thread did before, and by a barrier its block, and
  that stores to one address keep their order.
- What is loaded behind a load that acquires, by its thread or behind a barrier, is loaded later. Else it may be loaded earlier.
- The end of a launch orders nothing. A release store does not carry on to a third rank what its own rank has seen.

A wait that fails is no step: it changes nothing that matters. So there are no circles, as in `ring_model`.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from ring_model import Broken
from store_buffer import PLAIN, RELEASE, Store, may_leave

KINDS = {"st": PLAIN, "st.release": RELEASE}


class Call(NamedTuple):
    """Who has something to send, and who receives it."""

    writers: Sequence[int]
    readers: Sequence[int]


class Op(NamedTuple):
    """An instruction of a thread; the word's value is what it stores, or must find.

    Attributes:
        code: As in PTX.
        what: Kind of the word.
        address: Of the word.
        value: Number of the call; in a flag its generation.
        peer: The rank that is to see a store.
    """

    code: str
    what: str = ""
    address: int = -1
    value: int = 0
    peer: int = -1


BARRIER = Op("bar.sync")


class Rank(NamedTuple):
    """The state of a rank: where its threads are, what they have loaded early, stores that each peer does not see yet."""

    pcs: tuple[int, ...]
    early: tuple[int | None, ...]
    stores: tuple[tuple[Store, ...], ...]


State = tuple[tuple[Rank, ...], tuple[tuple[int, ...], ...]]  # ranks, and memory as each sees it


class Model:
    """Ranks with a block each.

    Args:
        nranks: Two or three.
        calls: One after another; None is a call with fewer blocks, in which this one has no part.
        checked: Ranks that send checks; all of three are many states.
        breaks: What is done wrong.
    """

    def __init__(
        self, nranks: int, calls: Sequence[Call | None], *, checked: Sequence[int] = (0, 1), breaks: str = ""
    ) -> None:
        self.n, self.checked, self.breaks = nranks, checked, breaks
        names = list(product(("slot", "flag", "check"), range(nranks), (0, 1)))
        self.names, self.places = names, {name: i for i, name in enumerate(names)}
        less = breaks == "a rank makes one call less"
        self.threads = [self._threads(rank, calls[: -1 if less and rank else None]) for rank in range(nranks)]
        self.needs: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for rank, threads in enumerate(self.threads):
            for i, ops in enumerate(threads):
                for pc, op in enumerate(ops):
                    if op.code.startswith("ld"):
                        self.needs.setdefault((rank, op.address, op.value), []).append((i, pc))

    def _threads(self, rank: int, calls: Sequence[Call | None]) -> list[list[Op]]:
        """Return what the threads of a rank do: those that tell come first, so that no other's store is in front of theirs by chance."""
        peers = [peer for peer in range(self.n) if peer != rank]
        threads: list[list[Op]] = [[] for _ in 3 * peers]
        generation = 0
        for number, call in enumerate(calls, 1):
            generation += call is not None or self.breaks == "generations of all calls"
            if call is not None:
                parts = [self._parts(rank, peer, call, number, generation) for peer in peers]
                for ops, part in zip(
                    threads, [part for kind in zip(*parts, strict=True) for part in kind], strict=True
                ):
                    ops += part
        return threads

    def _address(self, what: str, writer: int, generation: int) -> int:
        one_side = self.breaks == f"one side of {'slots' if what == 'slot' else 'flags'}"
        return self.places[what, writer, 0 if one_side else generation & 1]

    def _parts(
        self, rank: int, peer: int, call: Call, number: int, generation: int
    ) -> tuple[list[Op], list[Op], list[Op]]:
        """Return what the three threads for a peer do in a call."""
        before = [BARRIER] * (self.breaks != "no barrier before the flags")
        behind = [BARRIER] * (self.breaks != "no barrier behind the flags")
        mine, theirs = (self._address("slot", one, generation) for one in (rank, peer))
        write = [Op("st", "slot", mine, number, peer)] * (rank in call.writers)
        read = [Op("ld", "slot", theirs, number)] * (rank in call.readers and peer in call.writers)
        tell = self._tell(rank, peer, number, generation)
        if rank in call.readers or self.breaks != "who receives nothing does not wait":
            tell += self._wait(peer, number, generation)
        return [*before, *tell, *behind], [*write, *before, *behind], [*before, *behind, *read]

    def _tell(self, rank: int, peer: int, number: int, generation: int) -> list[Op]:
        code = "st" if self.breaks == "a plain store of the flag" else "st.release"
        flag = Op(code, "flag", self._address("flag", rank, generation), generation, peer)
        check = Op("st", "check", self._address("check", rank, generation), number, peer)
        checks = [check] * (rank in self.checked)
        return [flag, *checks] if self.breaks == "the check behind the flag" else [*checks, flag]

    def _wait(self, peer: int, number: int, generation: int) -> list[Op]:
        code = "ld" if self.breaks == "a plain load of the flag" else "ld.acquire"
        flag = Op(code, "flag", self._address("flag", peer, generation), generation)
        check = Op("ld", "check", self._address("check", peer, generation), number)
        return [flag, *[check] * (peer in self.checked)]

    def start(self) -> State:
        threads = len(self.threads[0])
        rank = Rank((0,) * threads, (None,) * threads, ((),) * self.n)
        memory = ((0,) * len(self.names),) * self.n
        return tuple(self._alone(r, rank) for r in range(self.n)), memory

    def _alone(self, r: int, rank: Rank) -> Rank:
        """A rank after what nobody else sees: stores that wait, and barriers at which all threads are."""
        pcs, stores = list(rank.pcs), list(rank.stores)
        threads, moved = self.threads[r], True
        while moved:
            moved = False
            for i, ops in enumerate(threads):
                while pcs[i] < len(ops) and ops[pcs[i]].code in KINDS:
                    op = ops[pcs[i]]
                    stores[op.peer] = (*stores[op.peer], Store(op.address, op.value, KINDS[op.code]))
                    pcs[i] += 1
            if all(pcs[i] < len(ops) and ops[pcs[i]] is BARRIER for i, ops in enumerate(threads)):
                pcs, moved = [pc + 1 for pc in pcs], True
        return rank._replace(pcs=tuple(pcs), stores=tuple(stores))

    def next(self, state: State) -> Iterator[State]:
        """Every step that some rank can take."""
        ranks, memory = state
        for r, rank in enumerate(ranks):
            for peer, stores in enumerate(rank.stores):
                for i, store in enumerate(stores):
                    if may_leave(stores, i, arm=True):
                        self._check(peer, store, state)
                        left = _changed(rank.stores, peer, stores[:i] + stores[i + 1 :])
                        seen = _changed(memory[peer], store.address, store.value)
                        yield _changed(ranks, r, rank._replace(stores=left)), _changed(memory, peer, seen)
            for moved in self._loads(r, rank, memory[r]):
                yield _changed(ranks, r, self._alone(r, moved)), memory

    def _check(self, peer: int, store: Store, state: State) -> None:
        """The peer needs no more what a store overwrites there."""
        ranks, memory = state
        for i, pc in self.needs.get((peer, store.address, memory[peer][store.address]), ()):
            if ranks[peer].pcs[i] <= pc:
                raise Broken(f"a {self.names[store.address][0]} is overwritten that somebody needs")

    def _loads(self, r: int, rank: Rank, memory: tuple[int, ...]) -> Iterator[Rank]:
        for i, ops in enumerate(self.threads[r]):
            pc, early = rank.pcs[i], rank.early[i]
            if pc == len(ops):
                continue
            op, done = ops[pc], rank._replace(pcs=_changed(rank.pcs, i, pc + 1))
            if op.what == "flag":
                if memory[op.address] == op.value:
                    yield done
            elif op is not BARRIER:
                if op.value != (memory[op.address] if early is None else early):
                    raise Broken(f"a {op.what} is read that is not of this call")
                yield done._replace(early=_changed(rank.early, i, None))
            ahead = ops[pc + 1] if pc + 1 < len(ops) else BARRIER
            may_load = ahead.code == "ld" and ahead.what != "flag" and early is None
            if may_load and self.breaks == "a plain load of the flag":
                yield rank._replace(early=_changed(rank.early, i, memory[ahead.address]))

    def check_end(self, state: State) -> None:
        """A state without a next one is the end."""
        for threads, rank in zip(self.threads, state[0], strict=True):
            if rank.pcs != tuple(map(len, threads)):
                raise Broken("deadlock")


def _changed(row: tuple[Any, ...], i: int, value: Any) -> tuple[Any, ...]:
    return (*row[:i], value, *row[i + 1 :])
