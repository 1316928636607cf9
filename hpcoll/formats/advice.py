"""Advice on a program that is right: what makes it slower than it could be."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator

import numpy as np

from hpcoll.analysis.verify import Proof
from hpcoll.base.text import counted
from hpcoll.formats.program import FileProgram
from hpcoll.schedules.ir import Buffer, Op, Schedule, Step

UNBALANCED = 1.25  # times the mean, from which on a gpu or a channel is named
MOST_PLACES = 3  # that a line names
MAX_CLOCKS = 1 << 27  # channels times messages and dependencies, up to which dependencies are looked at
# Bytes that the busiest gpu sends at least, as fractions of m; formulas of p gpus.
_LEAST_SENT = {
    "allreduce": lambda p: 2 * (p - 1) / p, "allgather": lambda p: (p - 1) / p, "reduce_scatter": lambda p: (p - 1) / p,
    "alltoall": lambda p: (p - 1) / p, "bcast": lambda p: 1.0, "reduce": lambda p: 1.0, "scatter": lambda p: (p - 1) / p,
    "gather": lambda p: 1 / p,
}  # fmt: skip


def least_sent(collective: str, nranks: int) -> float | None:
    """Return the bytes that the busiest gpu sends at least, as a fraction of the whole message; None where no bound is known."""
    bound = _LEAST_SENT.get(collective)
    return bound(nranks) if bound and nranks > 1 else None


def least_rounds(program: FileProgram) -> int | None:
    """Return the fewest rounds with as many peers at once as its busiest gpu has; None where no bound is known."""
    peers = max(len({step.peer for steps in s.channels for step in steps if step.peer >= 0}) for s in program.schedules)
    known = program.collective in _LEAST_SENT and program.nranks > 1
    return math.ceil(math.log(program.nranks, peers + 1) - 1e-9) if known else None


def advice(program: FileProgram, proof: Proof) -> Iterator[str]:
    """Return lines of advice on a program that was proven."""
    sent, fewest = least_sent(program.collective, program.nranks), least_rounds(program)
    has = proof.chunks_sent / program.schedules[0].nchunks
    if sent and has > 1.001 * sent:
        yield f"the busiest gpu sends {has:.4g} m, {sent:.4g} m would do; that matters in long messages"
    if fewest and proof.rounds > fewest:
        yield f"{proof.rounds} rounds, {fewest} would do where a gpu has as many peers at once; that matters in short messages"
    yield from _balance(program)
    steps = [step for s in program.schedules for steps in s.channels for step in steps]
    waits = sum(step.op is Op.AFTER for step in steps)
    if (waits + proof.messages) * sum(len(s.channels) for s in program.schedules) > MAX_CLOCKS:
        yield f"{waits} dependencies are too many to say which of them are needless"
    elif needless := needless_waits(program):
        places = "; ".join(program.where(*place) for place in needless[:MOST_PLACES])
        yield f"of {waits} dependencies others imply {len(needless)}: {places}{'; ...' * (len(needless) > MOST_PLACES)}"
    yield from _scratch(program)


def _balance(program: FileProgram) -> Iterator[str]:
    """Return lines on gpus, and on channels of a gpu, that send more than others."""
    by_channel: list[Counter[int]] = []
    for s in program.schedules:
        by_channel.append(Counter())
        for number, steps in enumerate(s.channels):
            by_channel[-1][s.links[number] if s.links else number] += sum(step.srcs[0].n for step in steps if step.op is Op.SEND)
    by_gpu = [sum(found.values()) for found in by_channel]
    mean = sum(by_gpu) / len(by_gpu)
    if max(by_gpu) > UNBALANCED * mean:
        yield f"gpu {by_gpu.index(max(by_gpu))} sends {counted(max(by_gpu), 'chunk')}, all gpus on average {mean:.4g}"
    for gpu, found in enumerate(by_channel):
        used = {channel: n for channel, n in found.items() if n}
        mean = sum(used.values()) / max(1, len(used))
        if used and max(used.values()) > UNBALANCED * mean:
            busiest = max(used, key=lambda channel: used[channel])
            yield f"gpu {gpu} sends {counted(used[busiest], 'chunk')} in channel {busiest}, in all of its channels on average {mean:.4g}"
            return


def _scratch(program: FileProgram) -> Iterator[str]:
    """Return lines on scratch that a gpu does not need."""
    for s in program.schedules:
        uses: dict[int, set[Op]] = {cell: set() for cell in range(len(s.scratch))}
        for step in (step for steps in s.channels for step in steps):
            for run in step.srcs:
                if run.buffer is Buffer.SCRATCH:
                    for cell in range(run.index, run.index + run.n):
                        uses[cell].add(step.op)
        unread, copied = sum(not ops for ops in uses.values()), sum(ops == {Op.COPY} for ops in uses.values())
        if unread:
            yield f"gpu {s.rank} never reads {unread} of {counted(len(s.scratch), 'chunk')} of scratch"
        if copied:
            yield f"gpu {s.rank} only copies {counted(copied, 'chunk')} of scratch to where they are wanted, and could receive them there"
        if unread or copied:
            return


_Place = tuple[int, int, int]  # rank, channel, step


def needless_waits(program: FileProgram) -> list[_Place]:
    """Return the places of AFTER steps whose order other steps and messages imply already."""
    return _Clocks(program.schedules).needless()


class _Clocks:
    """The vector clocks of all channels: for each channel of any rank, the number of its steps that have happened before."""

    def __init__(self, schedules: Iterable[Schedule]) -> None:
        self.steps: dict[tuple[int, int], tuple[Step, ...]] = {}
        self.links: dict[tuple[int, int], int] = {}
        for s in schedules:
            for channel, steps in enumerate(s.channels):
                self.steps[s.rank, channel] = steps
                self.links[s.rank, channel] = s.links[channel] if s.links else channel
        self.numbers = {key: number for number, key in enumerate(self.steps)}
        self.clocks = np.zeros((len(self.steps), len(self.steps)), np.int32)
        self.kept: dict[_Place, np.ndarray] = {}  # behind the steps that others wait for
        self.awaited = {(rank, *step.after) for (rank, _), steps in self.steps.items() for step in steps if step.op is Op.AFTER}
        self.under_way: dict[tuple[int, int, int], deque[np.ndarray]] = defaultdict(deque)
        self.found: list[_Place] = []

    def needless(self) -> list[_Place]:
        """Run all channels to their ends, and return the places of waits that others imply."""
        pcs = dict.fromkeys(self.steps, 0)
        moved = True
        while moved:
            moved = False
            for key in self.steps:
                start = pcs[key]
                while pcs[key] < len(self.steps[key]) and (end := self._run(key, pcs[key])):
                    pcs[key] = end
                moved |= pcs[key] > start
        return sorted(self.found)

    def _run(self, key: tuple[int, int], pc: int) -> int:
        """Run a step, or a group of waits, and return the position behind it; 0: it must wait."""
        (rank, channel), steps = key, self.steps[key]
        step, clock, end = steps[pc], self.clocks[self.numbers[key]], pc + 1
        if step.op is Op.AFTER:
            while end < len(steps) and steps[end].op is Op.AFTER:
                end += 1
            if any((rank, *wait.after) not in self.kept for wait in steps[pc:end]):
                return 0
            self._wait(key, pc, end)
        elif step.op is Op.SEND:
            clock[self.numbers[key]] = end
            self.under_way[rank, step.peer, self.links[key]].append(clock.copy())
        elif step.op in (Op.RECV, Op.RECV_REDUCE):
            arrived = self.under_way[step.peer, rank, self.links[key]]
            if not arrived:
                return 0
            np.maximum(clock, arrived.popleft(), out=clock)
        clock[self.numbers[key]] = end
        for done in range(pc + 1, end + 1):
            if (rank, channel, done) in self.awaited:
                self.kept[rank, channel, done] = clock.copy()
        return end

    def _wait(self, key: tuple[int, int], pc: int, end: int) -> None:
        """Take down which of a group of waits the others and the channel's own clock imply."""
        (rank, channel), clock = key, self.clocks[self.numbers[key]]
        left: dict[int, _Place] = {at: (rank, *self.steps[key][at].after) for at in range(pc, end)}
        for at, wait in list(left.items()):
            known = [clock, *(self.kept[other] for other in left.values() if other is not wait)]
            if any(found[self.numbers[wait[:2]]] >= wait[2] for found in known):
                self.found.append((rank, channel, at))
                del left[at]
        for wait in left.values():
            np.maximum(clock, self.kept[wait], out=clock)
