"""A finding and the words for what is in it: ranks, calls, their numbers, times. Judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcoll.base.text import printable
from hpcoll.base.units import Runs, ranks_in_words
from hpcoll.cli.inspect.flight_records import BLOCKING, IN_FLIGHT, PERSISTENT, RecordedCall

MAX_ROWS, MOST_FINDINGS = 12, 1000  # of a table, and sentences of one kind; of calls, and of ranks without a record


@dataclass(frozen=True)
class FlightFinding:
    """One thing that was found.

    Attributes:
        kind: What kind of thing; programs that read the report tell them apart by it.
        heading: What it is, in a line.
        sentence: What happened, for the last line of the report.
        ranks: Those whose doing it is.
        begun: When it began, in seconds since 1970; the first of a kind is the one to tell.
        communicator, lane, seq: The call, where it is about one.
        rows: A table, its header first; or nothing.
        remarks: Sentences below it.
    """

    kind: str
    heading: str
    sentence: str
    ranks: Runs
    begun: float = 0.0
    communicator: str = ""
    lane: str = ""
    seq: int | None = None
    rows: list[list[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def verb(ranks: Sequence[object], one: str, several: str) -> str:
    """The form of a verb or pronoun that so many ranks need."""
    return one if len(ranks) == 1 else several


def names(ranks: Sequence[int]) -> str:
    """Ranks, in words; those of another program, which are negative, have no number here.

    >>> names([0, 1, -1]), names([-1])
    ('ranks 0-1 and ranks of another program', 'ranks of another program')
    """
    own = [rank for rank in ranks if rank >= 0]
    texts = [ranks_in_words(own)] if own else []
    return " and ".join(texts + ["ranks of another program"] * (len(own) < len(ranks)))


def method(call: RecordedCall) -> str:
    """The method that the program called: ``Bcast``; in flight ``Ibcast``, and of a persistent request ``Bcast_init``."""
    if call.lane.startswith(IN_FLIGHT):
        return f"I{call.collective}"
    return call.collective.capitalize() + ("_init" if call.lane.startswith(PERSISTENT) else "")


def spelled(call: RecordedCall, algorithm: bool = False) -> str:
    """A call as the program wrote it; with the algorithm where that is asked for.

    >>> call = RecordedCall(1, "blocking", "bcast", 8, "float64", "", 0, "binomial", 0.0, None, "waiting", "", (), "")
    >>> spelled(call), spelled(call, algorithm=True)
    ('Bcast(float64[8], root=0)', 'Bcast(float64[8], root=0) by binomial')
    """
    what = f"{call.element}[{'...' if call.count is None else call.count}]" if call.element else ""
    operator, root = f"op={call.op}" if call.op else "", f"root={call.root}" if call.root is not None else ""
    inside = ", ".join(text for text in (what, operator, root) if text)
    return printable(f"{method(call)}({inside})" + (f" by {call.algorithm or 'no algorithm'}" if algorithm else ""))


def ordinal(number: int) -> str:
    """A number as it counts calls.

    >>> [ordinal(number) for number in (1, 2, 12, 23, 41)]
    ['1st', '2nd', '12th', '23rd', '41st']
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def numbered(lane: str, seq: int, label: str) -> str:
    """Which call it is, after an article: ``41st call on MPI_COMM_WORLD``."""
    return f"{ordinal(seq)} call on {label}" + (f" (lane {lane!r})" if lane != BLOCKING else "")


def duration(seconds: float) -> str:
    """Seconds with three digits, in a unit that suits.

    >>> duration(0.0123), duration(2.5), duration(-1e-6)
    ('12.3 ms', '2.5 s', '0 us')
    """
    seconds = max(0.0, seconds)
    for limit, factor, unit in ((0.9995e-3, 1e6, "us"), (0.9995, 1e3, "ms"), (9999.5, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * factor:.0f} {unit}" if seconds * factor >= 999.5 or unit == "us" else f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.0f} s"


def first_rows(rows: Sequence[list[str]]) -> list[list[str]]:
    """A header and as many rows as a table has, with a last one that says how many there are beyond."""
    beyond = len(rows) - 1 - MAX_ROWS
    return [*rows[: MAX_ROWS + 1], [f"and {beyond} more", *[""] * (len(rows[0]) - 1)]] if beyond > 0 else list(rows)
