"""The replay of a traced program: ranks compute as long as they did, or as others did, and its calls run in the simulator."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from statistics import median

import numpy as np

from hpcoll.analysis.cost import Levels
from hpcoll.analysis.event_loop import LEAVES, prepare
from hpcoll.base.errors import ArgumentError
from hpcoll.cli.simulate.cells import Place, best_segment_of, chunks_and_segments, window
from hpcoll.cli.simulate.predict import Subject, costs_of, simulate, subject
from hpcoll.cli.simulate.traced import COMES, MARKS, WAITS, ReplayTimes, TracedCall, TracedProgram
from hpcoll.schedules.catalogue import CATALOGUE, find
from hpcoll.schedules.placement import numbered, parts
from hpcoll.schedules.row import Algorithm, unserved
from hpcoll.selection.choice import Need
from hpcoll.selection.choose import NATIVE_ROWS, choose
from hpcoll.selection.config import Config

# seconds at which the members of a call leave it, by when they come
Leaves = Callable[[TracedCall, np.ndarray], np.ndarray]


class ReplayNetwork:
    """A network on which calls are simulated.

    Args:
        place: Nodes and domains of all ranks.
        levels: Costs of messages.
        chooses: The algorithm of each call is chosen for this network; else it is the trace's. Where that is the MPI library's, or none of
            the catalogue, it is one that such a library is expected to use.
    """

    def __init__(self, place: Place, levels: Levels, *, chooses: bool) -> None:
        self._place, self._levels, self._chooses = place, levels, chooses
        self._rows: dict[tuple[str, str, int, tuple[int, ...]], tuple[Algorithm, int]] = {}
        self._subjects: dict[tuple[str, tuple[int, ...], int, int], Subject] = {}

    def leaves(self, call: TracedCall, comes: np.ndarray) -> np.ndarray:
        """Return the seconds at which each member leaves a call, by when it comes."""
        if len(call.members) < 2:
            return comes
        key = call.collective, call.algorithm, call.nbytes, call.members
        if key not in self._rows:
            self._rows[key] = self._row(call)
        row, segment = self._rows[key]
        nchunks, nsegments = chunks_and_segments(row, call.nbytes, segment)
        place, which = self._of(call.members), (row.key, call.members, call.root, nchunks)
        if which not in self._subjects:
            self._subjects[which] = subject(
                row, place.nodes, call.root, nchunks, domains=place.domains, exact=True
            )
        table, first = self._subjects[which].table, comes.min()
        in_flight, levels = window(len(call.members)) * table.nchannels, costs_of(place.nodes, self._levels)
        simulation = prepare(
            table, levels, call.nbytes / nsegments, nsegments, in_flight, comes=comes - first
        )
        assert simulate(simulation) >= 0, f"{row.key} waits for ever"
        return first + simulation.calls[:, LEAVES]

    def _of(self, members: tuple[int, ...]) -> Place:
        return Place(*(numbered(of[rank] for rank in members) for of in self._place))

    def _row(self, call: TracedCall) -> tuple[Algorithm, int]:
        """Return the algorithm of a call, and the bytes of its segments."""
        place, nranks = self._of(call.members), len(call.members)
        if self._chooses:
            one_node, nodes, levels = len(set(place.nodes)) == 1, parts(*place), self._levels.on_parts(*place)
            need = Need(
                call.collective,
                nranks,
                call.nbytes,
                native=False,
                one_node=one_node,
                nodes=nodes,
                levels=levels,
            )
            choice = choose(need, Config())
            return find(call.collective, choice.algorithm), choice.segment
        named = CATALOGUE.get(f"{call.collective}/{call.algorithm}")
        names = [call.algorithm] if named and not unserved(named, nranks) else NATIVE_ROWS[call.collective]
        costs = [
            (best_segment_of(find(call.collective, name), place, self._levels, call.nbytes), name)
            for name in names
        ]
        (_, segment), name = min(costs)
        return find(call.collective, name), segment


def replay(program: TracedProgram, leaves: Leaves, gaps: Sequence[Sequence[float]]) -> ReplayTimes:
    """Return the times of a program whose ranks compute for so many seconds before each of their stops."""
    nranks = len(program.stops)
    now, at, marks = [0.0] * nranks, [0] * nranks, np.full((2 * program.nsteps, nranks), np.nan)
    comes, came = [np.empty(len(call.members)) for call in program.calls], [0] * len(program.calls)
    left, waiting, ready = (
        dict[int, dict[int, float]](),
        defaultdict[int, list[int]](list),
        list(range(nranks)),
    )
    while ready:
        rank = ready.pop()
        while at[rank] < len(program.stops[rank]):
            what, number, _ = program.stops[rank][at[rank]]
            now[rank] += gaps[rank][at[rank]]
            at[rank] += 1
            if what == MARKS:
                marks[number, rank] = now[rank]
                continue
            members = program.calls[number].members
            if what & COMES:
                comes[number][bisect_left(members, rank)] = now[rank]
                came[number] += 1
                if came[number] == len(members):
                    left[number] = dict(zip(members, leaves(program.calls[number], comes[number]).tolist()))
                    for other in waiting.pop(number, ()):
                        now[other] = max(now[other], left[number][other])
                        ready.append(other)
            if what & WAITS:
                if number not in left:
                    waiting[number].append(rank)
                    break
                now[rank] = max(now[rank], left[number][rank])
    if waiting:
        rank = program.ranks[next(iter(waiting.values()))[0]]
        raise ArgumentError(
            f"expected a trace of calls that all ranks make in one order, got one in which rank {rank} waits for ever"
        )
    run = max(now)
    return ReplayTimes(
        run, np.nanmean(marks[1::2] - marks[::2], axis=1) if program.nsteps else np.array([run])
    )


def gaps_of(program: TracedProgram, on_time: Collection[int] = ()) -> list[list[float]]:
    """Return what each rank computes before each of its stops; ranks that are on time as long as the median of the others at that stop."""
    by_late = {late: defaultdict[tuple[int, int], list[float]](list) for late in (True, False)}
    for rank, stops in enumerate(program.stops):
        for stop in stops:
            by_late[rank in on_time][stop.what, stop.number].append(stop.gap)
    # where no others come, of those who do
    usual = {stop: median(gaps) for stop, gaps in (by_late[True] | by_late[False]).items()}
    return [
        [usual[stop.what, stop.number] if rank in on_time else stop.gap for stop in stops]
        for rank, stops in enumerate(program.stops)
    ]


def corrected(program: TracedProgram, network: ReplayNetwork) -> Leaves:
    """Return times of calls on the network of the trace: simulated, and longer by what each took longer than simulated."""
    more = {id(call): call.leaves - network.leaves(call, call.comes) for call in program.calls}
    return lambda call, comes: np.maximum(comes, network.leaves(call, comes) + more[id(call)])
