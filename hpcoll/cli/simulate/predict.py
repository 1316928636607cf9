"""Predicted time of a collective on a network of nodes, or on the cache domains of one: its schedules, simulated by compiled code.

Where all ranks run the same steps relative to themselves (ring, circulant, dissemination, ...), the ranks of one node are built and
simulated, and stand for all. ``exact`` simulates every rank.
"""

import ctypes
import math
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcoll.analysis import event_loop, event_table
from hpcoll.analysis.cost import Levels
from hpcoll.analysis.event_loop import LEFT, Simulation, prepare
from hpcoll.analysis.event_table import EventTable, alike, build, levels_of, links_of, period, placed
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.base.text import MAX_CHUNKS
from hpcoll.kernels.machine_code import load_all
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes, parts
from hpcoll.schedules.row import Algorithm, schedule

# an array has its length with it
_ARRAY, _REAL, _INTEGER = (
    (ctypes.c_void_p, ctypes.c_int64),
    (ctypes.c_double,),
    (ctypes.c_int64,),
)
_PARAMETERS = {
    "simulate": (*[_ARRAY] * 10, _REAL, _INTEGER, _INTEGER),
    "step_all": (*[_ARRAY] * 5, _INTEGER, _REAL, _ARRAY, _ARRAY),
}
_MADE_OF = (
    Path(__file__).with_name("loop_bodies.py"),
    *(Path(str(module.__file__)) for module in (event_loop, event_table)),
)


def _compile(name: str, symbol: str) -> bytes:
    from hpcoll.cli.simulate.loop_bodies import loop_file

    return loop_file(name, symbol)


@cache
def compiled_loops() -> dict[str, Any]:
    """Return the loops as functions of C by their names; the first run on a machine compiles them."""
    found = zip(
        _PARAMETERS.items(), load_all({name: partial(_compile, name) for name in _PARAMETERS}, _MADE_OF)
    )
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_double, *(word for kind in kinds for word in kind))(at)
        for (name, kinds), at in found
    }


def _call(name: str, *arguments: Any) -> float:
    """Call a loop with contiguous arrays of the types that `Simulation` and `event_loop.step_all` name."""
    words = [
        word
        for one in arguments
        for word in ((one.ctypes.data, len(one)) if isinstance(one, np.ndarray) else (one,))
    ]
    return float(compiled_loops()[name](*words))


def simulate(s: Simulation) -> float:
    """Return the seconds until the last event ends; -1 where a lane waits for ever."""
    return _call("simulate", *s)


def simulate_in_lockstep(
    s: Simulation, levels: np.ndarray, links_of: np.ndarray, distances: np.ndarray
) -> float:
    """Return the seconds of a schedule whose ranks all run the same steps relative to themselves: all ranks, step by step.

    ``s`` has one segment: rows of rank 0 with one channel, clocks of all ranks, links of all nodes. ``levels`` and ``links_of`` have LEVEL
    and LINK of each rank's message in each row, ``distances`` for each row the distance in rank order from a sender to its peer.
    """
    now = np.zeros(len(s.clocks))
    arrivals, left = dict[int, np.ndarray](), dict[int, np.ndarray]()  # by row, of all ranks
    for row in range(len(s.rows)):
        op, guard = int(s.rows[row, event_table.OP]), int(s.rows[row, event_table.GUARD])
        if op != event_table.SEND and guard >= 0:
            np.maximum(now, left[guard], out=now)
        arrives = (
            arrivals.pop(row) if op in (event_table.RECV, event_table.RECV_REDUCE) else np.zeros_like(now)
        )
        nbytes = float(s.rows[row, event_table.AMOUNT]) * s.chunk
        _call("step_all", s.costs, s.clocks, s.links, links_of[row], levels[row], op, nbytes, now, arrives)
        if op == event_table.SEND:
            arrivals[int(s.rows[row, event_table.OTHER])] = np.roll(arrives, distances[row])
            if guard >= 0:
                left[row] = s.clocks[:, LEFT].copy()
    return float(max(now.max(), s.clocks.max()))


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
) -> Prediction:
    """Simulate a collective on a message of ``nbytes``, in segments that follow one another, with ``window`` lanes in flight.

    ``exact``: simulate all segments; ArgumentError where these are too many. ``comes``: seconds at which each rank comes to the call; of a
    subject that has all ranks. The prediction counts from the last of them.
    """
    table = subject.table
    per_segment = table.nmessages
    stands_for = per_segment * segments * table.nranks // table.nbuilt
    most = max(1, MAX_MESSAGES // max(1, per_segment))
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


def in_lockstep(subject: Subject) -> bool:
    """Say whether `predict_in_lockstep` can simulate it: all ranks run the same steps relative to themselves, on one channel."""
    table = subject.table
    return (
        table.nbuilt < table.nranks and table.nchannels == 1 and not subject.row.placed and not subject.joined
    )


def predict_in_lockstep(subject: Subject, nbytes: float, levels: Levels) -> Prediction:
    """Simulate every rank of a schedule that few ranks stand for, all in lockstep; ArgumentError where `in_lockstep` says no."""
    row, nodes, domains, table, _ = subject
    if not in_lockstep(subject):
        raise ArgumentError(
            f"{row.key} cannot be simulated in lockstep: its ranks differ, or it has several channels"
        )
    one = build(
        [schedule(row, table.nranks, 0, 0, table.nchunks, parts(nodes, domains))], table.nranks, joined=False
    )
    simulation = prepare(one, costs_of(nodes, levels), nbytes, 1, 1)
    simulation = simulation._replace(clocks=np.zeros((table.nranks, 5)), links=np.zeros((table.nlinks, 2)))
    ranks = np.arange(table.nranks)
    levels_by_row = np.array(
        [levels_of(nodes, domains, ranks, np.roll(ranks, -max(0, distance))) for distance in one.peers]
    )
    links_by_row = np.array([links_of(nodes, domains, found, ranks) for found in levels_by_row])
    seconds = simulate_in_lockstep(simulation, levels_by_row, links_by_row, one.peers)
    return Prediction(
        float(seconds), one.nmessages * table.nranks, one.nmessages * table.nranks, extrapolated=False
    )


def costs_of(nodes: Nodes, levels: Levels) -> Levels:
    """Return costs by level: ranks with a node each share no link with others, and all their messages cost the same."""
    return Levels(levels.network, levels.network) if len(set(nodes)) == len(nodes) else levels
