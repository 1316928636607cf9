"""The judgement on a flight: all findings in their order, those in its wait-for graph among them, and the sentence that says what happened.

Where all calls ended, it finds the call that ranks began at the most different times, and each rank's usual delay.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from statistics import median

from hpcoll.analysis.wait_for_graph import Wait, WaitForGraph, in_words, together, wait_text
from hpcoll.base.text import duration, gaps, ranks_by, runs_in_words, runs_of
from hpcoll.base.text import ranks_in_words as ranges
from hpcoll.cli.inspect.differences import ABSENT, DIFFERS, differences, doing
from hpcoll.cli.inspect.flight_records import (
    BLOCKING,
    ELSEWHERE,
    ENDED,
    Flight,
    RecordedCall,
    RecordedCommunicator,
)
from hpcoll.cli.inspect.wording import (
    MAX_ROWS,
    MOST_FINDINGS,
    FlightFinding,
    first_few,
    first_rows,
    named,
    numbered,
    spelled,
    verb,
    where,
)

WAITS, CIRCLE, CROSSING, DEAD, LOST = (
    "who waits for whom",
    "wait for each other",
    "wait in one call",
    "left no record",
    "record missing",
)
UNFINISHED, SLOW = "not ended", "lateness"
# kinds; the first that was found is the cause
_TELLING = (
    DIFFERS,
    DEAD,
    CIRCLE,
    ABSENT,
    WAITS,
    CROSSING,
    UNFINISHED,
)


def judge(flight: Flight) -> list[FlightFinding]:
    """Return the findings in the order of the report."""
    findings = list(islice(differences(flight), MOST_FINDINGS))
    findings += who_waits(flight, findings)
    open_calls = [
        (communicator.label, rank, call)
        for communicator in flight.communicators
        for by_number in communicator.calls.values()
        for calls in by_number.values()
        for rank, call in sorted(calls.items())
        if call.state != ENDED
    ]
    if all(finding.kind == LOST for finding in findings):
        findings += _unfinished(flight, open_calls) if open_calls else _lateness(flight)
    return findings


def well(findings: Sequence[FlightFinding]) -> bool:
    """Say whether all ranks left records of calls that do not differ and have ended."""
    return all(finding.kind == SLOW for finding in findings)


def summary(flight: Flight, findings: Sequence[FlightFinding]) -> str:
    """Say in one sentence what happened: the cause, where one finding is another's."""
    for kind in _TELLING:
        alike = sorted(
            (finding for finding in findings if finding.kind == kind and finding.ranks),
            key=lambda finding: finding.begun,
        )
        if alike:
            roots = {
                rank for ranks, _ in graph_of(flight).roots() for rank in ranks if rank in flight.records
            }
            telling = (
                finding
                for finding in alike
                if kind == ABSENT and any(rank in roots for run in finding.ranks for rank in run)
            )
            return next(telling, alike[0]).sentence
    told = "; ".join(finding.sentence for finding in findings)
    return f"nothing differs; {told}" if told else "nothing differs"


def _unfinished(flight: Flight, open_calls: Sequence[tuple[str, int, RecordedCall]]) -> list[FlightFinding]:
    """Return a finding of the calls that have not ended, where no other finding says why."""
    groups = ranks_by(
        ((named(call, label), call.state, where(call), flight.records[rank].why), rank)
        for label, rank, call in open_calls
    )
    (text, state, _, why), first = next(iter(groups.items()))
    ranks = runs_of({rank for _, rank, _ in open_calls})
    how = f"{ranges(first)} {verb(first, 'is', 'are')} in {text} ({state})"
    written = f"; {verb(first, 'its record was', 'their records were')} written for {why}" if why else ""
    rows = first_rows(
        [["", "call", "state", "caller"], *([ranges(theirs), *key[:3]] for key, theirs in groups.items())]
    )
    begun = min(call.begun for _, _, call in open_calls)
    return [
        FlightFinding(
            UNFINISHED,
            "calls that have not ended",
            f"no rank's calls differ, but {how}{written}",
            ranks,
            begun,
            rows=rows,
        )
    ]


def _lateness(flight: Flight) -> Iterator[FlightFinding]:
    """Yield the largest spread of begin times, with the median lateness per rank; nothing where no call has two ranks.

    The lateness of a rank in a call is the time from the first begin to its own, by the clocks of the hosts.
    """
    shared = list(_shared(flight))
    if not shared:
        return
    late: dict[int, list[float]] = {}
    for _, calls in shared:
        first = min(call.begun for call in calls.values())
        for rank, call in calls.items():
            late.setdefault(rank, []).append(call.begun - first)
    communicator, calls = max(shared, key=lambda pair: _spread(pair[1]))
    last = max(calls, key=lambda rank: (calls[rank].begun, -rank))
    call, spread = calls[last], duration(_spread(calls))
    which = numbered(call, communicator.label)
    order = sorted(late, key=lambda rank: (-median(late[rank]), rank))
    rows = [["", "calls", "median lateness", "largest"]]
    rows += [
        [ranges([rank]), str(len(late[rank])), duration(median(late[rank])), duration(max(late[rank]))]
        for rank in order[:MAX_ROWS]
    ]
    if len(order) > MAX_ROWS:
        rows.append([f"and {len(order) - MAX_ROWS} less late", "", "", ""])
    told = f"{spelled(call)}, the {which}, which rank {last} began last, {spread} after the first"
    heading, sentence = (
        f"largest spread of begin times: {told}",
        f"the largest spread of begin times is in {told}",
    )
    yield FlightFinding(
        SLOW, heading, sentence, runs_of([last]), call.begun, communicator.label, call.lane, call.seq, rows
    )


def _shared(flight: Flight) -> Iterator[tuple[RecordedCommunicator, dict[int, RecordedCall]]]:
    """Yield calls that every member with a record still has, if these are at least two."""
    for communicator in flight.communicators:
        members = {rank for rank in communicator.ranks if rank in flight.records}
        for by_number in communicator.calls.values():
            yield from (
                (communicator, calls)
                for calls in by_number.values()
                if len(calls) > 1 and set(calls) == members
            )


def _spread(calls: dict[int, RecordedCall]) -> float:
    begun = [call.begun for call in calls.values()]
    return max(begun) - min(begun)


def who_waits(flight: Flight, earlier: Iterable[FlightFinding]) -> Iterator[FlightFinding]:
    """Yield the roots, circles, and ranks without a record; a circle in a call that differs by an earlier finding is no news."""
    graph = graph_of(flight)
    explained = {
        (finding.communicator, finding.lane, finding.seq) for finding in earlier if finding.kind == DIFFERS
    }
    if graph.waits:
        yield _chains(flight, graph)
    for circle in graph.circles():
        if any(wait.call not in explained for wait in circle):
            yield _circle(circle)
    awaited = graph.awaited_by()
    dead = (
        _dead([rank for rank in ranks if rank not in flight.records], waiters, graph)
        for waiters, ranks in awaited.items()
    )
    yield from islice(chain.from_iterable(dead), MOST_FINDINGS)
    unneeded = gaps(sorted({*flight.records, *chain.from_iterable(awaited.values())}), flight.nranks)
    if unneeded:
        text, it = (
            f"{runs_in_words(unneeded)} left no record",
            "it" if sum(map(len, unneeded)) == 1 else "them",
        )
        yield FlightFinding(LOST, f"{text}, and nobody is known to wait for {it}", text, unneeded)


def graph_of(flight: Flight) -> WaitForGraph:
    """Return the graph of every rank's waits in blocking calls, or if it waits in none of these, in calls in flight."""
    waits: list[Wait] = []
    for rank, record in flight.records.items():
        every = [
            Wait(
                rank,
                (communicator.label, call.lane, call.seq),
                call.awaits,
                named(call, communicator.label),
                call.step,
                call.begun,
            )
            for communicator in flight.communicators
            for call in (record.parts[communicator.id].calls if communicator.id in record.parts else ())
            if call.state != ENDED and set(call.awaits) - {rank}
        ]
        blocking = [wait for wait in every if wait.call[1] == BLOCKING]
        waits += blocking or (every if record.doing else [])
    return WaitForGraph(waits)


def _chains(flight: Flight, graph: WaitForGraph) -> FlightFinding:
    waits, roots = [wait for group in graph.waits.values() for wait in group], graph.roots()
    groups = ranks_by(((wait.text, wait.step, in_words(wait.awaits)), wait.rank) for wait in waits)
    rows = first_rows(
        [["", "waits in", "step", "for"], *([ranges(ranks), *row] for row, ranks in groups.items())]
    )
    remarks = []
    for root, waiters in sorted(
        (root, waiters) for ranks, waiters in roots for root in ranks if root in flight.records
    ):
        now, why = doing(flight, root), f"; record written for {flight.records[root].why}"
        remarks.append(
            f"rank {root} waits for nobody known, and {ranges(waiters)} {verb([*waiters], 'waits', 'wait')} for it: {now}{why}"
        )
    ranks, behind = (
        runs_of(rank for ranks, _ in roots for rank in ranks),
        {rank for _, waiters in roots for rank in waiters},
    )
    if ranks:
        who = f"{ranges(behind)} {verb([*behind], 'waits', 'wait')} in the end for {runs_in_words(ranks)}"
    else:
        others = f" for {in_words([ELSEWHERE])}" if any(ELSEWHERE in wait.awaits for wait in waits) else ""
        who = f"{ranges(graph.waits)} {verb([*graph.waits], 'waits', 'wait')}{others}"
    return FlightFinding(
        WAITS, WAITS, who, ranks, min(wait.since for wait in waits), rows=rows, remarks=first_few(remarks)
    )


def _circle(circle: list[Wait]) -> FlightFinding:
    ranks = sorted(wait.rank for wait in circle)
    begun, heading = min(wait.since for wait in circle), together(ranks)
    if len({wait.call for wait in circle}) == 1:
        inside = f"{heading} in {circle[0].text}: messages were lost, or records written at different times"
        return FlightFinding(
            CROSSING, f"{heading} in one call", inside, runs_of(ranks), begun, *circle[0].call
        )
    remarks = first_few(
        [wait_text(wait, [other.rank]) for wait, other in zip(circle, [*circle[1:], circle[0]])]
    )
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
