"""The verifier against wrong schedules: drop, duplicate, redirect one step of one rank, or name another chunk, and it must object."""

import random
from collections.abc import Iterator, Sequence

import pytest

from hpcoll.analysis.prove import prove_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Chunk, Schedule, Step
from hpcoll.schedules.placement import parse_nodes
from hpcoll.schedules.row import Algorithm, schedule

NRANKS = (2, 3, 4, 5, 7, 8)
MOST = 400  # mutants of one instance, a third in the short run; more are sampled
NCHUNKS = 3  # for rows that take any number
NODES = "2"  # neighbours in pairs, for rows that look at nodes: what is composed of flat schedules is mutated, too


def mutants(step: Step, s: Schedule) -> Iterator[tuple[Step, ...]]:
    """Return what may stand in the place of a step. A copy to scratch may be left unused, and signals of a barrier are alike."""
    if step.peer >= 0 or (step.dst and step.dst.buffer == Buffer.OUTPUT):
        yield ()
    if step.peer < 0:
        return
    yield step, step
    for peer in set(range(s.nranks)) - {s.rank, step.peer}:
        yield (step._replace(peer=peer),)
    if COLLECTIVES[s.collective].idempotent:
        return
    if step.dst:
        yield (step._replace(dst=beside(step.dst)),)
    else:
        yield (step._replace(srcs=(beside(step.srcs[0]), *step.srcs[1:])),)


def beside(chunk: Chunk) -> Chunk:
    return chunk._replace(index=chunk.index + (-1 if chunk.index else 1))


def every_mutant(schedules: Sequence[Schedule]) -> Iterator[tuple[str, list[Schedule]]]:
    for s in schedules:
        for c, steps in enumerate(s.channels):
            for i, step in enumerate(steps):
                for place in mutants(step, s):
                    changed = (*steps[:i], *place, *steps[i + 1 :])
                    victim = s._replace(channels=(*s.channels[:c], changed, *s.channels[c + 1 :]))
                    title = f"rank {s.rank}, channel {c}, step {i}: {step} -> {' | '.join(map(str, place))}"
                    yield title, [*schedules[: s.rank], victim, *schedules[s.rank + 1 :]]


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
    row, rng = CATALOGUE[key], random.Random(key)
    for nranks in NRANKS:
        for root in {0, nranks - 2} if COLLECTIVES[row.collective].rooted else {0}:
            nodes = parse_nodes(NODES, nranks)
            schedules = [schedule(row, nranks, rank, root, NCHUNKS, nodes) for rank in range(nranks)]
            assert not refused(row, schedules)
            found = list(every_mutant(schedules))
            for title, mutated in rng.sample(found, min(MOST // (3 if short else 1), len(found))):
                assert refused(row, mutated), f"accepted: nranks {nranks}, root {root}: {title}"
