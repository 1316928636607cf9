"""Flight records: one JSON file per rank, read, checked, and merged into the calls of all ranks on each communicator.

It knows nothing of errors. Ranks are those of MPI_COMM_WORLD, also the ranks that a call awaits.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import integer, member, number, read_json, refused
from hpcoll.base.text import LINE, MAX_RANKS, Runs, gaps, printable, quoted

FORMAT = 1
ENDED, WAITING, FAILED = "ended", "waiting", "failed"  # states of a call
BLOCKING = "blocking"  # the lane of calls that return when they have ended
IN_FLIGHT, PERSISTENT = "in flight", "persistent"  # the names of the other lanes begin so
ELSEWHERE = -1  # a rank of another program, in a communicator that has some
_LOWEST = -(2**31)  # MPI libraries have negative numbers for ranks of another world, or for no rank at all
_LATEST_S = 1e11  # the year 5138
_MOST_AWAITED = 1 << 20  # ranks, by all calls of a record together
_TEXTS = ("lane", "collective", "element", "op", "algorithm", "state", "step", "caller")


@dataclass(frozen=True)
class RecordedCall:
    """A call of one rank; texts are empty, numbers None, where there is nothing to tell. Times are seconds since 1970."""

    seq: int  # number of the call in its lane; calls of equal number belong together on all ranks
    lane: str  # ``blocking``, or a name for each kind of calls in flight, which are counted by themselves
    collective: str
    count: int | None  # elements; None also where ranks may differ
    element: str
    op: str
    root: int | None
    algorithm: str
    begun: float
    ended: float | None
    state: str
    step: str  # the row of its program that it came to, in words
    awaits: tuple[int, ...]  # ranks that it waits for, `ELSEWHERE` among them for ranks of another program
    caller: str  # file and line
    counted: int = (
        0  # which of the program's blocking calls it is, or of its calls in flight; 0 where that is not known
    )
    region: str = ""  # names of regions, outermost first, joined by ``/``


@dataclass(frozen=True)
class Part:
    """The calls of one rank on one communicator, without the ``dropped`` oldest ones; ``ranks`` as in `RecordedCommunicator`."""

    id: str
    name: str
    ranks: tuple[int, ...]
    dropped: int
    calls: tuple[RecordedCall, ...]

    @cached_property
    def last_ended(self) -> RecordedCall | None:
        """The call that ended last, or None."""
        ended = [call for call in self.calls if call.ended is not None and call.state == ENDED]
        return max(ended, key=lambda call: (call.ended or 0.0, call.lane, call.seq), default=None)


@dataclass(frozen=True)
class Record:
    """The file of one rank; ``parts`` by communicator, ``doing`` empty when the rank was in no collective."""

    file: str
    program: tuple[str, ...]
    host: str
    rank: int
    nranks: int
    written: float
    why: str
    doing: str
    parts: dict[str, Part]


@dataclass(frozen=True)
class RecordedCommunicator:
    """A communicator in the records."""

    id: str
    label: str  # its name, made longer where another has the same
    ranks: tuple[int, ...]  # its members, in order; `ELSEWHERE` for each of another program
    calls: dict[str, dict[int, dict[int, RecordedCall]]]  # calls by lane, number and rank


@dataclass(frozen=True)
class Flight:
    """The records of a program by rank, the ranks without one, and the communicators, the largest first."""

    records: dict[int, Record]
    nranks: int
    missing: Runs
    communicators: tuple[RecordedCommunicator, ...]

    @cached_property
    def unfinished(self) -> dict[int, list[str]]:
        """Labels of the communicators on which a rank has calls that have not ended, by rank."""
        labels: dict[int, list[str]] = {rank: [] for rank in self.records}
        for communicator in self.communicators:
            open_calls = (calls for lane in communicator.calls.values() for calls in lane.values())
            for rank in {rank for calls in open_calls for rank, call in calls.items() if call.state != ENDED}:
                labels[rank].append(communicator.label)
        return labels


def read(files: Sequence[str]) -> Flight:
    """Read the records of one program; ArgumentError names a file that is no record, or not of this program."""
    records: dict[int, Record] = {}
    for file in files:
        record = _read(file)
        if record.rank in records:
            other = records[record.rank].file
            raise ArgumentError(
                f"{record.file}: expected a rank that no other file is of, got rank {record.rank}, as in {other}"
            )
        first = next(iter(records.values()), record)
        both = (
            ("program", list(first.program), list(record.program)),
            ("world_size", first.nranks, record.nranks),
        )
        for what, expected, got in both:
            if expected != got:
                raise ArgumentError(
                    f"{record.file}: {what}: expected {quoted(expected)} as in {first.file}, got {quoted(got)}"
                )
        records[record.rank] = record
    records = dict(sorted(records.items()))
    nranks = next(iter(records.values())).nranks
    return Flight(records, nranks, gaps([*records], nranks), _merge(records))


def _read(file: str) -> Record:
    content, name = read_json(file, file), printable(file, LINE)
    try:
        version = integer(content, "format", "", least=0)
        if version != FORMAT:
            raise ArgumentError(f"field format: expected {FORMAT}, got {version}")
        return _record(content, name)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None


def _record(content: Any, file: str) -> Record:
    nranks = integer(content, "world_size", "", most=MAX_RANKS)
    rank = integer(content, "world_rank", "", least=0, most=nranks - 1)
    parts: dict[str, Part] = {}
    for i, content_of in enumerate(member(content, "communicators", list, "")):
        part = _part(content_of, f"communicators[{i}]", rank, nranks)
        if part.id in parts:
            raise ArgumentError(
                f"field communicators[{i}].id: expected one that no other has, got {quoted(part.id)} again"
            )
        parts[part.id] = part
    awaited = sum(len(call.awaits) for part in parts.values() for call in part.calls)
    if awaited > _MOST_AWAITED:
        raise ArgumentError(
            f"field communicators: expected calls that await at most {_MOST_AWAITED} ranks together, got {awaited}"
        )
    program = tuple(member(content, "program", list, ""))
    if not all(isinstance(word, str) for word in program):
        raise refused("program", "a list of texts", content["program"])
    host, why, doing = (_text(content, key, "") for key in ("host", "why", "doing"))
    return Record(file, program, host, rank, nranks, _time(content, "written", ""), why, doing, parts)


def _part(content: Any, where: str, rank: int, nranks: int) -> Part:
    ranks = tuple(max(rank, ELSEWHERE) for rank in _ranks(content, "ranks", where, nranks, least=_LOWEST))
    if len({*ranks} - {ELSEWHERE}) != len(ranks) - ranks.count(ELSEWHERE):
        raise refused(f"{where}.ranks", "each rank once", list(ranks))
    own = integer(content, "rank", where, least=0)
    if list(ranks[own : own + 1]) != [rank]:
        raise ArgumentError(
            f"field {where}.rank: expected where world rank {rank} is in {quoted(list(ranks))}, got {own}"
        )
    calls = [
        _call(call, f"{where}.calls[{i}]", ranks)
        for i, call in enumerate(member(content, "calls", list, where))
    ]
    seen: set[tuple[str, int]] = set()
    for i, call in enumerate(calls):
        if (call.lane, call.seq) in seen:
            lane = f"lane {quoted(call.lane)}"
            raise ArgumentError(
                f"field {where}.calls[{i}].seq: expected one that {lane} has not had, got {call.seq} again"
            )
        seen.add((call.lane, call.seq))
    id, dropped = member(content, "id", str, where), integer(content, "dropped", where, least=0)
    return Part(id, _text(content, "name", where), ranks, dropped, tuple(calls))


def _call(content: Any, where: str, ranks: Sequence[int]) -> RecordedCall:
    call = RecordedCall(
        **{key: _text(content, key, where) for key in _TEXTS},
        seq=integer(content, "seq", where, least=0),
        count=_if_any(content, "count", where, 0),
        root=_if_any(content, "root", where, _LOWEST),
        begun=_time(content, "begun", where),
        ended=_time(content, "ended", where) if content.get("ended") is not None else None,
        region=_text(content, "region", where) if "region" in content else "",
        counted=integer(content, "counted", where, least=0) if "counted" in content else 0,
        awaits=tuple(sorted({ranks[peer] for peer in _ranks(content, "awaits", where, len(ranks))})),
    )
    if call.state not in (ENDED, WAITING, FAILED):
        raise ArgumentError(
            f"field {where}.state: expected {ENDED}, {WAITING} or {FAILED}, got {quoted(call.state)}"
        )
    return call


def _ranks(content: Any, key: str, where: str, nranks: int, least: int = 0) -> tuple[int, ...]:
    ranks = member(content, key, list, where)
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool) or not least <= rank < nranks:
            raise refused(f"{where}.{key}", f"ranks below {nranks}", rank)
    return tuple(ranks)


def _if_any(content: Any, key: str, where: str, least: int) -> int | None:
    return (
        None
        if isinstance(content, dict) and content.get(key, 0) is None
        else integer(content, key, where, least)
    )


def _time(content: Any, key: str, where: str) -> float:
    return number(content, key, where, lambda seconds: 0 <= seconds <= _LATEST_S, "seconds since 1970")


def _text(content: Any, key: str, where: str) -> str:
    """Return a member that is text, made printable."""
    return printable(member(content, key, str, where))


def _merge(records: dict[int, Record]) -> tuple[RecordedCommunicator, ...]:
    first: dict[str, tuple[Record, Part]] = {}
    calls: dict[str, dict[str, dict[int, dict[int, RecordedCall]]]] = {}
    for rank, record in records.items():
        for part in record.parts.values():
            other, known = first.setdefault(part.id, (record, part))
            if part.ranks != known.ranks:
                ranks, expected, got = (
                    f"ranks of communicator {quoted(part.id)}",
                    quoted(list(known.ranks)),
                    quoted(list(part.ranks)),
                )
                raise ArgumentError(
                    f"{record.file}: {ranks}: expected {expected} as in {other.file}, got {got}"
                )
            lanes = calls.setdefault(part.id, {})
            for call in part.calls:
                lanes.setdefault(call.lane, {}).setdefault(call.seq, {})[rank] = call
    parts = sorted((part for _, part in first.values()), key=lambda part: (-len(part.ranks), part.id))
    merged = []
    for part, label in zip(parts, _labels(parts)):
        lanes = calls[part.id]
        ordered = {
            lane: dict(sorted(lanes[lane].items()))
            for lane in sorted(lanes, key=lambda lane: (lane != BLOCKING, lane))
        }
        merged.append(RecordedCommunicator(part.id, label, part.ranks, ordered))
    return tuple(merged)


def _labels(parts: Sequence[Part]) -> list[str]:
    """Return names of communicators, with their number among all where two have the same."""
    names = [part.name or "a communicator without a name" for part in parts]
    having = Counter(names)
    return [f"{name} (no. {i + 1})" if having[name] > 1 else name for i, name in enumerate(names)]
