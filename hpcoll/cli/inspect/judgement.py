"""The judgement on a flight: all findings in their order, and the one sentence that says what happened.

Where all calls ended, it finds the call that ranks began at the most different times, and each rank's usual delay.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median

from hpcoll.base.units import ranks_in_words as ranges
from hpcoll.base.units import runs_of
from hpcoll.cli.inspect.differences import ABSENT, DIFFERS, differences
from hpcoll.cli.inspect.flight_records import ENDED, Flight, RecordedCall, RecordedCommunicator
from hpcoll.cli.inspect.who_waits import CIRCLE, CROSSING, DEAD, LOST, WAITS, graph_of, who_waits
from hpcoll.cli.inspect.wording import MAX_ROWS, MOST_FINDINGS, FlightFinding, duration, first_rows, named, numbered, spelled, verb

UNFINISHED, SLOW = "not ended", "lateness"
_TELLING = (DIFFERS, DEAD, CIRCLE, ABSENT, WAITS, CROSSING, UNFINISHED)  # kinds; the first that was found is the cause


def judge(flight: Flight) -> list[FlightFinding]:
    """Return the findings in the order of the report."""
    found = list(islice(differences(flight), MOST_FINDINGS))
    found += who_waits(flight, found)
    open_calls = [
        (communicator.label, rank, call)
        for communicator in flight.communicators
        for by_number in communicator.calls.values()
        for calls in by_number.values()
        for rank, call in sorted(calls.items())
        if call.state != ENDED
    ]
    if all(finding.kind == LOST for finding in found):
        found += _unfinished(flight, open_calls) if open_calls else _lateness(flight)
    return found


def well(findings: Sequence[FlightFinding]) -> bool:
    """Say whether all ranks left records of calls that do not differ and have ended."""
    return all(finding.kind == SLOW for finding in findings)


def summary(flight: Flight, findings: Sequence[FlightFinding]) -> str:
    """Say in one sentence what happened: the cause, where one finding is another's."""
    for kind in _TELLING:
        alike = sorted((finding for finding in findings if finding.kind == kind and finding.ranks), key=lambda finding: finding.begun)
        if alike:
            roots = {rank for ranks, _ in graph_of(flight).roots() for rank in ranks if rank in flight.records}
            telling = (one for one in alike if kind == ABSENT and any(rank in roots for run in one.ranks for rank in run))
            return next(telling, alike[0]).sentence
    told = "; ".join(finding.sentence for finding in findings)
    return f"nothing differs; {told}" if told else "nothing differs"


def _unfinished(flight: Flight, open_calls: Sequence[tuple[str, int, RecordedCall]]) -> list[FlightFinding]:
    """Return a finding of the calls that have not ended, where no other finding says why."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for label, rank, call in open_calls:
        groups.setdefault((named(call, label), call.state, call.caller, flight.records[rank].why), []).append(rank)
    (text, state, _, why), first = next(iter(groups.items()))
    ranks = runs_of({rank for _, rank, _ in open_calls})
    how = f"{ranges(first)} {verb(first, 'is', 'are')} in {text} ({state})"
    written = f"; {verb(first, 'its record was', 'their records were')} written for {why}" if why else ""
    rows = first_rows([["", "call", "state", "caller"], *([ranges(theirs), *key[:3]] for key, theirs in groups.items())])
    begun = min(call.begun for _, _, call in open_calls)
    return [FlightFinding(UNFINISHED, "calls that have not ended", f"no rank's calls differ, but {how}{written}", ranks, begun, rows=rows)]


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
    which = numbered(call.lane, call.seq, communicator.label)
    order = sorted(late, key=lambda rank: (-median(late[rank]), rank))
    rows = [["", "calls", "median lateness", "largest"]]
    rows += [[ranges([rank]), str(len(late[rank])), duration(median(late[rank])), duration(max(late[rank]))] for rank in order[:MAX_ROWS]]
    if len(order) > MAX_ROWS:
        rows.append([f"and {len(order) - MAX_ROWS} less late", "", "", ""])
    told = f"{spelled(call)}, the {which}, which rank {last} began last, {spread} after the first"
    heading, sentence = f"largest spread of begin times: {told}", f"the largest spread of begin times is in {told}"
    yield FlightFinding(SLOW, heading, sentence, runs_of([last]), call.begun, communicator.label, call.lane, call.seq, rows)


def _shared(flight: Flight) -> Iterator[tuple[RecordedCommunicator, dict[int, RecordedCall]]]:
    """Yield calls that every member with a record still has, if these are at least two."""
    for communicator in flight.communicators:
        members = {rank for rank in communicator.ranks if rank in flight.records}
        for by_number in communicator.calls.values():
            yield from ((communicator, calls) for calls in by_number.values() if len(calls) > 1 and set(calls) == members)


def _spread(calls: dict[int, RecordedCall]) -> float:
    begun = [call.begun for call in calls.values()]
    return max(begun) - min(begun)
