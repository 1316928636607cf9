"""The program that a trace tells of: for each rank the calls to which it comes and for which it waits, and how long it computes between."""

from collections import defaultdict
from typing import NamedTuple, TypeAlias

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.cli.trace.reading import CALL, IN_WAIT, REGION, CallKind, RunTrace
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, numbered

COMES, WAITS, MARKS = 1, 2, 4  # bits of a stop: the rank comes to a call, waits for it; a step begins or ends
CallKey: TypeAlias = tuple[str, str, int, int]  # communicator, method, lane of a call in flight or 0, number
_US = 1e-6  # of times in traces


class TracedCall(NamedTuple):
    """A collective that all ranks of a communicator have made."""

    collective: str
    algorithm: str  # as the trace says it
    nbytes: int  # m as the catalogue counts it; 0 where the trace does not say it
    root: int  # position among the members; 0 where there is none
    members: tuple[int, ...]
    comes: np.ndarray  # seconds at which each member came
    leaves: np.ndarray  # and left


class Stop(NamedTuple):
    """A point of a rank's program; a blocking call is one stop, a call in flight two."""

    what: int  # bits
    number: (
        int  # position among the calls; of step ``i`` ``2 i`` where it begins, and ``2 i + 1`` where it ends
    )
    gap: float  # seconds of computing before it


class _Point(NamedTuple):
    """A stop, with its times in seconds; ``order`` is among those that begin at once."""

    begin: float
    order: int
    what: int
    number: int
    end: float


class ReplayTimes(NamedTuple):
    """The times of a run, in seconds; a step's is the mean of all ranks'. A program without steps is one step."""

    run: float
    steps: np.ndarray


class TracedProgram(NamedTuple):
    """The program of all ranks, and the times that it took."""

    ranks: list[int]  # that the trace has slices of, ascending; elsewhere ranks are positions in it
    nodes: Nodes
    calls: list[TracedCall]
    stops: list[list[Stop]]  # of each rank
    nsteps: int
    incomplete: int  # calls that are not known of all ranks, and count as computing
    measured: ReplayTimes


def program_of(trace: RunTrace, region: str) -> TracedProgram:
    """Return the program of a trace, in steps that are regions of a name; ArgumentError where it has no call of several ranks."""
    ranks = np.unique(trace.rank[trace.rank >= 0])  # others may have numbers up to 2**31
    trace, nranks = trace._replace(rank=np.searchsorted(ranks, trace.rank)), len(ranks)
    positions, calls, incomplete = _calls(trace)
    if not calls:
        raise ArgumentError(
            "expected a trace with calls that all ranks of a communicator have made, got none"
        )
    points, steps = _points(trace, positions, nranks), _steps(trace, region, nranks)
    nsteps = min((len(its_steps) for its_steps in steps if its_steps), default=0)
    for rank, its_steps in enumerate(steps):
        for i, (begin, end) in enumerate(its_steps[:nsteps]):
            points[rank] += [_Point(begin, -1, MARKS, 2 * i, begin), _Point(end, 1, MARKS, 2 * i + 1, end)]
    first, last = (
        min(min(its_points).begin for its_points in points if its_points),
        max(point.end for its_points in points for point in its_points),
    )
    host = {row.rank: row.host for row in trace.rows}
    lengths = [[end - begin for begin, end in its_steps[:nsteps]] for its_steps in steps if its_steps]
    measured = ReplayTimes(last - first, np.mean(lengths, axis=0) if nsteps else np.array([last - first]))
    nodes = numbered(host[rank] for rank in ranks.tolist())
    return TracedProgram(
        ranks.tolist(),
        nodes,
        calls,
        [_stops(its_points, first) for its_points in points],
        nsteps,
        incomplete,
        measured,
    )


def _points(trace: RunTrace, positions: dict[CallKey, int], nranks: int) -> list[list[_Point]]:
    """Return where each rank comes to calls and waits for them."""
    points: list[list[_Point]] = [[] for _ in range(nranks)]
    waits = dict[tuple[int, int], float]()  # when a rank began to wait for a call in flight
    for category in (IN_WAIT, CALL):
        for i in np.flatnonzero(trace.category == category).tolist():
            position, rank, begin = (
                positions.get(_key(trace, i)),
                int(trace.rank[i]),
                float(trace.start[i]) * _US,
            )
            if position is None:
                continue
            end = begin + float(trace.length[i]) * _US
            if category == IN_WAIT:
                waits[position, rank] = begin
                points[rank].append(_Point(begin, 0, WAITS, position, end))
            elif trace.lane[i]:  # one that waits for its turn among calls in flight begins late
                begin = min(begin, waits.get((position, rank), begin))
                points[rank].append(_Point(begin, 0, COMES, position, begin))
            else:
                points[rank].append(_Point(begin, 0, COMES | WAITS, position, end))
    return points


def _key(trace: RunTrace, i: int) -> CallKey:
    """Return what the slices of one call have in common."""
    kind, waits = trace.kinds[trace.kind[i]], trace.category[i] == IN_WAIT
    return (
        kind.comm,
        kind.name.removeprefix("Wait "),
        kind.lane if waits or trace.lane[i] else 0,
        int(trace.number[i]),
    )


def _calls(trace: RunTrace) -> tuple[dict[CallKey, int], list[TracedCall], int]:
    """Return the calls that all their ranks have made, their positions by `_key`, and the number of other calls."""
    members, found = defaultdict[str, set[int]](set), defaultdict[CallKey, dict[int, int]](dict)
    for i in np.flatnonzero((trace.category == CALL) & (trace.number >= 0)).tolist():
        key = _key(trace, i)
        members[key[0]].add(int(trace.rank[i]))
        found[key][int(trace.rank[i])] = i
    positions, calls = dict[CallKey, int](), list[TracedCall]()
    for key, slices in found.items():
        ranks = sorted(slices)
        kind = trace.kinds[trace.kind[slices[ranks[0]]]]
        collective = _collective(kind.name)
        if set(ranks) == members[key[0]] and collective:
            at = [slices[rank] for rank in ranks]
            comes = trace.start[at] * _US
            positions[key] = len(calls)
            calls.append(_call(kind, collective, tuple(ranks), comes, comes + trace.length[at] * _US))
    return positions, calls, len(found) - len(calls)


def _call(
    kind: CallKind, collective: str, ranks: tuple[int, ...], comes: np.ndarray, leaves: np.ndarray
) -> TracedCall:
    blocks = len(ranks) if COLLECTIVES[collective].blocks else 1
    root = min(max(kind.root, 0), len(ranks) - 1)
    return TracedCall(collective, kind.algorithm, max(kind.nbytes, 0) * blocks, root, ranks, comes, leaves)


def _collective(name: str) -> str:
    """Return the collective of a method's name in any of its forms; the empty string for what is none.

    >>> [_collective(name) for name in ("Iallgatherv", "Reduce_scatter_block", "Alltoallw_init", "scan", "x")]
    ['allgather', 'reduce_scatter', 'alltoall', 'scan', '']
    """
    plain = name.lower().removesuffix("_init").removesuffix("_block")
    forms = (plain, plain[:-1], plain[1:], plain[1:-1])
    return next((form for form in forms if form in COLLECTIVES), "")


def _steps(trace: RunTrace, region: str, nranks: int) -> list[list[tuple[float, float]]]:
    """Return begin and end of each step of each rank."""
    steps: list[list[tuple[float, float]]] = [[] for _ in range(nranks)]
    named = np.array([kind.name.rpartition("/")[2] == region or kind.name == region for kind in trace.kinds])
    at = np.flatnonzero((trace.category == REGION) & named[trace.kind])
    for i in at[np.argsort(trace.start[at], kind="stable")].tolist():
        begin = trace.start[i] * _US
        steps[trace.rank[i]].append((begin, begin + trace.length[i] * _US))
    return steps


def _stops(points: list[_Point], first: float) -> list[Stop]:
    """Return the stops of a rank; ``first``: when the first rank's program begins."""
    stops, free = list[Stop](), first
    for begin, _, what, number, end in sorted(points):
        stops.append(Stop(what, number, max(0.0, begin - free)))
        free = max(free, end)
    return stops
