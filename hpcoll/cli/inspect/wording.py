"""A finding, and the words for calls, their numbers and times. It judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcoll.base.text import Runs, printable
from hpcoll.cli.inspect.flight_records import BLOCKING, IN_FLIGHT, PERSISTENT, RecordedCall

# of a table, and sentences of one kind; of calls, and of ranks without a record
MAX_ROWS, MOST_FINDINGS = (
    12,
    1000,
)


@dataclass(frozen=True)
class FlightFinding:
    """A finding, and its call where it is about one: ``communicator``, ``lane`` and ``seq``."""

    kind: str  # a word by which programs that read the report tell findings apart
    heading: str
    sentence: str  # for the last line of the report
    ranks: Runs  # ranks that caused it
    begun: float = (
        0.0  # when it began, in seconds since 1970; of several of a kind, the last line tells the first
    )
    communicator: str = ""
    lane: str = ""
    seq: int | None = None
    rows: list[list[str]] = field(default_factory=list)  # a table, its header first; or nothing
    remarks: list[str] = field(default_factory=list)  # sentences below the table


def verb(ranks: Sequence[object], one: str, several: str) -> str:
    """Return the form of a verb or pronoun that so many ranks need."""
    return one if len(ranks) == 1 else several


def method(call: RecordedCall) -> str:
    """Return the method that the program called: ``Bcast``; in flight ``Ibcast``, and of a persistent request ``Bcast_init``."""
    if call.lane.startswith(IN_FLIGHT):
        return f"I{call.collective}"
    return call.collective.capitalize() + ("_init" if call.lane.startswith(PERSISTENT) else "")


def spelled(call: RecordedCall, algorithm: bool = False) -> str:
    """Return a call as the program wrote it, on request with its algorithm: ``Bcast(float64[8], root=0) by binomial``."""
    what = f"{call.element}[{'...' if call.count is None else call.count}]" if call.element else ""
    operator, root = f"op={call.op}" if call.op else "", f"root={call.root}" if call.root is not None else ""
    inside = ", ".join(text for text in (what, operator, root) if text)
    return printable(
        f"{method(call)}({inside})" + (f" by {call.algorithm or 'no algorithm'}" if algorithm else "")
    )


def named(call: RecordedCall, label: str) -> str:
    """Return a call and its number on a communicator: ``Barrier(), 41st call on MPI_COMM_WORLD``."""
    return f"{spelled(call)}, {numbered(call, label)}"


def where(call: RecordedCall) -> str:
    """Return file and line of a call, and its region: ``train.py:88 in region step/halo``."""
    return " ".join(filter(None, (call.caller, call.region and f"in region {call.region}")))


def numbered(call: RecordedCall, label: str) -> str:
    """Return the number of a call on a communicator, as the program counts: ``41st blocking call on MPI_COMM_WORLD``; else of its lane."""
    if call.counted:
        return f"{ordinal(call.counted)} {'blocking call' if call.lane == BLOCKING else 'call in flight'} on {label}"
    return f"{ordinal(call.seq)} call on {label}" + (
        f" (lane {call.lane!r})" if call.lane != BLOCKING else ""
    )


def ordinal(number: int) -> str:
    """Return a number as it counts calls.

    >>> [ordinal(number) for number in (1, 2, 12, 23, 41)]
    ['1st', '2nd', '12th', '23rd', '41st']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def first_rows(rows: Sequence[list[str]]) -> list[list[str]]:
    """Return a header and as many rows as a table has, with a last one that counts the rows beyond."""
    beyond = len(rows) - 1 - MAX_ROWS
    return (
        [*rows[: MAX_ROWS + 1], [f"and {beyond} more", *[""] * (len(rows[0]) - 1)]]
        if beyond > 0
        else list(rows)
    )


def first_few(sentences: list[str], more: str = "more") -> list[str]:
    """Return as many sentences as a finding has, with a last one that counts those beyond."""
    beyond = len(sentences) - MAX_ROWS
    return [*sentences[:MAX_ROWS], f"and {beyond} {more}"] if beyond > 0 else sentences
