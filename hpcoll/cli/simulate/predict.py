"""Predicted time of a collective on a network of nodes, or on the cache domains of one: its schedules, simulated by compiled code.

Where all ranks run the same steps relative to themselves (ring, circulant, dissemination, ...), the ranks of one node are built and
simulated, and stand for all. ``exact`` simulates every rank.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from hpcoll.analysis.cost import Levels
from hpcoll.analysis.event_loop import prepare
from hpcoll.analysis.event_table import EventTable, alike, build, levels_of, links_of, period, placed
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import MAX_CHUNKS
from hpcoll.cli.simulate.compiled_loop import simulate, simulate_in_lockstep
from hpcoll.schedules.placement import Nodes, parts
from hpcoll.schedules.row import Algorithm, schedule

MAX_MESSAGES = 1_500_000  # of one simulation of segments; longer pipelines are extrapolated
MAX_STEPS = 20_000_000  # that are built
MAX_TIMES = 100_000_000  # that one simulation remembers, a step of a segment each


class Prediction(NamedTuple):
    """The result of a simulation."""

    seconds: float
    simulated: int  # messages that were simulated
    stands_for: int  # messages of all ranks and segments
    extrapolated: bool  # only the first segments were simulated, and the rest follows at their pace


class Subject(NamedTuple):
    """The subject of a simulation: a catalogue row's schedules on nodes."""

    row: Algorithm
    nodes: Nodes
    domains: Nodes
    table: EventTable  # steps of all ranks, or of those that stand for them


def subject(row: Algorithm, nodes: Nodes, root: int = 0, nchunks: int = 1, *, domains: Nodes = (), exact: bool = False) -> Subject:
    """Build the subject of a simulation, each node one cache domain by default; ``exact``: every rank, also where some stand for all.

    ArgumentError: it would have more than `MAX_STEPS` steps or `MAX_CHUNKS` chunks.
    """
    nranks, domains = len(nodes), domains or nodes
    if nchunks > MAX_CHUNKS:
        raise ArgumentError(f"{row.key} would have {nchunks:,} chunks, more than {MAX_CHUNKS:,}: segments must be longer")

    one = partial(schedule, row, nranks, root=root, nchunks=nchunks, nodes=parts(nodes, domains))
    every = max(period(nodes), period(domains))
    few = not exact and every < nranks and alike(one, nranks, every)
    nbuilt = every if few else nranks
    steps = max(sum(map(len, one(rank).channels)) for rank in {0, nranks // 2}) * nbuilt
    if steps > MAX_STEPS:
        raise ArgumentError(f"{row.key} on {nranks} ranks has some {steps:,} steps that must be built one by one, more than {MAX_STEPS:,}")
    try:
        table = build(map(one, range(nbuilt)), nranks, joined=True)
    except ScheduleError:  # a rank sends as one run that wraps what another receives as two
        table = build(map(one, range(nranks)), nranks, joined=False)
    return Subject(row, nodes, domains, placed(table, nodes, domains))


def predict(subject: Subject, nbytes: float, levels: Levels, segments: int = 1, window: int = 1, *, exact: bool = False) -> Prediction:
    """Simulate a collective on a message of ``nbytes``, in segments that follow one another, with ``window`` lanes in flight.

    ``exact``: simulate all segments; ArgumentError where these are too many.
    """
    table = subject.table
    per_segment = table.nmessages
    stands_for = per_segment * segments * table.nranks // table.nbuilt
    most = max(1, MAX_MESSAGES // max(1, per_segment))
    some = max(4, min(most, 8 * window))

    def seconds(count: int) -> float:
        simulation = prepare(table, _costs_of(subject.nodes, levels), nbytes / segments, count, window)
        found = float(simulate(simulation))
        assert found >= 0, f"{subject.row.key} waits for ever"
        return found

    if exact and segments * len(table.rows) > MAX_TIMES:
        raise ArgumentError(f"{subject.row.key} has {segments:,} segments of {len(table.rows):,} steps, too many to simulate all")
    if exact or segments <= max(most, some):
        return Prediction(seconds(segments), per_segment * segments, stands_for, extrapolated=False)
    long, short = some, some // 2
    after, before = seconds(long), seconds(short)
    pace = (after - before) / (long - short)
    return Prediction(after + (segments - long) * pace, per_segment * (long + short), stands_for, extrapolated=True)


def in_lockstep(subject: Subject) -> bool:
    """Say whether `predict_in_lockstep` can simulate it: all ranks run the same steps relative to themselves, on one channel."""
    return subject.table.nbuilt < subject.table.nranks and subject.table.nchannels == 1 and not subject.row.placed


def predict_in_lockstep(subject: Subject, nbytes: float, levels: Levels) -> Prediction:
    """Simulate every rank of a schedule that few ranks stand for, all in lockstep; ArgumentError where `in_lockstep` says no."""
    row, nodes, domains, table = subject
    if not in_lockstep(subject):
        raise ArgumentError(f"{row.key} cannot be simulated in lockstep: its ranks differ, or it has several channels")
    one = build([schedule(row, table.nranks, 0, 0, table.nchunks, parts(nodes, domains))], table.nranks, joined=True)
    simulation = prepare(one, _costs_of(nodes, levels), nbytes, 1, 1)
    simulation = simulation._replace(clocks=np.zeros((table.nranks, 5)), links=np.zeros((table.nlinks, 2)))
    ranks = np.arange(table.nranks)
    levels_by_row = np.array([levels_of(nodes, domains, ranks, np.roll(ranks, -max(0, distance))) for distance in one.peers])
    links_by_row = np.array([links_of(nodes, domains, found, ranks) for found in levels_by_row])
    seconds = simulate_in_lockstep(simulation, levels_by_row, links_by_row, one.peers)
    return Prediction(float(seconds), one.nmessages * table.nranks, one.nmessages * table.nranks, extrapolated=False)


def _costs_of(nodes: Nodes, levels: Levels) -> Levels:
    """Return costs by level: ranks with a node each share no link with others, and all their messages cost the same."""
    return Levels(levels.network, levels.network) if len(set(nodes)) == len(nodes) else levels
