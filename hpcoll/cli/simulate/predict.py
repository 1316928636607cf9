"""Predicted time of a collective on a network of nodes, or on the cache domains of one: its schedules, simulated by compiled code.

Where all ranks run the same steps relative to themselves (ring, circulant, dissemination, ...), the ranks of one node are built and
simulated, and stand for all. ``exact`` simulates every rank.
"""

import ctypes
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcoll.analysis import event_loop, event_table
from hpcoll.analysis.cost import Levels
from hpcoll.analysis.event_loop import Simulation, prepare
from hpcoll.analysis.event_table import EventTable, alike, build, period, placed
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import MAX_CHUNKS
from hpcoll.kernels.machine_code import load_all
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes, parts
from hpcoll.schedules.row import Algorithm, schedule

# the arrays of a simulation, each with its length, and three numbers
_PARAMETERS = (*[ctypes.c_void_p, ctypes.c_int64] * 10, ctypes.c_double, ctypes.c_int64, ctypes.c_int64)
_MADE_OF = (
    Path(__file__).with_name("loop_bodies.py"),
    *(Path(str(module.__file__)) for module in (event_loop, event_table)),
)


def _compile(symbol: str) -> bytes:
    from hpcoll.cli.simulate.loop_bodies import loop_file

    return loop_file(symbol)


@cache
def compiled_loop() -> Any:
    """Return `event_loop.simulate` as a function of C; the first run on a machine compiles it."""
    (at,) = load_all({"simulate": _compile}, _MADE_OF)
    return ctypes.CFUNCTYPE(ctypes.c_double, *_PARAMETERS)(at)


def simulate(s: Simulation) -> float:
    """Return the seconds until the last event ends; -1 where a lane waits for ever."""
    words = [
        word
        for value in s
        for word in ((value.ctypes.data, len(value)) if isinstance(value, np.ndarray) else (value,))
    ]
    return float(compiled_loop()(*words))


MAX_MESSAGES = 1_500_000  # of one simulation of segments; longer pipelines are extrapolated
MAX_STEPS = 20_000_000  # that are built
MAX_SPLIT = 1 << 18  # steps of all ranks up to which ranks whose messages are in one run or two are all built
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
    joined: bool = (
        False  # the ranks are alike but for messages that are in two runs on some; each counts as one message
    )


def subject(
    row: Algorithm,
    nodes: Nodes,
    root: int = 0,
    nchunks: int = 1,
    *,
    domains: Nodes = (),
    exact: bool = False,
    end: float = math.inf,
) -> Subject:
    """Build the subject of a simulation, each node one cache domain by default; ``exact``: every rank, also where some stand for all.

    ArgumentError: it would have more than `MAX_STEPS` steps or `MAX_CHUNKS` chunks. TimeoutError: it took until the time ``end``.
    """
    nranks, domains = len(nodes), domains or nodes
    if nchunks > MAX_CHUNKS:
        raise ArgumentError(
            f"{row.key} would have {nchunks:,} chunks, more than {MAX_CHUNKS:,}: segments must be longer"
        )

    def one(rank: int) -> Schedule:
        if time.perf_counter() > end:
            raise TimeoutError
        return schedule(row, nranks, rank, root, nchunks, placement)

    placement = parts(nodes, domains)
    # a root is like no other rank
    every = nranks if exact or COLLECTIVES[row.collective].rooted else max(period(nodes), period(domains))
    steps = max(sum(map(len, one(rank).channels)) for rank in {0, nranks // 2})
    few = every < nranks and alike(one, nranks, every, joined=False)
    joined = (
        every < nranks and not few and steps * nranks > MAX_SPLIT and alike(one, nranks, every, joined=True)
    )
    nbuilt = every if few or joined else nranks
    steps *= nbuilt
    if steps > MAX_STEPS:
        raise ArgumentError(
            f"{row.key} on {nranks} ranks has some {steps:,} steps that must be built one by one, more than {MAX_STEPS:,}"
        )
    try:
        table = build(map(one, range(nbuilt)), nranks, joined=joined)
    except ScheduleError:  # a rank sends as one run that wraps what another receives as two
        table = build(map(one, range(nranks)), nranks, joined=False)
    return Subject(row, nodes, domains, placed(table, nodes, domains), joined)


def predict(
    subject: Subject,
    nbytes: float,
    levels: Levels,
    segments: int = 1,
    window: int = 1,
    *,
    exact: bool = False,
    comes: Sequence[float] = (),
    most_messages: int = MAX_MESSAGES,
) -> Prediction:
    """Simulate a collective on a message of ``nbytes``, in segments that follow one another, with ``window`` lanes in flight.

    ``exact``: simulate all segments; ArgumentError where these are too many. ``comes``: seconds at which each rank comes to the call; of a
    subject that has all ranks. The prediction counts from the last of them. ``most_messages``: of longer pipelines the first segments.
    """
    table = subject.table
    per_segment = table.nmessages
    stands_for = per_segment * segments * table.nranks // table.nbuilt
    most = max(1, most_messages // max(1, per_segment))
    some = max(4, min(most, 8 * window))

    def seconds(count: int) -> float:
        simulation = prepare(
            table, costs_of(subject.nodes, levels), nbytes / segments, count, window, comes=comes
        )
        found = float(simulate(simulation))
        assert found >= 0, f"{subject.row.key} waits for ever"
        return found - max(comes, default=0.0)

    if exact and segments * len(table.rows) > MAX_TIMES:
        raise ArgumentError(
            f"{subject.row.key} has {segments:,} segments of {len(table.rows):,} steps, too many to simulate all"
        )
    if exact or segments <= max(most, some):
        return Prediction(seconds(segments), per_segment * segments, stands_for, extrapolated=False)
    long, short = some, some // 2
    after, before = seconds(long), seconds(short)
    pace = (after - before) / (long - short)
    return Prediction(
        after + (segments - long) * pace, per_segment * (long + short), stands_for, extrapolated=True
    )


def costs_of(nodes: Nodes, levels: Levels) -> Levels:
    """Return costs by level: ranks with a node each share no link with others, and all their messages cost the same."""
    return Levels(levels.network, levels.network) if len(set(nodes)) == len(nodes) else levels
