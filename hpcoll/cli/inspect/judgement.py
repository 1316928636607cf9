"""The judgement on a flight: all findings in their order, and the one sentence that says what happened."""

from collections.abc import Iterator, Sequence
from itertools import islice

from hpcoll.base.units import ranks_in_words as ranges
from hpcoll.base.units import runs_of
from hpcoll.cli.inspect.differences import ABSENT, DIFFERS, differences
from hpcoll.cli.inspect.flight_records import ENDED, Flight, RecordedCall
from hpcoll.cli.inspect.lateness import SLOW, lateness
from hpcoll.cli.inspect.who_waits import CIRCLE, CROSSING, DEAD, LOST, WAITS, roots, waiting, who_waits
from hpcoll.cli.inspect.wording import MOST_FINDINGS, FlightFinding, first_rows, numbered, spelled, verb

UNFINISHED = "not ended"
_TELLING = (DIFFERS, DEAD, CIRCLE, ABSENT, WAITS, CROSSING, UNFINISHED)  # kinds; the first that was found is the cause


def judge(flight: Flight) -> list[FlightFinding]:
    """What was found, in the order of the report."""
    found = list(islice(differences(flight), MOST_FINDINGS))
    found += who_waits(flight, found)
    open_calls = list(_open(flight))
    if all(finding.kind == LOST for finding in found):
        found += _unfinished(flight, open_calls) if open_calls else lateness(flight)
    return found


def well(findings: Sequence[FlightFinding]) -> bool:
    """Whether all ranks left records of calls that do not differ and have ended."""
    return all(finding.kind == SLOW for finding in findings)


def summary(flight: Flight, findings: Sequence[FlightFinding]) -> str:
    """What happened, in one sentence: of the cause, where one finding is another's."""
    for kind in _TELLING:
        alike = sorted((finding for finding in findings if finding.kind == kind and finding.ranks), key=lambda finding: finding.begun)
        if alike:
            at_end = {rank for ranks, _ in roots(waiting(flight)) for rank in ranks if rank in flight.records}
            telling = (one for one in alike if kind == ABSENT and any(rank in at_end for run in one.ranks for rank in run))
            return next(telling, alike[0]).sentence
    told = "; ".join(finding.sentence for finding in findings)
    return f"nothing differs; {told}" if told else "nothing differs"


def _open(flight: Flight) -> Iterator[tuple[str, int, RecordedCall]]:
    for communicator in flight.communicators:
        for by_number in communicator.calls.values():
            for calls in by_number.values():
                yield from ((communicator.label, rank, call) for rank, call in sorted(calls.items()) if call.state != ENDED)


def _unfinished(flight: Flight, open_calls: Sequence[tuple[str, int, RecordedCall]]) -> list[FlightFinding]:
    """Calls that have not ended, where nothing that was found says why."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for label, rank, call in open_calls:
        text = f"{spelled(call)}, {numbered(call.lane, call.seq, label)}"
        groups.setdefault((text, call.state, call.caller, flight.records[rank].why), []).append(rank)
    (text, state, _, why), first = next(iter(groups.items()))
    ranks = runs_of({rank for _, rank, _ in open_calls})
    how = f"{ranges(first)} {verb(first, 'is', 'are')} in {text} ({state})"
    written = f"; {verb(first, 'its record was', 'their records were')} written for {why}" if why else ""
    rows = first_rows([["", "call", "state", "caller"], *([ranges(theirs), *key[:3]] for key, theirs in groups.items())])
    begun = min(call.begun for _, _, call in open_calls)
    return [FlightFinding(UNFINISHED, "calls that have not ended", f"no rank's calls differ, but {how}{written}", ranks, begun, rows=rows)]
