"""Advice on a program that is right: what makes it slower than it could be."""

import math
from collections import Counter
from collections.abc import Iterator

from hpcoll.analysis.programs.proof import needless_waits
from hpcoll.analysis.verify import Proof
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import counted
from hpcoll.formats.program import FileProgram
from hpcoll.schedules.ir import Buffer, Op, cells_of

UNBALANCED = 1.25  # times the mean, from which on a gpu or a channel is named
MOST_PLACES = 3  # that a line names
# Bytes that the busiest gpu sends at least, as fractions of m; formulas of p gpus.
_LEAST_SENT = {
    "allreduce": lambda p: 2 * (p - 1) / p,
    "allgather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "alltoall": lambda p: (p - 1) / p,
    "bcast": lambda p: 1.0,
    "reduce": lambda p: 1.0,
    "scatter": lambda p: (p - 1) / p,
    "gather": lambda p: 1 / p,
}


def least_sent(collective: str, nranks: int) -> float | None:
    """Return the bytes that the busiest gpu sends at least, as a fraction of the whole message; None where no bound is known."""
    bound = _LEAST_SENT.get(collective)
    return bound(nranks) if bound and nranks > 1 else None


def least_rounds(program: FileProgram) -> int | None:
    """Return the fewest rounds with as many peers at once as its busiest gpu has; None where no bound is known."""
    peers = max(
        len({step.peer for steps in s.channels for step in steps if step.peer >= 0})
        for s in program.schedules
    )
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
    yield from _needless(program)
    yield from _scratch(program)


def _needless(program: FileProgram) -> Iterator[str]:
    """Return lines on dependencies that others imply."""
    waits = sum(step.op is Op.AFTER for s in program.schedules for steps in s.channels for step in steps)
    try:
        needless = needless_waits(program.schedules, program.meaning, in_place=program.modes[0])
    except ArgumentError:
        yield f"{waits} dependencies are too many to say which of them are needless"
        return
    if needless:
        places = "; ".join(program.where(*place) for place in needless[:MOST_PLACES])
        yield f"of {waits} dependencies others imply {len(needless)}: {places}{'; ...' * (len(needless) > MOST_PLACES)}"


def _balance(program: FileProgram) -> Iterator[str]:
    """Return lines on gpus, and on channels of a gpu, that send more than others."""
    by_channel: list[Counter[int]] = []
    for s in program.schedules:
        by_channel.append(Counter())
        for number, steps in enumerate(s.channels):
            by_channel[-1][s.links[number] if s.links else number] += sum(
                step.srcs[0].n for step in steps if step.op is Op.SEND
            )
    by_gpu = [sum(counts.values()) for counts in by_channel]
    mean = sum(by_gpu) / len(by_gpu)
    if max(by_gpu) > UNBALANCED * mean:
        yield f"gpu {by_gpu.index(max(by_gpu))} sends {counted(max(by_gpu), 'chunk')}, all gpus on average {mean:.4g}"
    for gpu, counts in enumerate(by_channel):
        used = {channel: n for channel, n in counts.items() if n}
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
                    for _, cell in cells_of(run):
                        uses[cell].add(step.op)
        unread, copied = sum(not ops for ops in uses.values()), sum(ops == {Op.COPY} for ops in uses.values())
        if unread:
            yield f"gpu {s.rank} never reads {unread} of {counted(len(s.scratch), 'chunk')} of scratch"
        if copied:
            yield f"gpu {s.rank} only copies {counted(copied, 'chunk')} of scratch to where they are wanted, and could receive them there"
        if unread or copied:
            return
