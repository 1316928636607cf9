"""Findings in the wait-for graph of a flight: the roots on which all waiting hangs, circles, and ranks that left no record."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from hpcoll.analysis.wait_for_graph import Wait, WaitForGraph, in_words, together, wait_text
from hpcoll.base.units import gaps, runs_in_words, runs_of
from hpcoll.base.units import ranks_in_words as ranges
from hpcoll.cli.inspect.differences import DIFFERS, doing
from hpcoll.cli.inspect.flight_records import BLOCKING, ELSEWHERE, ENDED, Flight
from hpcoll.cli.inspect.wording import MAX_ROWS, MOST_FINDINGS, FlightFinding, first_few, first_rows, named, verb

WAITS, CIRCLE, CROSSING, DEAD, LOST = "who waits for whom", "wait for each other", "wait in one call", "left no record", "record missing"


def who_waits(flight: Flight, earlier: Iterable[FlightFinding]) -> Iterator[FlightFinding]:
    """Yield the roots, circles, and ranks without a record; a circle in a call that differs by an earlier finding is no news."""
    graph = graph_of(flight)
    explained = {(one.communicator, one.lane, one.seq) for one in earlier if one.kind == DIFFERS}
    if graph.waits:
        yield _chains(flight, graph)
    for circle in graph.circles():
        if any(wait.call not in explained for wait in circle):
            yield _circle(circle)
    awaited = graph.awaited_by()
    dead = (_dead([rank for rank in ranks if rank not in flight.records], waiters, graph) for waiters, ranks in awaited.items())
    yield from islice(chain.from_iterable(dead), MOST_FINDINGS)
    unneeded = gaps(sorted({*flight.records, *chain.from_iterable(awaited.values())}), flight.nranks)
    if unneeded:
        text, it = f"{runs_in_words(unneeded)} left no record", "it" if sum(map(len, unneeded)) == 1 else "them"
        yield FlightFinding(LOST, f"{text}, and nobody is known to wait for {it}", text, unneeded)


def graph_of(flight: Flight) -> WaitForGraph:
    """Return the graph of every rank's waits in blocking calls, or if it waits in none of these, in calls in flight."""
    waits: list[Wait] = []
    for rank, record in flight.records.items():
        every = [
            Wait(rank, (communicator.label, call.lane, call.seq), call.awaits, named(call, communicator.label), call.step, call.begun)
            for communicator in flight.communicators
            for call in (record.parts[communicator.id].calls if communicator.id in record.parts else ())
            if call.state != ENDED and set(call.awaits) - {rank}
        ]
        blocking = [wait for wait in every if wait.call[1] == BLOCKING]
        waits += blocking or (every if record.doing else [])
    return WaitForGraph(waits)


def _chains(flight: Flight, graph: WaitForGraph) -> FlightFinding:
    waits, roots = [wait for found in graph.waits.values() for wait in found], graph.roots()
    groups: dict[tuple[str, str, str], list[int]] = {}
    for wait in waits:
        groups.setdefault((wait.text, wait.step, in_words(wait.awaits)), []).append(wait.rank)
    rows = first_rows([["", "waits in", "step", "for"], *([ranges(ranks), *row] for row, ranks in groups.items())])
    remarks = []
    for root, waiters in sorted((root, waiters) for ranks, waiters in roots for root in ranks if root in flight.records):
        now, why = doing(flight, root), f"; record written for {flight.records[root].why}"
        remarks.append(f"rank {root} waits for nobody known, and {ranges(waiters)} {verb([*waiters], 'waits', 'wait')} for it: {now}{why}")
    ranks, behind = runs_of(rank for ranks, _ in roots for rank in ranks), {rank for _, waiters in roots for rank in waiters}
    if ranks:
        who = f"{ranges(behind)} {verb([*behind], 'waits', 'wait')} in the end for {runs_in_words(ranks)}"
    else:
        others = f" for {in_words([ELSEWHERE])}" if any(ELSEWHERE in wait.awaits for wait in waits) else ""
        who = f"{ranges(graph.waits)} {verb([*graph.waits], 'waits', 'wait')}{others}"
    return FlightFinding(WAITS, WAITS, who, ranks, min(wait.since for wait in waits), rows=rows, remarks=first_few(remarks))


def _circle(circle: list[Wait]) -> FlightFinding:
    ranks = sorted(wait.rank for wait in circle)
    begun, heading = min(wait.since for wait in circle), together(ranks)
    if len({wait.call for wait in circle}) == 1:
        inside = f"{heading} in {circle[0].text}: messages were lost, or records written at different times"
        return FlightFinding(CROSSING, f"{heading} in one call", inside, runs_of(ranks), begun, *circle[0].call)
    remarks = first_few([wait_text(wait, [other.rank]) for wait, other in zip(circle, [*circle[1:], circle[0]])])
    told = "; ".join(f"rank {wait.rank} in {wait.text}" for wait in circle[:MAX_ROWS])
    sentence = f"{heading}: {told}" + ("; ..." if len(circle) > MAX_ROWS else "")
    return FlightFinding(CIRCLE, heading, sentence, runs_of(ranks), begun, remarks=remarks)


def _dead(ranks: list[int], waiters: Sequence[int], graph: WaitForGraph) -> Iterator[FlightFinding]:
    """Yield ranks without a record for which the same ranks wait, together where the first of these awaits them in one call."""
    left, begun = set(ranks), min(wait.since for waiter in waiters for wait in graph.waits[waiter])
    for wait in graph.waits[waiters[0]]:
        here = left.intersection(wait.awaits)
        left -= here
        if here:
            them = "it" if len(here) == 1 else "them"
            text = f"{ranges(here)} left no record: probably dead; {ranges(waiters)} {verb(waiters, 'waits', 'wait')} for {them}"
            yield FlightFinding(DEAD, text, f"{text} in {wait.text}", runs_of(here), begun, *wait.call)
