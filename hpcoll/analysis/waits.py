"""Waits of one rank in collectives: for whom, how long, where; and the judgement of all ranks' waits.

Programs ask for it through `hpcoll.Communicator.stragglers`, and ``hpcoll trace`` for what a run has left in its trace.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcoll.base.text import as_html, counted, duration, printable, table

LEAST_S, LEAST_SHARE = 1e-3, 0.075  # seconds, and share of the run, that a rank costs which stands out
FACTOR = 1.75  # times the cost of the rank to compare with
TELLING = 0.3  # share of the time for which a rank was awaited that a cause explains which is named
# times slower than the median link, where a host's link is a cause; where it goes before ranks
SLOW_LINK, VERY_SLOW_LINK = (
    1.5,
    4.0,
)
# share of computing for which ranks wait for cores on a busy machine; times others', that tells a cause there
_BUSY, _FAR = (
    0.25,
    1.5,
)
_UNSURE = "computed or waited for its core: the machine was busy"
_CAUSES = {
    "computed_s": "computed longer",
    "absent_s": "slept, or was stopped",
    "taken_s": "had its core taken away",
}
_CHAIN = 16  # ranks in a row that held each other up; what has come so far along a circle is nobody's
_MOST_ROWS, _WIDTH = 16, 140  # of a table
_NOTHING = duration(0.0)
_RANKS = ("rank", "host", "last", "cost", "of run", "waited", "moved", "hidden", "python", "why")
_PLACES = ("place", "region", "calls", "waited", "moved", "most for")


class PlaceWaits(NamedTuple):
    """The waits of one rank in calls made at one place of the program; only calls that took long have a place."""

    place: str  # file and line, such as ``train.py:88``; empty where none is known
    region: str  # names of the regions, outermost first, joined by ``/``; empty outside of them
    calls: int
    waited_s: float
    moved_s: float
    waited_for: Mapping[int, float]  # seconds, by the rank that was awaited


class RankWaits(NamedTuple):
    """The waits of one rank of a communicator, since it was made or `Communicator.stragglers` was told to forget.

    Ranks are those of the communicator that was asked. Times of calls in flight count while the program waits for them.
    """

    rank: int
    host: str
    run_s: float  # wall-clock time
    calls: int  # that were compared between ranks
    uncompared: int  # that were not, because their records were lost before
    held_up_by: Mapping[int, int]  # calls in which this rank waited, by the rank that came last
    waited_s: float  # for ranks that came later
    moved_s: float  # in calls that all ranks had reached
    hidden_s: float  # of calls in flight, while the program did other things
    python_s: float  # around calls, in hpcoll's own Python: of a call like an earlier one, times calls
    nbytes: int
    waited_for: Mapping[int, float]  # seconds, by the rank that came last
    # the same, each wait divided by the number of ranks that could wait for that one in that call
    caused: Mapping[int, float]
    # of `caused`, what the late rank had just spent in other collectives, longer than this one had
    inherited: Mapping[int, float]
    taken_s: float  # in which this rank's thread could have run, and had no core, outside of collectives
    absent_s: float  # in which it slept, was stopped, or waited for a device, outside of collectives
    computed_s: float  # of the thread's time on a core outside of collectives
    places: tuple[PlaceWaits, ...]
    clock_error_s: float  # below which a difference between hosts is no finding


class StragglerRow(NamedTuple):
    """A rank as `Stragglers` shows it. Seconds are this rank's own, but for ``caused_s`` and ``inherited_s``."""

    rank: int
    host: str
    last: float  # share of its calls for which it came last, from 0 to 1
    caused_s: float  # that it cost the others: what a rank that could wait for it waited, on average
    share: float  # of the run, that `caused_s` is
    waited_s: float  # for ranks that came later
    moved_s: float  # in calls that all ranks had reached
    hidden_s: float  # of calls in flight, while the program did other things
    python_s: float  # around calls, in hpcoll's own Python
    computed_s: float  # on a core, outside of collectives
    absent_s: float  # asleep, stopped, or waiting for a device, outside of collectives
    taken_s: float  # in which it could have run, and had no core, outside of collectives
    inherited_s: float  # for which the others waited because it had itself been held up in other collectives; no part of `caused_s`
    why: str  # it was late, in words; empty where it cost little, or nothing tells


class StragglerPlace(NamedTuple):
    """A place of the program that makes long calls. Seconds are those of one rank, on average over the ranks that call there."""

    place: str  # file and line, such as ``train.py:88``; empty where none is known
    region: str  # names of the regions, outermost first, joined by ``/``; empty outside of them
    calls: int  # long ones, of the rank that made the most
    waited_s: float
    moved_s: float
    most_for: int | None  # rank that was awaited longest; None: nobody waited


class Stragglers(NamedTuple):
    """The ranks that came late, by how much, where and why; ``str()`` gives a table.

    Attributes:
        worst: Rank that stands out, as `judge` says; None where none does.
        verdict: The finding in one sentence.
        rows: All ranks, in order.
        places: Places of the program, the longest wait first.
        calls: Calls that were compared, of the rank that made the most.
        run_s: Wall-clock seconds that this is about.
    """

    worst: int | None
    verdict: str
    rows: tuple[StragglerRow, ...]
    places: tuple[StragglerPlace, ...]
    calls: int
    run_s: float

    def __repr__(self) -> str:
        return f"<hpcoll.Stragglers: {self.verdict}>"

    def _repr_html_(self) -> str:
        return as_html(self)

    def __str__(self) -> str:
        size = f"{counted(self.calls, 'call')} of {counted(len(self.rows), 'rank')} compared, {duration(self.run_s)}"
        ranks = sorted(self.rows, key=lambda row: (-row.caused_s, row.rank))
        cells = [_RANKS, *map(_cells, ranks[:_MOST_ROWS])]
        kept = [
            i
            for i, column in enumerate(zip(*cells, strict=True))
            if any(cell not in ("", _NOTHING) for cell in column[1:])
        ]
        header, *rest = [[row[i] for i in kept] for row in cells]
        lines = [
            self.verdict,
            size,
            "",
            *table(header, rest, _WIDTH, numbers=[at for at, i in enumerate(kept) if 2 <= i < 9]),
        ]
        if len(ranks) > _MOST_ROWS:
            most = duration(ranks[_MOST_ROWS].caused_s)
            lines.append(
                f"and {counted(len(ranks) - _MOST_ROWS, 'other rank')}, each of which cost at most {most}"
            )
        if self.places:
            places = [
                [
                    _short(place.place) or "unknown",
                    printable(place.region),
                    str(place.calls),
                    duration(place.waited_s),
                    duration(place.moved_s),
                    "" if place.most_for is None else f"rank {place.most_for}",
                ]
                for place in self.places[:_MOST_ROWS]
            ]
            lines += ["", *table(_PLACES, places, _WIDTH, numbers=range(2, 5))]
        if len(self.places) > _MOST_ROWS:
            lines.append(
                f"and {counted(len(self.places) - _MOST_ROWS, 'other place')}, where ranks waited less"
            )
        return "\n".join(lines)


def judge(ranks: Sequence[RankWaits], links: Mapping[str, float] | None = None) -> Stragglers:
    """Judge the waits of all ranks of a communicator: say who was late, and whether a rank stands out.

    The cost of a rank is the sum of all ranks' ``caused`` for it, without what it had inherited from other collectives. What it inherited
    is passed on to the ranks for which it had waited there, and by them again. They have been awaited there, so that this is no second
    cost: it only raises the cost of a rank to the most that came from one other. What was spent in moving data is nobody's.

    The rank that cost most stands out where its cost, less `clock_error_s` for each call for which it came last, is

    - at least `LEAST_S` seconds, and `LEAST_SHARE` of the run,
    - at least `FACTOR` times the cost of the rank to compare with: the next one where there are up to 5 ranks; of more, the one a quarter
      down the list of the others, so that a few late ranks do not hide each other.

    No rank stands out where a host's link is `VERY_SLOW_LINK` times slower than the median link, and ranks moved data for longer than the
    rank cost: what comes late over that link makes ranks late in turns.

    Args:
        ranks: Waits of all ranks, by rank.
        links: How many times slower the links of a host are than the median link, by host; None: not known.
    """
    if not ranks:
        return Stragglers(None, "no rank has told of its calls", (), (), 0, 0.0)
    run_s, links = max(rank.run_s for rank in ranks), links or {}
    costs, inherited = _blame(ranks)
    _, owners, ncalls = _between(ranks, lambda rank: rank.held_up_by)
    last = _joined(
        np.maximum, len(ranks), owners, ncalls
    ).tolist()  # of calls in which only some waited, those of one of them
    why = _reasons(ranks, costs, inherited, run_s, links)
    rows = tuple(_row(ranks[i], last[i], costs[i], inherited[i], run_s, why[i]) for i in range(len(ranks)))
    error_s = max(rank.clock_error_s for rank in ranks)
    worst = _worst(rows, [cost - error_s * ncalls for cost, ncalls in zip(costs, last, strict=True)], run_s)
    moved_s = sum(rank.moved_s for rank in ranks) / len(ranks)
    if worst is not None and max(links.values(), default=0.0) >= VERY_SLOW_LINK and moved_s > costs[worst]:
        worst = None
    if worst is not None:
        verdict = _named(rows[worst], ranks)
    else:
        hidden = _worst(rows, costs, run_s)
        verdict = _unnamed(ranks, links, None if hidden is None else rows[hidden].rank)
    return Stragglers(
        None if worst is None else rows[worst].rank,
        verdict,
        rows,
        _places(ranks),
        max(rank.calls for rank in ranks),
        run_s,
    )


def _blame(ranks: Sequence[RankWaits]) -> tuple[list[float], list[float]]:
    """Return what each rank cost, and what it inherited, in seconds."""
    n = len(ranks)
    (_, late, seconds), (_, passes, held_s) = (
        _between(ranks, lambda rank: rank.caused),
        _between(ranks, lambda rank: rank.inherited),
    )
    direct = _joined(np.add, n, late, seconds)
    inherited = np.minimum(_joined(np.add, n, passes, held_s), direct)
    passing = np.divide(inherited, direct, out=np.zeros_like(direct), where=direct > 0)
    waiter, owner, awaited = _between(ranks, lambda rank: rank.waited_for)
    awaited /= np.array([max(rank.waited_s + rank.moved_s, 1e-9) for rank in ranks])[waiter]
    moving, kept = inherited, np.zeros_like(direct)
    for _ in range(_CHAIN if moving.any() else 0):
        arrived = _joined(np.maximum, n, owner, moving[waiter] * awaited)
        kept = np.maximum(kept, arrived * (1 - passing))
        moving = arrived * passing
    return np.maximum(direct - inherited, kept).tolist(), inherited.tolist()


def _between(
    ranks: Sequence[RankWaits], of: Callable[[RankWaits], Mapping[int, float]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions of ranks, positions of others, and what each has of that one: there are few of all pairs."""
    at = {rank.rank: i for i, rank in enumerate(ranks)}
    # some may be missing
    entries = [
        (i, at[rank], number)
        for i, waits in enumerate(ranks)
        for rank, number in of(waits).items()
        if rank in at
    ]
    rows, columns, numbers = zip(*entries, strict=True) if entries else ((), (), ())
    return np.array(rows, np.intp), np.array(columns, np.intp), np.array(numbers, np.float64)


def _joined(how: np.ufunc, n: int, columns: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the sum, or another function, of the numbers of each of ``n`` columns; 0 of a column without any."""
    joined = np.zeros(n)
    how.at(joined, columns, numbers)
    return joined


def _worst(rows: Sequence[StragglerRow], costs: Sequence[float], run_s: float) -> int | None:
    """Return the position of the rank that stands out, by the rule of `judge`; None where none does."""
    if len(rows) < 2:
        return None
    first, *others = sorted(range(len(rows)), key=lambda i: -costs[i])
    beside = others[(len(others) - 1) // 4]
    if costs[first] < max(LEAST_S, LEAST_SHARE * run_s, FACTOR * costs[beside]):
        return None
    return first


def _row(rank: RankWaits, last: float, cost: float, inherited: float, run_s: float, why: str) -> StragglerRow:
    return StragglerRow(
        rank.rank,
        rank.host,
        last / max(rank.calls, 1),
        cost,
        cost / run_s if run_s else 0.0,
        rank.waited_s,
        rank.moved_s,
        rank.hidden_s,
        rank.python_s,
        rank.computed_s,
        rank.absent_s,
        rank.taken_s,
        inherited,
        why,
    )


def _reasons(
    ranks: Sequence[RankWaits],
    costs: Sequence[float],
    inherited: Sequence[float],
    run_s: float,
    links: Mapping[str, float],
) -> list[str]:
    """Return the cause of each rank's lateness in words; empty where it cost little, or nothing tells."""
    late = [i for i in range(len(ranks)) if costs[i] + inherited[i] >= LEAST_SHARE * run_s > 0]
    at = {rank.rank: i for i, rank in enumerate(ranks)}
    held = {
        i: at.get(max(ranks[i].waited_for, key=ranks[i].waited_for.__getitem__, default=-1), -1)
        for i in late
        if inherited[i] > costs[i]
    }
    circles, ordered = (
        _circles(held),
        {field: sorted(getattr(rank, field) for rank in ranks) for field in _CAUSES},
    )
    reasons = [""] * len(ranks)
    for i in late:
        if i in circles:
            reasons[i] = "was held up in other collectives, where ranks waited for each other in turns"
        elif i in held:
            reasons[i] = "was held up in other collectives" + (
                f", most by rank {ranks[held[i]].rank}" if held[i] >= 0 else ""
            )
        else:
            usual = {
                field: _median_without(values, getattr(ranks[i], field)) for field, values in ordered.items()
            }
            reasons[i] = _why(ranks[i], usual, costs[i], links)
    return reasons


def _circles(held: Mapping[int, int]) -> set[int]:
    """Return the keys from which the values, as keys again, lead back to the same one."""
    circles, first_of = set[int](), dict[int, int]()
    for first in held:
        way, at = list[int](), first
        while at in held and at not in first_of:
            first_of[at] = first
            way.append(at)
            at = held[at]
        if first_of.get(at) == first:
            circles.update(way[way.index(at) :])
    return circles


def _median_without(values: Sequence[float], value: float) -> float:
    """Return the median of sorted values but for one of them; 0 where there is no other."""
    place, n = bisect_left(values, value), len(values) - 1
    low, high = (values[i + (i >= place)] for i in ((n - 1) // 2, n // 2)) if n else (0.0, 0.0)
    return (low + high) / 2


def _why(rank: RankWaits, usual: Mapping[str, float], cost: float, links: Mapping[str, float]) -> str:
    """Return the cause of a rank's lateness in words: where most of its time beyond the others' has gone; empty where nothing tells.

    Where all ranks wait for cores, who computes longer waits longer for its core, too. What is told then is whether it had more to compute,
    or had a core for less of that time.
    """
    beyond = {field: getattr(rank, field) - usual[field] for field in _CAUSES}
    computed, taken = usual["computed_s"], usual["taken_s"]
    if taken > _BUSY * computed and beyond["computed_s"] + beyond["taken_s"] >= max(
        TELLING * cost, beyond["absent_s"]
    ):
        more = rank.computed_s >= _FAR * computed
        longer = rank.taken_s * computed >= _FAR * taken * rank.computed_s
        return _UNSURE if more == longer else _CAUSES["computed_s" if more else "taken_s"]
    field = max(beyond, key=lambda name: beyond[name])
    if beyond[field] >= TELLING * cost:
        return _CAUSES[field]
    slower = links.get(rank.host, 0.0)
    return f"has a link {slower:.1f} times slower than the median" if slower >= SLOW_LINK else ""


def _named(row: StragglerRow, ranks: Sequence[RankWaits]) -> str:
    """Return the verdict on the rank that stands out."""
    seconds: dict[str, float] = {}
    for place in (place for rank in ranks for place in rank.places):
        name = _short(place.place) + (f" ({printable(place.region)})" if place.region and place.place else "")
        seconds[name] = seconds.get(name, 0.0) + place.waited_for.get(row.rank, 0.0)
    most = max(seconds, key=lambda name: seconds[name], default="")
    where = f", most at {most}" if most and seconds[most] else ""
    last = f"rank {row.rank} ({printable(row.host)}) came last in {_percent(row.last)} of the calls"
    return (
        f"{last}, which cost {_percent(row.share)} of the run"
        + where
        + (f": it {row.why}" if row.why else "")
    )


def _unnamed(ranks: Sequence[RankWaits], links: Mapping[str, float], hidden: int | None) -> str:
    """Return the verdict where no rank stands out; ``hidden``: one that would if the clocks were exact."""
    parts = {
        "waiting for one rank or another": sum(rank.waited_s for rank in ranks),
        "moving data": sum(rank.moved_s for rank in ranks),
        "hpcoll's own Python": sum(rank.python_s for rank in ranks),
    }
    inside, run = sum(parts.values()), sum(rank.run_s for rank in ranks)
    most = max(parts, key=lambda name: parts[name])
    text = "no calls were compared"
    if any(rank.calls for rank in ranks) and inside > 0:
        share = f", {_percent(inside / run)} of the run" if run else ""
        text = f"no rank stands out; {_percent(parts[most] / inside)} of the time in collectives{share}, is {most}"
    if hidden is not None:
        text += f"; what rank {hidden} cost is within the error of the clocks"
    slowest = max(links, key=lambda host: links[host], default="")
    if links.get(slowest, 0.0) >= SLOW_LINK:
        text += f"; the link of {printable(slowest)} is {links[slowest]:.1f} times slower than the median"
    return text


def _places(ranks: Sequence[RankWaits]) -> tuple[StragglerPlace, ...]:
    """Return the places of all ranks, the longest wait first."""
    places: dict[tuple[str, str], list[PlaceWaits]] = {}
    for place in (place for waits in ranks for place in waits.places):
        places.setdefault((place.place, place.region), []).append(place)
    rows = []
    for (name, region), every in places.items():
        awaited: dict[int, float] = {}
        for rank, seconds in (pair for waits in every for pair in waits.waited_for.items()):
            awaited[rank] = awaited.get(rank, 0.0) + seconds
        waited_s, moved_s = (
            sum(times) / len(every)
            for times in zip(*((waits.waited_s, waits.moved_s) for waits in every), strict=True)
        )
        most_for = max(awaited, key=lambda rank: awaited[rank], default=None)
        rows.append(
            StragglerPlace(name, region, max(waits.calls for waits in every), waited_s, moved_s, most_for)
        )
    return tuple(sorted(rows, key=lambda row: (-row.waited_s, row.place, row.region)))


def _cells(row: StragglerRow) -> tuple[str, ...]:
    """Return a rank's cells of the table."""
    times = [duration(seconds) for seconds in (row.waited_s, row.moved_s, row.hidden_s, row.python_s)]
    return (
        str(row.rank),
        printable(row.host),
        _percent(row.last),
        duration(row.caused_s),
        _percent(row.share),
        *times,
        row.why,
    )


def _short(place: str) -> str:
    """Return a place without the folders of its file."""
    return printable(place.rpartition("/")[2])


def _percent(share: float) -> str:
    """Return a share as per cent."""
    return f"{100 * share:.{0 if share >= 0.0995 or not share else 1}f} %"
