"""Differences between ranks, by number of the call: calls that differ, and ranks that never began what others are in."""

from collections.abc import Iterator, Mapping, Sequence

from hpcoll.base.text import duration, ranks_by, runs_of
from hpcoll.base.text import ranks_in_words as ranges
from hpcoll.cli.inspect.flight_records import ENDED, Flight, Record, RecordedCall, RecordedCommunicator
from hpcoll.cli.inspect.wording import (
    FlightFinding,
    first_few,
    first_rows,
    method,
    numbered,
    ordinal,
    spelled,
    verb,
    where,
)

DIFFERS, ABSENT = "calls differ", "call not begun"

Lane = Mapping[int, Mapping[int, RecordedCall]]  # calls by number and rank


def differences(flight: Flight) -> Iterator[FlightFinding]:
    """Yield of each lane the first call that differs, and up to there the first that some ranks are in and others never began."""
    for communicator in flight.communicators:
        members = [flight.records[rank] for rank in communicator.ranks if rank in flight.records]
        for lane, calls in communicator.calls.items():
            seq = next((seq for seq, by_rank in calls.items() if differ(by_rank)), None)
            if seq is not None:
                yield _differing(communicator, lane, seq)
            yield from _absent(flight, communicator, members, calls, seq)


def differ(calls: Mapping[int, RecordedCall]) -> bool:
    """Say whether calls of one number differ between ranks; a count that may differ does not."""
    kinds = {(call.collective, call.element, call.op, call.root, call.algorithm) for call in calls.values()}
    return len(kinds) > 1 or len({call.count for call in calls.values()} - {None}) > 1


def _differing(communicator: RecordedCommunicator, lane: str, seq: int) -> FlightFinding:
    calls = communicator.calls[lane][seq]
    algorithms = len({call.algorithm for call in calls.values()}) > 1
    groups = ranks_by((spelled(call, algorithms), rank) for rank, call in sorted(calls.items()))
    most = max(groups.values(), key=len)
    odd = tuple(sorted(rank for ranks in groups.values() if ranks is not most for rank in ranks))
    which = numbered(next(iter(calls.values())), communicator.label)
    heading, sentence = (
        f"the {which}: calls differ",
        f"{_contrast(groups, calls, communicator)}, their {which}",
    )
    rows, begun = first_rows(_rows(calls, algorithms)), min(call.begun for call in calls.values())
    return FlightFinding(DIFFERS, heading, sentence, runs_of(odd), begun, communicator.label, lane, seq, rows)


def _rows(calls: Mapping[int, RecordedCall], algorithms: bool = False) -> list[list[str]]:
    """Return calls of one number as a table; ranks with the same call share a row."""
    rows = ranks_by(
        ((spelled(call, algorithms), call.state, where(call)), rank) for rank, call in sorted(calls.items())
    )
    return [["", "call", "state", "caller"], *([ranges(ranks), *row] for row, ranks in rows.items())]


def _contrast(
    groups: Mapping[str, list[int]], calls: Mapping[int, RecordedCall], communicator: RecordedCommunicator
) -> str:
    """Say which ranks called what, and what the others called; by methods alone where they tell the calls apart."""
    short = {text: method(calls[ranks[0]]) for text, ranks in groups.items()}
    names = short if len(set(short.values())) == len(short) else {text: text for text in groups}
    usual = max(groups, key=lambda text: len(groups[text]))
    called = [f"{ranges(ranks)} called {names[text]}" for text, ranks in groups.items() if text != usual]
    odd = first_few(called, "others called something else")
    everybody = len(odd) == 1 and len(groups[usual]) > 1 and len(calls) == len(communicator.ranks)
    others = "the others" if everybody else ranges(groups[usual])
    return f"{', '.join(odd)} where {others} called {names[usual]}"


def _absent(
    flight: Flight,
    communicator: RecordedCommunicator,
    members: Sequence[Record],
    calls: Lane,
    until: int | None,
) -> Iterator[FlightFinding]:
    """Yield the first call of a lane, up to number ``until``, that some ranks are in and others have not begun."""
    last: dict[int, int] = {}
    for seq, by_rank in calls.items():
        last.update(dict.fromkeys(by_rank, seq))
    for seq, by_rank in calls.items():
        inside = sorted(rank for rank, call in by_rank.items() if call.state != ENDED)
        if not inside or (until is not None and seq > until):
            continue
        begun = min(by_rank[rank].begun for rank in inside)
        absent = [
            member
            for member in members
            if (last[member.rank] < seq if member.rank in last else _never(member, communicator.id, begun))
        ]
        if absent:
            yield _not_begun(flight, communicator, by_rank, sorted(absent, key=lambda member: member.rank))
            return


def _never(record: Record, id: str, begun: float) -> bool:
    """Say whether a rank without a call in a lane had none: a dropped one would be older than the calls that were kept."""
    part = record.parts.get(id)
    return part is None or not part.dropped or min((call.begun for call in part.calls), default=begun) < begun


def _not_begun(
    flight: Flight,
    communicator: RecordedCommunicator,
    calls: Mapping[int, RecordedCall],
    absent: list[Record],
) -> FlightFinding:
    inside = sorted(rank for rank, call in calls.items() if call.state != ENDED)
    call = calls[inside[0]]
    which = numbered(call, communicator.label)
    ranks = tuple(record.rank for record in absent)
    groups: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for record in absent:
        part = record.parts.get(communicator.id)
        before = part.last_ended if part else None
        text = f"{spelled(before)}, the {ordinal(before.counted or before.seq)}" if before else ""
        age = record.written - (before.ended or 0.0) if before else 0.0
        groups.setdefault((text, doing(flight, record.rank), record.why), []).append((record.rank, age))
    remarks = []
    for (text, now, why), same in groups.items():
        ages = sorted(age for _, age in same)
        how_long = " to ".join(dict.fromkeys((duration(ages[0]), duration(ages[-1]))))
        past = f"last ended there {text}, {how_long} before the record" if text else "no call there has ended"
        remarks.append(
            f"{ranges(rank for rank, _ in same)}: {past}; {now}"
            + (f"; record written for {why}" if why else "")
        )
    heading, never = (
        f"the {which}: not begun by all",
        f"{ranges(ranks)} never began {spelled(call)}, the {which}",
    )
    texts = list(dict.fromkeys(doing(flight, rank) for rank in ranks))
    now = texts[0] if len(texts) == 1 else f"{ranges(ranks[:1])} {texts[0].removeprefix('now ')}"
    sentence = f"{never}, which {ranges(inside)} {verb(inside, 'is', 'are')} in; {now}"
    rows, about = (
        [*first_rows(_rows(calls)), [ranges(ranks), "", "not begun", ""]],
        (communicator.label, call.lane, call.seq),
    )
    return FlightFinding(
        ABSENT, heading, sentence, runs_of(ranks), call.begun, *about, rows, first_few(remarks)
    )


def doing(flight: Flight, rank: int) -> str:
    """Say what a rank did when it wrote its record, with the communicator where that is known."""
    record = flight.records[rank]
    if not record.doing:
        return "now in no collective"
    open_on = flight.unfinished[rank]
    return f"now {record.doing}" + (f", on {' and '.join(open_on[:2])}" if open_on else "")
