"""The trace of one run, read from its files into columns: 33 bytes for each slice, 32 for each wait, and every text once."""

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import MAX_INTEGER
from hpcoll.base.text import LINE, MAX_RANKS, printable, quoted
from hpcoll.cli.trace.events import Event, EventLines, Slices, began, blocks

# categories of slices; OTHER: of other tools; a `RunTrace` has the first ones
CALL, IN_WAIT, REGION, OTHER, STEP, WAIT, SERVICE = range(7)
LANES = 16  # rows of a rank, at most
_CATEGORIES = {
    "call": CALL,
    "in wait": IN_WAIT,
    "region": REGION,
    "step": STEP,
    "service": SERVICE,
    "moves": SERVICE,
}
_FARTHEST_US = 1e17  # of times, some 3000 years


class CallKind(NamedTuple):
    """The calls that are alike in all but their times; texts are empty, numbers -1, where the trace says nothing."""

    name: str
    comm: str
    nbytes: int
    nelements: int
    type: str
    op: str
    root: int  # rank of the communicator
    algorithm: str
    at: str
    region: str
    lane: int  # message context of the communicator; each counts its calls

    @property
    def method(self) -> str:
        """The method that the program called, also where it waits for a call in flight."""
        return self.name.removeprefix("Wait ")


class TraceRow(NamedTuple):
    """A row of the timeline; ``rank`` and ``lane`` are -1 in traces of other tools."""

    host: int  # key of `Trace.hosts`
    tid: str
    rank: int
    lane: int


class RunTrace(NamedTuple):
    """The trace of a run; times are microseconds."""

    rows: Sequence[TraceRow]
    row_names: dict[int, str]  # by position in `rows`, where the file has one
    hosts: dict[int, str]  # by number of the node
    about: dict[int, dict[str, Any]]  # what each rank says of itself
    kinds: Sequence[CallKind]
    nranks: int  # of the run; 0: not known
    lost: int  # calls that were too fast to be written
    row: np.ndarray  # of each slice: position in `rows`
    category: np.ndarray
    kind: np.ndarray  # position in `kinds`
    number: np.ndarray  # of the call; -1: none
    start: np.ndarray
    length: np.ndarray
    waits: np.ndarray  # structured: row, number, start, length, owner

    rank: np.ndarray  # of each slice
    lane: np.ndarray

    def numbers(self, *fields: str) -> list[int]:
        """Return a number for each kind, which kinds with equal fields have in common."""
        numbers = _Numbers()
        return [numbers[tuple(getattr(kind, field) for field in fields)] for kind in self.kinds]

    def host_of(self) -> dict[int, str]:
        """Return the host of each rank."""
        return {row.rank: self.hosts.get(row.host, f"node {row.host}") for row in self.rows if row.rank >= 0}

    def clock_error_us(self, rank: int) -> float:
        """Return by how much the clock of a rank may differ from the others', 0 where the trace does not say."""
        error = self.about.get(rank, {}).get("clock_error_us", 0)
        return float(error) if isinstance(error, int | float) and 0 <= error <= _FARTHEST_US else 0.0


def read(files: Sequence[str], *, steps: bool = False) -> RunTrace:
    """Read the files of one run, with the steps of calls if wanted; ArgumentError names file and line of what is no trace."""
    reader = _TraceReader(STEP if steps else OTHER)
    for file in files:
        reader.file = file
        for block in blocks(file):
            index = -1
            try:
                reader.take_slices(block)
                for index, event in enumerate(block.events()):  # noqa: B007
                    reader.take(event)
            except ArgumentError:
                raise
            except (ValueError, TypeError, AttributeError, LookupError) as error:
                text = (
                    error
                    if isinstance(error, _Bad)
                    else "expected an event with ts, dur, pid, tid and args, got another object"
                )
                raise block.refused(index, ValueError(text)) from None
    if not reader.slices[0]:
        raise ArgumentError(f"{printable(', '.join(files), LINE)}: expected a trace, got no slices")
    return reader.trace()


class _Bad(ValueError):
    """An event that is refused, and why."""


class _Numbers(dict[Any, int]):
    """Positions of values in the order in which they came."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


class _TraceReader:
    """The columns while they grow."""

    def __init__(self, last: int) -> None:
        self.file, self.last = "", last  # category of slices that are wanted
        self.rows, self.kinds, self.pids = _Numbers(), _Numbers(), _Numbers()
        self.tracks = dict[tuple[Any, Any, bool], int]()
        self.row_names, self.hosts = dict[tuple[Any, Any], str](), dict[int, str]()
        self.about, self.about_in = dict[int, dict[str, Any]](), dict[int, str]()
        self.slices: tuple[array[Any], ...] = (
            array("i"),
            array("b"),
            array("i"),
            array("q"),
            array("d"),
            array("d"),
        )
        self.waits: tuple[array[Any], ...] = array("i"), array("q"), array("d"), array("d"), array("i")
        self.forms = dict[bytes, tuple[int, int, int, int]]()
        self.lost = 0
        self.open = dict[tuple[Any, Any], list[Event]]()
        self.phases: dict[Any, Callable[[Event], None]] = {
            "X": self._slice,
            "M": self._metadata,
            "B": self._begin,
            "E": self._end,
            "i": self._note,
        }

    def take(self, event: Event) -> None:
        """Add an event to the columns; those of other phases say nothing that the slices do not."""
        phase = self.phases.get(event.get("ph"))
        if phase:
            phase(event)

    def take_slices(self, block: EventLines) -> None:
        """Add those slices of a block that are as hpcoll writes them; none where one of them is bad, which is found line by line."""
        try:
            found = block.slices()
            if found is not None:
                self._add(found)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError):
            block.whole()

    def _add(self, found: Slices) -> None:
        here = {form: number for number, form in enumerate(dict.fromkeys(found.forms))}
        for form in [form for form in here if form not in self.forms]:
            self.forms[form] = self._form(Slices.event(form))
        known = np.array([self.forms[form] for form in here], np.int64).reshape(-1, 4)
        category, row, kind, owner = known[[here[form] for form in found.forms]].reshape(-1, 4).T
        times, number = np.array([found.starts, found.lengths]), np.array(found.numbers, np.int64)
        if not (times <= _FARTHEST_US).all():
            raise ValueError
        added = (
            (category <= self.last, self.slices, (row, category, kind, number, *times)),
            (category == WAIT, self.waits, (row, number, *times, owner)),
        )
        for chosen, columns, every in added:
            for column, values in zip(columns, every):
                column.frombytes(values[chosen].astype(column.typecode).tobytes())

    def _form(self, event: Event) -> tuple[int, int, int, int]:
        """Return category, row, kind and the rank that is awaited of a slice, whatever its number and times."""
        category, args = event.get("cat"), event.get("args") or {}
        if category == "wait" and "for" in args:
            owner = args["for"]
            if not (isinstance(owner, int) and 0 <= owner < MAX_RANKS):
                raise _Bad(f"expected a rank that is awaited, got {quoted(owner)}")
            return WAIT, self._row(event, True), -1, owner
        ours = _CATEGORIES.get(category, OTHER) if isinstance(category, str) else OTHER
        if ours != REGION and "call" not in args:
            ours = OTHER
        return ours, self._row(event, ours != OTHER), self._kind(str(event.get("name", "")), args), -1

    def _slice(self, event: Event) -> None:
        start, length = event["ts"], event.get("dur", 0)
        if "issued" in event:
            start, length = began(start, length, event["issued"])
        if not (-_FARTHEST_US <= start <= _FARTHEST_US and 0 <= length <= _FARTHEST_US):
            raise _Bad(
                f"expected finite times and a duration of at least 0, got ts {quoted(start)}, dur {quoted(length)}"
            )
        category, row, kind, owner = self._form(event)
        number = _call_number((event.get("args") or {}).get("call", -1)) if category != OTHER else -1
        if category == WAIT:
            for column, value in zip(self.waits, (row, number, start, length, owner)):
                column.append(value)
        elif category <= self.last:
            for column, value in zip(self.slices, (row, category, kind, number, start, length)):
                column.append(value)

    def _row(self, event: Event, ours: bool) -> int:
        pid, tid = event.get("pid", 0), event.get("tid", 0)
        track = self.tracks.get((pid, tid, ours))
        if track is None:
            rank, lane = divmod(tid, LANES) if ours else (-1, -1)
            if ours and not (isinstance(tid, int) and 0 <= rank < MAX_RANKS):
                raise _Bad(f"expected the tid of a rank and a lane, got {quoted(tid)}")
            track = self.tracks[pid, tid, ours] = self.rows[
                TraceRow(self.pids[pid], printable(str(tid)), rank, lane)
            ]
        return track

    def _kind(self, name: str, args: dict[str, Any]) -> int:
        get = args.get
        key = (
            name,
            get("comm", ""),
            get("bytes", -1),
            get("count", -1),
            get("type", ""),
            get("op", ""),
            get("root", -1),
            get("algorithm", ""),
            get("at", ""),
            get("region", ""),
            get("lane", 0),
        )
        found = self.kinds.get(key)
        return self.kinds[key] if found is None else found

    def _metadata(self, event: Event) -> None:
        args, name = event.get("args", {}), event.get("name")
        if name == "process_name":
            self.hosts[self.pids[event.get("pid", 0)]] = printable(str(args["name"]))
        elif name == "thread_name":
            self.row_names[event.get("pid", 0), event.get("tid", 0)] = printable(str(args["name"]))
        elif name == "hpcoll" and isinstance(rank := args.get("rank"), int):
            if rank in self.about_in:
                both = (
                    f"{quoted(self.about_in[rank])} and {quoted(self.file)}"
                    if self.about_in[rank] != self.file
                    else quoted(self.file)
                )
                raise _Bad(
                    f"expected the trace of one run, got rank {rank} twice, in {both}; --against compares two runs"
                )
            self.about[rank], self.about_in[rank] = args, self.file

    def _begin(self, event: Event) -> None:
        self.open.setdefault((event.get("pid", 0), event.get("tid", 0)), []).append(event)

    def _end(self, event: Event) -> None:
        begun = self.open.get((event.get("pid", 0), event.get("tid", 0)))
        if begun:
            first = begun.pop()
            self._slice({**event, **first, "dur": max(0, event["ts"] - first["ts"])})

    def _note(self, event: Event) -> None:
        if event.get("cat") == "missing":
            self.lost += max(0, _call_number(event["args"]["calls"]))

    def trace(self) -> RunTrace:
        """Return the columns as arrays."""
        names = (
            ("row", np.int32),
            ("number", np.int64),
            ("start", np.float64),
            ("length", np.float64),
            ("owner", np.int32),
        )
        waits = np.empty(len(self.waits[0]), list(names))
        for (name, _), column in zip(names, self.waits):
            waits[name] = column
        said = [about.get("ranks", 0) for about in self.about.values()]
        nranks = max((one for one in said if isinstance(one, int) and one <= MAX_RANKS), default=0)
        rows = [_of_ranks(row, nranks) for row in self.rows]
        columns = [np.array(column) for column in self.slices]
        lanes = np.array([(row.rank, row.lane) for row in rows], np.int32)[columns[0]]
        named = {
            row: self.row_names[pid, tid]
            for (pid, tid, _), row in self.tracks.items()
            if (pid, tid) in self.row_names
        }
        return RunTrace(
            rows,
            named,
            self.hosts,
            self.about,
            [_clean(kind) for kind in self.kinds],
            nranks,
            self.lost,
            columns[0],
            columns[1],
            columns[2],
            columns[3],
            columns[4],
            columns[5],
            waits,
            lanes[:, 0],
            lanes[:, 1],
        )


def _of_ranks(row: TraceRow, nranks: int) -> TraceRow:
    """Return a row with its rank and lane: the tids of a rank's lanes beyond the first ones follow those of all ranks."""
    if not row.rank >= nranks > 0:
        return row
    return row._replace(rank=row.rank % nranks, lane=min(row.lane + row.rank // nranks * LANES, MAX_RANKS))


def _call_number(number: Any) -> int:
    if isinstance(number, int) and -1 <= number <= MAX_INTEGER:
        return number
    raise _Bad(f"expected the number of a call, got {quoted(number)}")


def _clean(kind: tuple[Any, ...]) -> CallKind:
    """Return a kind of the types that it declares, its texts in one printable line."""
    values = zip(kind, CallKind.__annotations__.values())
    return CallKind._make(printable(str(value)) if of is str else _whole(value) for value, of in values)


def _whole(value: Any) -> int:
    return (
        int(value)
        if isinstance(value, int | float) and math.isfinite(value) and abs(value) <= MAX_INTEGER
        else -1
    )
