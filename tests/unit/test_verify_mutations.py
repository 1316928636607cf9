"""The verifier against wrong schedules: drop, duplicate, swap or redirect one step of one rank, and it must object.

Some mutants are no worse than the original. Those are set aside by rule (`equivalent`) and counted. A mutant that is
neither refused nor set aside must give right results with real data, run by an interpreter that shares no code with the verifier.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from hpcoll.analysis.prove import modes, prove_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES, meaning
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step
from hpcoll.schedules.placement import parse_nodes
from hpcoll.schedules.row import Algorithm, schedule

NRANKS = (2, 3, 4, 5, 7, 8)
MOST = 400  # mutants of one instance, a third in the short run; more are sampled
NCHUNKS = 3  # for rows that take any number
NODES = "2"  # neighbours in pairs, for rows that look at nodes: what is composed of flat schedules is mutated, too

Cell = tuple[Buffer, int]
Datum = tuple[int, str, frozenset[Hashable]]


@dataclass(frozen=True)
class Mutant:
    kind: str
    rank: int
    channel: int
    index: int
    steps: tuple[Step, ...]  # of the channel, after the mutation
    touched: tuple[Step, ...]  # the steps that the mutation is about

    def apply(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        victim = schedules[self.rank]
        channels = (*victim.channels[: self.channel], self.steps, *victim.channels[self.channel + 1 :])
        return [*schedules[: self.rank], victim._replace(channels=channels), *schedules[self.rank + 1 :]]

    def __str__(self) -> str:
        return f"{self.kind} at rank {self.rank}, channel {self.channel}, step {self.index}: {' | '.join(map(str, self.touched))}"


def mutants(schedules: Sequence[Schedule]) -> Iterator[Mutant]:
    for s in schedules:
        for c, steps in enumerate(s.channels):
            for i, step in enumerate(steps):
                before, after = steps[:i], steps[i + 1 :]
                yield Mutant("drop", s.rank, c, i, before + after, (step,))
                yield Mutant("duplicate", s.rank, c, i, (*before, step, step, *after), (step,))
                if after and after[0] != step:
                    yield Mutant(
                        "swap", s.rank, c, i, (*before, after[0], step, *after[1:]), (step, after[0])
                    )
                if step.peer >= 0:
                    for peer in set(range(s.nranks)) - {s.rank, step.peer}:
                        yield Mutant(
                            "redirect", s.rank, c, i, (*before, step._replace(peer=peer), *after), (step,)
                        )


def cells(chunk: Chunk | None, aliases: dict[Cell, Cell]) -> set[Cell]:
    run = [(chunk.buffer, chunk.index + i) for i in range(chunk.n)] if chunk else []
    return {aliases.get(cell, cell) for cell in run}


def aliases_of(s: Schedule, in_place: bool) -> dict[Cell, Cell]:
    pairs = COLLECTIVES[s.collective].aliases if in_place else None
    return {
        (Buffer.INPUT, i): (Buffer.OUTPUT, o)
        for i, o in (pairs(s.rank, s.nranks, s.root, s.nchunks) if pairs else ())
    }


def independent(a: Step, b: Step, aliases: dict[Cell, Cell]) -> bool:
    """No order between the two matters: not one direction of one pair of ranks, and neither writes what the other touches."""
    if a.peer >= 0 and a.peer == b.peer and (a.op == Op.SEND) == (b.op == Op.SEND):
        return False
    reads, writes = [], []
    for step in (a, b):
        reads.append(set().union(*(cells(src, aliases) for src in step.srcs)))
        writes.append(cells(step.dst, aliases))
        if step.op == Op.COPY and reads[-1] == writes[-1]:  # in place: onto itself
            reads[-1], writes[-1] = set(), set()
    return not (writes[0] & (reads[1] | writes[1]) or writes[1] & reads[0])


def equivalent(row: Algorithm, s: Schedule, mutant: Mutant) -> str:
    """The rule by which an accepted mutant computes what the original does; empty if none applies."""
    a = mutant.touched[0]
    if (
        mutant.kind == "duplicate"
        and a.op in (Op.COPY, Op.REDUCE)
        and not cells(a.dst, {}) & set().union(*(cells(c, {}) for c in a.srcs))
    ):
        return "local step twice, its result not among its operands"
    if mutant.kind == "swap":
        b = mutant.touched[1]
        if all(independent(a, b, aliases_of(s, in_place)) for in_place in modes(row.collective)):
            return "swapped steps independent"
        if (
            not row.ordered
            and a.op == b.op == Op.RECV_REDUCE
            and a.peer != b.peer
            and a.dst == b.dst == a.srcs[0] == b.srcs[0]
        ):
            return "commutative contributions in another order"
    return ""


class Interpreter:
    """Runs schedules on data: integers to add, texts to join, sets to unite; lanes in random order."""

    def __init__(self, schedules: Sequence[Schedule], in_place: bool, rng: random.Random) -> None:
        self.schedules, self.rng = schedules, rng
        self.collective = meaning(schedules[0].collective, schedules[0].graph)
        self.aliases = [aliases_of(s, in_place) for s in schedules]
        self.memory: list[dict[Cell, Datum]] = [{} for _ in schedules]
        self.links: dict[tuple[int, int, int], deque[list[Datum]]] = defaultdict(deque)
        for s, memory, aliases in zip(schedules, self.memory, self.aliases):
            for i in range(self.collective.ninputs(s.rank, s.nranks, s.root, s.nchunks)):
                cell = (Buffer.INPUT, i)
                memory[aliases.get(cell, cell)] = self.datum(self.collective.input_item(s.rank, i), s.rank)

    @staticmethod
    def datum(item: Hashable, rank: int) -> Datum:
        return (
            random.Random(f"{item} {rank}").getrandbits(60),
            f"<{item} of {rank}>",
            frozenset([(item, rank)]),
        )

    @staticmethod
    def combine(left: Datum, right: Datum) -> Datum:
        return left[0] + right[0], left[1] + right[1], left[2] | right[2]

    def at(self, rank: int, chunk: Chunk) -> list[Cell]:
        return [
            self.aliases[rank].get((chunk.buffer, i), (chunk.buffer, i))
            for i in range(chunk.index, chunk.index + chunk.n)
        ]

    def run(self) -> None:
        lanes = [(s.rank, c, deque(steps)) for s in self.schedules for c, steps in enumerate(s.channels)]
        while lanes := [lane for lane in lanes if lane[2]]:
            rank, channel, steps = self.rng.choice(lanes)
            if self.step(rank, channel, steps[0]):
                steps.popleft()

    def step(self, rank: int, channel: int, step: Step) -> bool:
        memory = self.memory[rank]
        operands = [[memory[cell] for cell in self.at(rank, src)] for src in step.srcs]
        if step.op == Op.SEND:
            self.links[rank, step.peer, channel].append(operands[0])
            return True
        if step.op in (Op.RECV, Op.RECV_REDUCE):
            link = self.links[step.peer, rank, channel]
            if not link:
                return False
            operands.insert(0 if step.received_first else 1, link.popleft())
        for index, cell in enumerate(self.at(rank, step.dst or step.srcs[0])):
            value = operands[0][index]
            for operand in operands[1:]:
                value = self.combine(value, operand[index])
            memory[cell] = value
        return True

    def right(self, ordered: bool) -> bool:
        """Say whether every OUTPUT chunk holds what the collective wants."""
        c = self.collective
        for s, memory in zip(self.schedules, self.memory):
            for index in range(c.noutputs(s.rank, s.nranks, s.root, s.nchunks)):
                mask, item = c.wanted(s.rank, index, s.nranks, s.root), c.output_item(s.rank, index)
                parts = [self.datum(item, rank) for rank in range(s.nranks) if mask >> rank & 1]
                total, text = sum(part[0] for part in parts), "".join(part[1] for part in parts)
                got = memory.get((Buffer.OUTPUT, index), (0, "", frozenset()))
                if c.idempotent and got[2] != frozenset().union(*(part[2] for part in parts)):
                    return False
                if parts and not c.idempotent and (got[0] != total or (ordered and got[1] != text)):
                    return False
        return True


def data_right(row: Algorithm, schedules: Sequence[Schedule]) -> bool:
    for in_place in modes(row.collective):
        for seed in range(3):
            interpreter = Interpreter(schedules, in_place, random.Random(seed))
            interpreter.run()
            if not interpreter.right(row.ordered):
                return False
    return True


def refused(row: Algorithm, schedules: Sequence[Schedule]) -> bool:
    try:
        prove_schedules(row, schedules)
    except ScheduleError:
        return True
    return False


SHORT = {  # rows of the short run: one for each thing that schedules are made of
    "allreduce/ring",
    "allreduce/double_tree",
    "allreduce/recursive_doubling",
    "allreduce/hierarchical",
    "reduce/circulant",
    "bcast/chain",
    "bcast/hierarchical",
    "allgather/circulant",
    "reduce_scatter/direct",
    "alltoall/bruck",
    "gather/binomial",
    "scatter/direct",
    "scan/recursive_doubling",
    "barrier/dissemination",
    "neighbor_alltoall/hierarchical",
}


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=() if key in SHORT else pytest.mark.full) for key in CATALOGUE]
)
def test_wrong_schedules_are_refused(key: str, short: bool) -> None:
    row = CATALOGUE[key]
    rng = random.Random(key)
    found: Counter[str] = Counter()
    survivors = []
    for nranks in NRANKS:
        for root in {0, nranks - 2} if COLLECTIVES[row.collective].rooted else {0}:
            schedules = [
                schedule(row, nranks, rank, root, NCHUNKS, parse_nodes(NODES, nranks))
                for rank in range(nranks)
            ]
            assert data_right(row, schedules)
            candidates = list(mutants(schedules))
            for mutant in rng.sample(candidates, min(MOST // (3 if short else 1), len(candidates))):
                mutated = mutant.apply(schedules)
                if refused(row, mutated):
                    found["refused"] += 1
                    continue
                assert data_right(row, mutated), f"accepted and wrong, nranks {nranks}, root {root}: {mutant}"
                rule = equivalent(row, schedules[mutant.rank], mutant)
                found[f"set aside, {rule}" if rule else "shown equivalent by data only"] += 1
                if not rule:
                    survivors.append(f"nranks {nranks}, root {root}: {mutant}")
    print(key, dict(found))
    assert found["refused"] >= 0.99 * (found["refused"] + len(survivors)), (
        "accepted, right, under no rule:\n" + "\n".join(survivors)
    )
