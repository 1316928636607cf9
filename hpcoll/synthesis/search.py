"""The search for schedules on given links: the fewest rounds for each number of steps, by OR-tools' CP-SAT.

In a step a rank passes on what it had before the step. A step has one or more rounds; in each round a link carries as many chunks as its
bandwidth says. So steps count latency, and rounds count bytes. Bounds come from distances between ranks, and from cuts: what must enter a
set of ranks must pass its links.

Idea: k-synchronous algorithms and their Pareto front as in SCCL (Cai et al., PPoPP 2021).
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from hpcoll.base.budget import TURNS, Budget
from hpcoll.base.errors import ArgumentError
from hpcoll.synthesis.hops import Demand, Hop, Task
from hpcoll.synthesis.topologies import FAR, Edge, Fabric

# ranks; chunks of all ranks; chunks times links times steps
MAX_SEARCHED, MAX_CARRIED, MAX_CHOICES = (
    12,
    1024,
    1 << 16,
)
_WORKERS = 8  # searches in different ways at once, which is faster even on one core


class Bounds(NamedTuple):
    """The least of each that any schedule needs."""

    steps: int
    rounds: int
    sent: int  # chunks, of all ranks together


class Outcome(NamedTuple):
    """The outcome of a search with so many steps.

    Attributes:
        steps: Number of steps.
        rounds: Rounds of each step; empty: nothing was found in time.
        parts: The hops of each part of the task.
        least: The fewest rounds that are not excluded; as many as were found if it is proven that fewer do not do.
        fewest_sent: It is proven that no schedule with so many steps and rounds sends fewer chunks.
    """

    steps: int
    rounds: tuple[int, ...]
    parts: tuple[tuple[Hop, ...], ...]
    least: int
    fewest_sent: bool

    @property
    def sent(self) -> int:
        """Chunks that all ranks send together."""
        return sum(map(len, self.parts))


class _SearchPart(NamedTuple):
    """A part of a task: from sources to targets over directed links, which are the topology's or, backwards, their reverse."""

    demands: list[Demand]
    fabric: Fabric
    lower: Bounds


class _Result(NamedTuple):
    """The outcome of a search for a part, as `Outcome`."""

    rounds: tuple[int, ...]
    hops: tuple[Hop, ...]
    least: int
    fewest_sent: bool


def bounds(task: Task, fabric: Fabric) -> Bounds:
    """Return lower bounds. ArgumentError: some rank cannot be reached, or there are too many ranks or chunks."""
    found = [part.lower for part in _parts(task, fabric)]
    return Bounds(*(sum(numbers) for numbers in zip(*found)))


def search(
    task: Task,
    fabric: Fabric,
    *,
    max_rounds: int | None = None,
    max_steps: int | None = None,
    seconds: float = 60.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Iterator[Outcome]:
    """Search for schedules, from the fewest steps on, each with fewer rounds than those before; so the last has the fewest.

    Args:
        task: The collective.
        fabric: The links between its ranks.
        max_rounds: Rounds that a schedule may have, ``>= 1``; None: any number.
        max_steps: Steps that it may have; None: any number.
        seconds: Time for the fewest rounds of a number of steps, and again for the fewest chunks sent.
        progress: Is called with what is searched for now.

    Yields:
        What was found, and numbers of steps with which nothing was found in time. Other numbers of steps are proven to be impossible, or to
        need no fewer rounds than one that is named. Numbers of steps that are too many for the search end it; the first of them is named.

    Raises:
        ArgumentError: OR-tools are missing, or as `bounds`.
    """
    cp, parts = _solver(), _parts(task, fabric)
    # a round for each hop
    limit = max_rounds or sum(part.lower.steps + len(part.demands) * task.nranks for part in parts)
    for steps in count(max(part.lower.steps for part in parts)):
        least = max(sum(part.lower.rounds for part in parts), steps * len(parts))
        if least > limit or (max_steps is not None and steps * len(parts) > max_steps):
            return
        if steps * len(task.demands) * len(fabric.links) > MAX_CHOICES:
            yield Outcome(steps * len(parts), (), (), least, False)
            return
        progress(f"{steps * len(parts)} steps: searching for {least} to {limit} rounds")
        outcome = _with_steps(cp, task, parts, steps, limit, seconds)
        if outcome is not None:
            yield outcome
            limit = sum(outcome.rounds) - 1 if outcome.rounds else limit


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ArgumentError(
            f"the search needs OR-tools ({error}): pip install 'hpcoll[synthesize]'"
        ) from None
    return cp_model


def _parts(task: Task, fabric: Fabric) -> list[_SearchPart]:
    if task.nranks > MAX_SEARCHED or task.nchunks > MAX_CARRIED:
        expected = f"at most {MAX_SEARCHED} ranks and {MAX_CARRIED} chunks, of all ranks together"
        raise ArgumentError(f"search: expected {expected}, got {task.nranks} ranks and {task.nchunks} chunks")
    directed = [fabric.reversed() if backwards else fabric for backwards in task.backwards]
    parts = [_SearchPart(task.demands, one, _lower(task.demands, one)) for one in directed]
    choices = len(task.demands) * len(fabric.links) * max(part.lower.steps for part in parts)
    if choices > MAX_CHOICES:
        raise ArgumentError(
            f"search: expected at most {MAX_CHOICES:,} as chunks times links times steps, got {choices:,}"
        )
    return parts


def _lower(demands: Sequence[Demand], fabric: Fabric) -> Bounds:
    distances, steps, sent = fabric.distances(), 1, 0
    for _, source, targets in demands:
        reach = [distances[source][target] for target in targets]
        if max(reach) >= FAR:
            raise ArgumentError(
                f"topology {fabric.name}: expected a way between all ranks, got none that rank {source} needs"
            )
        steps, sent = max(steps, *reach), sent + max(len(targets), *reach)
    return Bounds(steps, max(steps, _through_cuts(demands, fabric)), sent)


def _through_cuts(demands: Sequence[Demand], fabric: Fabric) -> int:
    """Return the rounds that the links into some set of ranks need: the most of all sets."""
    most = 0
    shared = sum(len(edges) for edges, _ in fabric.groups)
    Budget().spend((len(demands) + len(fabric.links) + shared) << fabric.nranks, TURNS)
    masks = Counter((1 << source, sum(1 << target for target in targets)) for _, source, targets in demands)
    for inside in range(1, (1 << fabric.nranks) - 1):
        needed = sum(n for (source, targets), n in masks.items() if not source & inside and targets & inside)
        entering = {
            (a, b): width for (a, b), width in fabric.links.items() if inside >> b & 1 and not inside >> a & 1
        }
        carried = sum(
            min(width, sum(entering.pop(edge, 0) for edge in edges)) for edges, width in fabric.groups
        )
        carried += sum(entering.values())
        most = max(most, -(-needed // carried) if needed else 0)
    return most


def _with_steps(
    cp: Any, task: Task, parts: Sequence[_SearchPart], steps: int, limit: int, seconds: float
) -> Outcome | None:
    """Search for each part of a task; parts that are alike once. None: proven to be impossible."""
    alike = [next(i for i, other in enumerate(parts) if other.fabric.same(part.fabric)) for part in parts]
    results: dict[int, _Result] = {}
    left = limit - sum(part.lower.rounds for part in parts)  # beyond what all need at least
    for i, times in Counter(alike).items():
        most = parts[i].lower.rounds + left // times
        result = _search_part(cp, parts[i], steps, most, seconds)
        if result is None:
            return None
        results[i] = result
        left -= times * (sum(result.rounds) - parts[i].lower.rounds) if result.rounds else 0
    chosen = [results[i] for i in alike]
    least = sum(result.least for result in chosen)
    if not all(result.rounds for result in chosen):
        return Outcome(steps * len(parts), (), (), least, False)
    rounds = [
        result.rounds[::-1] if backwards else result.rounds
        for backwards, result in zip(task.backwards, chosen)
    ]
    hops = [
        _reversed(result.hops, steps) if backwards else result.hops
        for backwards, result in zip(task.backwards, chosen)
    ]
    return Outcome(
        steps * len(parts), sum(rounds, ()), tuple(hops), least, all(result.fewest_sent for result in chosen)
    )


def _reversed(hops: Sequence[Hop], steps: int) -> tuple[Hop, ...]:
    return tuple(Hop(steps + 1 - step, item, receiver, sender) for step, item, sender, receiver in hops)


class _Model:
    """The search for a part with so many steps and at most so many rounds, as constraints on numbers and on yes or no."""

    def __init__(self, cp: Any, part: _SearchPart, steps: int, most: int) -> None:
        self.cp, self.part, self.steps = cp, part, steps
        self.model, self.distances = cp.CpModel(), part.fabric.distances()
        self.rounds = [self.model.new_int_var(1, most - steps + 1, "") for _ in range(steps)]
        self.model.add_linear_constraint(sum(self.rounds), max(part.lower.rounds, steps), most)
        self.sends: dict[tuple[int, Edge, int], Any] = {}  # by demand, link and step
        self.on_link: dict[tuple[Edge, int], list[Any]] = defaultdict(list)
        for number, demand in enumerate(part.demands):
            self._add(number, demand)
        for (edge, step), sends in self.on_link.items():
            self.model.add(sum(sends) <= part.fabric.links[edge] * self.rounds[step - 1])
        for edges, width in part.fabric.groups:
            for step in range(1, steps + 1):
                self.model.add(
                    sum(send for edge in edges for send in self.on_link[edge, step])
                    <= width * self.rounds[step - 1]
                )

    def _add(self, number: int, demand: Demand) -> None:
        """Add an item: a rank receives it at most once, and passes it on in later steps; targets must receive it."""
        away = self.distances[demand.source]
        near = [min(row[target] for target in demand.targets) for row in self.distances]  # steps to a target
        has: dict[tuple[int, int], Any] = {}  # rank and step: it has the item after that step
        arrivals: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for rank in range(self.part.fabric.nranks):
            for step in range(self.steps + 1):
                wanted = step == self.steps and rank in demand.targets
                possible = away[rank] <= step and (rank in demand.targets or step + near[rank] <= self.steps)
                earlier = has.get((rank, step - 1), 0)
                has[rank, step] = int(rank == demand.source or wanted) or (
                    self.model.new_bool_var("") if possible else earlier
                )
        for edge in self.part.fabric.links:
            for step in range(max(1, away[edge[0]] + 1), self.steps + 1):
                if edge[1] != demand.source and step + near[edge[1]] <= self.steps:
                    send = self.model.new_bool_var("")
                    self.sends[number, edge, step] = send
                    self.on_link[edge, step].append(send)
                    arrivals[edge[1], step].append(send)
                    if edge[0] != demand.source:
                        self.model.add_implication(send, has[edge[0], step - 1])
        for (rank, step), now in has.items():
            if step and rank != demand.source:
                self.model.add(sum(arrivals[rank, step]) == now - has[rank, step - 1])

    def solve(self, objective: Any, seconds: float) -> tuple[Any, str]:
        """Minimise an expression; return the solver, and the name of its status."""
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds, solver.parameters.num_workers = seconds, _WORKERS
        self.model.minimize(objective)
        begun = time.monotonic()
        status = solver.status_name(solver.solve(self.model))
        if status in ("UNKNOWN", "FEASIBLE") and time.monotonic() - begun < seconds / 2:
            raise KeyboardInterrupt  # the solver has caught it
        return solver, status

    def hops(self, solver: Any) -> tuple[Hop, ...]:
        """Return the hops of a solution; those that bring an item to no target, not even by others, are left out."""
        sent = {
            (number, edge[1]): (edge[0], step)
            for (number, edge, step), send in self.sends.items()
            if solver.boolean_value(send)
        }
        useful: dict[tuple[int, int], Hop] = {}
        for number, demand in enumerate(self.part.demands):
            for rank in demand.targets:
                while rank != demand.source and (number, rank) not in useful:
                    sender, step = sent[number, rank]
                    useful[number, rank] = Hop(step, demand.item, sender, rank)
                    rank = sender
        return tuple(useful.values())


def _search_part(cp: Any, part: _SearchPart, steps: int, most: int, seconds: float) -> _Result | None:
    """Search for the fewest rounds, then with so many of them for the fewest hops. None: it is proven that there is no schedule."""
    least = max(part.lower.rounds, steps)
    if most < least:
        return None
    model = _Model(cp, part, steps, most)
    solver, status = model.solve(sum(model.rounds), seconds)
    if status == "INFEASIBLE":
        return None
    least = (
        max(least, round(solver.best_objective_bound))
        if status != "OPTIMAL"
        else round(solver.objective_value)
    )
    if status == "UNKNOWN":
        return _Result((), (), least, False)
    rounds, hops = tuple(solver.value(one) for one in model.rounds), model.hops(solver)
    if len(hops) > part.lower.sent:
        model = _Model(cp, part, steps, sum(rounds))
        again, status = model.solve(sum(model.sends.values()), seconds)
        if status in ("OPTIMAL", "FEASIBLE"):
            rounds, hops = tuple(again.value(one) for one in model.rounds), model.hops(again)
    return _Result(rounds, hops, least, len(hops) == part.lower.sent or status == "OPTIMAL")
