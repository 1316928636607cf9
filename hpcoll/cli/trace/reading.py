"""The trace of one run, read from its files into columns: records of calls as ranks have written them, and slices for the timeline."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.base.files import reading
from hpcoll.base.json_fields import MAX_INTEGER
from hpcoll.base.text import LINE, MAX_RANKS, format_nbytes, printable, quoted
from hpcoll.cli.trace import foreign
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.telemetry.trace_blocks import MAGIC, Block, blocks

# categories of slices; OTHER: of other tools; a `RunTrace` has the first ones
CALL, IN_WAIT, REGION, OTHER, STEP, SERVICE = range(6)
_LATEST_NS, _MOST_COUNT = 1 << 62, 1 << 42  # of times; of bytes or elements in a call
_MIX = (-7046029254386353131, -4417276706812531889, 1609587929392839161, 6364136223846793005)
_CODE, _SEGMENT = (1 << f.STEP_SEGMENT_AT) - 1, (1 << f.STEP_PEER_AT - f.STEP_SEGMENT_AT) - 1
_FORMS = {  # of records: their width, and which of their fields are times
    "calls": (f.RECORD_NFIELDS, (f.ITS_BEGIN, f.ITS_END, f.ITS_WAIT_BEGIN, f.ITS_WAIT_END)),
    "left": (3, (1, 2)),
    "steps": (f.STEP_NFIELDS, (f.STEP_BEGIN, f.STEP_END)),
}
_STEPS = {  # of an operation: its kind, and its name
    Code.RECV: ("receive", "receive{nbytes} from {peer}"),
    Code.SEND: ("send", "send{nbytes} to {peer}"),
    Code.POST: ("send", "send{nbytes} to {peer}"),
    Code.WAIT: ("wait", "wait for {peer}"),
    Code.AWAIT: ("wait", "wait for {peer}"),
    Code.DRAIN: ("wait", "wait until {peer} has read"),
    Code.UNREAD: ("wait", "wait until {peer} has read"),
    Code.RESERVE: ("wait", "wait for room"),
    Code.COPY: ("copy", "copy{nbytes}"),
    Code.STAGE: ("copy", "copy{nbytes}"),
    Code.REDUCE: ("reduce", "reduce{nbytes}"),
}


class CallKind(NamedTuple):
    """The calls that are alike in all but their times; texts are empty, numbers -1, where the trace says nothing."""

    name: str
    comm: str = ""
    nbytes: int = -1
    nelements: int = -1
    type: str = ""
    op: str = ""
    root: int = -1  # rank of the communicator
    algorithm: str = ""
    at: str = ""
    region: str = ""
    lane: int = 0  # message context of the communicator; each counts its calls
    peer: int = -1  # of a step
    segment: int = -1  # of a step

    @property
    def method(self) -> str:
        """The method that the program called, also where it waits for a call in flight."""
        return self.name.removeprefix("Wait ")


class TraceRow(NamedTuple):
    """A row of the timeline; ``rank`` and ``lane`` are -1 in traces of other tools."""

    host: int  # position in `RunTrace.hosts`
    rank: int
    lane: int  # 0: blocking calls and regions; the others alike on all ranks
    name: str


class Context(NamedTuple):
    """A message context of a rank, while it serves one communicator."""

    rank: int  # in MPI_COMM_WORLD
    comm: str
    lane: int
    form: str
    at: int  # rank of the communicator
    size: int
    sources: list[int]  # from which it receives in neighbourhood collectives


class Signature(NamedTuple):
    """The signature of a call: what is alike in calls but for count, place and region."""

    name: str = "a call"
    service: bool = False
    type: str = ""
    op: str = ""
    root: int = -1
    algorithm: str = ""
    nbytes: int = -1  # of a count of 1; -1: not known
    per_element: int = 0  # of a count; 0: not known


class RunTrace(NamedTuple):
    """The trace of a run; times of slices are microseconds."""

    rows: list[TraceRow]
    hosts: list[str]
    about: dict[int, dict[str, Any]]  # what each rank says of itself
    kinds: list[CallKind]
    nranks: int  # of the run; 0: not known
    lost: int  # calls that were too fast to be written
    lost_at: list[tuple[int, float, str]]  # rows, times, and what was lost there in words
    contexts: list[Context]
    records: np.ndarray  # int64 (n, RECORD_NFIELDS) of all calls, on one clock
    context: np.ndarray  # of each record: position in `contexts`
    call_number: np.ndarray  # of each record
    service: np.ndarray  # bool, of each record
    row: np.ndarray  # of each slice: position in `rows`
    category: np.ndarray
    kind: np.ndarray  # position in `kinds`
    number: np.ndarray  # of the call; -1: none
    record: np.ndarray  # of the call: position in `records`; -1: none
    start: np.ndarray
    length: np.ndarray
    rank: np.ndarray
    lane: np.ndarray

    def numbers(self, *fields: str) -> list[int]:
        """Return a number for each kind, which kinds with equal fields have in common."""
        numbers = _Numbers()
        return [numbers[tuple(getattr(kind, field) for field in fields)] for kind in self.kinds]

    def host_of(self) -> dict[int, str]:
        """Return the host of each rank."""
        return {row.rank: self.hosts[row.host] for row in self.rows if row.rank >= 0}

    def clock_error_us(self, rank: int) -> float:
        """Return by how much the clock of a rank may differ from the others', 0 where the trace does not say."""
        error = self.about.get(rank, {}).get("clock_error_us", 0)
        return float(error) if isinstance(error, int | float) and 0 <= error <= foreign.FARTHEST_US else 0.0


def read(files: Sequence[str], last: int = OTHER) -> RunTrace:
    """Read the files of one run, with slices of the categories up to ``last``; ArgumentError names the place of what is no trace."""
    reader = _TraceReader()
    for file in files:
        try:
            with reading(file) as opened:
                ours = opened.read(len(MAGIC)) == MAGIC
                for block in blocks(opened) if ours else ():
                    reader.take(file, block)
        except OSError as error:
            raise ArgumentError(f"cannot read {printable(file, LINE)}: {error.strerror}") from None
        if not ours:
            reader.foreign += foreign.slices(file)
    trace = reader.trace(last)
    if not len(trace.start):
        raise ArgumentError(f"{printable(', '.join(files), LINE)}: expected a trace, got no slices")
    return trace


class _Numbers(dict[Any, int]):
    """Positions of values in the order in which they came."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


class _Process:
    """The names of one rank, by the numbers that its records have."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.contexts = dict[int, int]()
        self.places, self.regions = dict[int, str](), dict[int, str]()
        self.signatures = dict[int, Signature]()


class _Records:
    """Records of one form, block by block: whose they are, the number of the first one, and themselves."""

    def __init__(self, width: int, times: Sequence[int]) -> None:
        self._width, self._times = width, list(times)
        self._blocks: list[tuple[int, int, np.ndarray]] = []

    def add(self, owner: int, first: int, content: bytes, clock: Any) -> int:
        """Add what a block has, with times on the clock of rank 0's host, and return the begin of the first record."""
        records = np.frombuffer(content, np.int64, len(content) // 8 // self._width * self._width)
        records = records.reshape(-1, self._width)
        if clock is not None:
            at, offset, drift = _whole(abs(clock[0])), clock[1], clock[2]
            if not (isinstance(offset, int) and abs(offset) <= _LATEST_NS and abs(drift) <= 1):
                raise ArgumentError("expected a line of a clock, got another one")
            records, times = records.copy(), records[:, self._times]
            moved = times + offset + np.rint(drift * (times - at)).astype(np.int64)
            records[:, self._times] = np.where(times, moved, 0)
        self._blocks.append((owner, first, records))
        return int(records[0, self._times[0]]) if len(records) else 0

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all records, the owner of each, and the number of each; no time is negative."""
        owners, firsts, parts = zip(*self._blocks) if self._blocks else ((), (), ())
        lengths = np.array([len(part) for part in parts], np.int64)
        records = np.concatenate([np.empty((0, self._width), np.int64), *parts])
        records[:, self._times] = np.clip(records[:, self._times], 0, _LATEST_NS)
        begins = np.cumsum(lengths) - lengths
        numbers = np.arange(len(records)) + np.repeat(np.array(firsts, np.int64) - begins, lengths)
        return records, np.repeat(np.array(owners, np.int64), lengths), numbers


class _TraceReader:
    """The blocks of a run, while they are read."""

    def __init__(self) -> None:
        self.foreign: list[foreign.ForeignSlice] = []
        self._processes = defaultdict[int, _Process](_Process)
        self._files = dict[int, str]()  # in which each rank is introduced
        self._contexts: list[Context] = []
        self._records = {what: _Records(*form) for what, form in _FORMS.items()}
        self._lost = list[tuple[int, int, int, str]]()  # context, time, how many, of what

    def take(self, file: str, block: Block) -> None:
        """Add a block of a file."""
        try:
            self._take(file, json.loads(block.text), block.records)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
            said = (
                error if isinstance(error, ArgumentError) else "expected a block of a trace, got another one"
            )
            raise ArgumentError(f"{printable(file, LINE)}, byte {block.at}: {said}") from None

    def _take(self, file: str, about: dict[str, Any], content: bytes) -> None:
        rank = _whole(about["rank"], MAX_RANKS - 1)
        process = self._processes[rank]
        if "version" in about:
            if rank in self._files:
                both = " and ".join(quoted(name) for name in dict.fromkeys((self._files[rank], file)))
                raise ArgumentError(
                    f"expected the trace of one run, got rank {rank} twice, in {both}; --against compares two runs"
                )
            process.about, self._files[rank] = about, file
        if "context" in about:
            process.contexts[_whole(about["context"])] = len(self._contexts)
            self._contexts.append(_context(rank, about))
        process.places |= _texts(about.get("places", {}))
        process.regions |= _texts(about.get("regions", {}))
        process.signatures |= {
            int(word): _signature(said) for word, said in about.get("signatures", {}).items()
        }
        what = next((name for name in _FORMS if name in about), "")
        if what:
            owner = rank if what == "left" else process.contexts[_whole(about[what])]
            first = _whole(about["first"]) if what == "calls" else 0
            begin = self._records[what].add(owner, first, content, about.get("clock"))
            if lost := _whole(about.get("lost", 0)):
                self._lost.append((owner, begin, lost, what))

    def trace(self, last: int) -> RunTrace:
        """Return the columns, with slices of the categories up to ``last``."""
        rows, kinds, hosts = _Numbers(), _Numbers(), _Numbers()
        host = {
            rank: hosts[printable(str(process.about.get("host", "unknown")))]
            for rank, process in sorted(self._processes.items())
        }
        lanes = _Numbers()
        lane = [
            1 + lanes[message_context.comm, message_context.lane] if message_context.lane else 0
            for message_context in self._contexts
        ]
        main = {rank: rows[TraceRow(host[rank], rank, 0, f"rank {rank}")] for rank in sorted(host)}
        row = np.array(
            [
                rows[
                    TraceRow(
                        host[message_context.rank],
                        message_context.rank,
                        at,
                        f"rank {message_context.rank} {message_context.form} {at}",
                    )
                ]
                if at
                else main[message_context.rank]
                for message_context, at in zip(self._contexts, lane)
            ],
            np.int64,
        )
        records, context, number = self._records["calls"].columns()
        kind, waits, service = self._call_kinds(records, context, kinds)
        main_row = np.array([main[message_context.rank] for message_context in self._contexts], np.int64)[
            context
        ]
        waiting = np.flatnonzero((records[:, f.ITS_WAIT_BEGIN] > 0) & (np.array(lane, np.int64)[context] > 0))
        steps, step_context, _ = (
            self._records["steps"] if last >= STEP else _Records(*_FORMS["steps"])
        ).columns()
        regions, owner, _ = self._records["left"].columns()
        others = [
            (rows[TraceRow(hosts[event.host], -1, -1, event.row)], kinds[CallKind(event.name)])
            for event in self.foreign
        ]
        other_row, other_kind = np.array(others, np.int64).reshape(-1, 2).T
        starts = np.array([event.start for event in self.foreign])
        ends = starts + [event.length for event in self.foreign]
        left = np.array([main[rank] for rank in owner.tolist()], np.int64)
        region_kind, step_kind = self._region_kinds(regions, owner, kinds), self._step_kinds(steps, kinds)
        begin, end = records[:, f.ITS_BEGIN], records[:, f.ITS_END]
        waits_begin, waits_end = records[waiting][:, [f.ITS_WAIT_BEGIN, f.ITS_WAIT_END]].T
        # row, category, kind, number of the call, its record, begin and end in nanoseconds
        parts = [
            (
                row[context],
                np.where(service, SERVICE, CALL),
                kind,
                number,
                np.arange(len(records)),
                begin,
                end,
            ),
            (main_row[waiting], IN_WAIT, waits[waiting], number[waiting], waiting, waits_begin, waits_end),
            (left, REGION, region_kind, -1, -1, regions[:, 1], regions[:, 2]),
            (
                row[step_context],
                STEP,
                step_kind,
                steps[:, f.STEP_CALL],
                -1,
                steps[:, f.STEP_BEGIN],
                steps[:, f.STEP_END],
            ),
            (other_row, OTHER, other_kind, -1, -1, 1000 * starts, 1000 * ends),
        ]
        columns = [
            np.concatenate([np.broadcast_to(values, len(part[0])) for values, part in zip(column, parts)])
            for column in zip(*parts)
        ]
        start = columns[5] / 1000
        length = np.maximum(columns[6] / 1000 - start, 0.0)
        chosen = np.flatnonzero(columns[1] <= last)
        slices = [column[chosen] for column in (*columns[:5], start, length)]
        places = np.array([(place.rank, place.lane) for place in rows], np.int64).reshape(-1, 2)[slices[0]]
        said = [process.about.get("ranks", 0) for process in self._processes.values()]
        return RunTrace(
            list(rows),
            list(hosts),
            {rank: process.about for rank, process in self._processes.items()},
            list(kinds),
            max((n for n in said if isinstance(n, int) and n <= MAX_RANKS), default=0),
            sum(lost for _, _, lost, what in self._lost if what == "calls"),
            [
                (int(row[owner]), time / 1000, f"{lost} {what} before are missing")
                for owner, time, lost, what in self._lost
            ],
            self._contexts,
            records,
            context,
            number,
            service,
            row=slices[0],
            category=slices[1],
            kind=slices[2],
            number=slices[3],
            record=slices[4],
            start=slices[5],
            length=slices[6],
            rank=places[:, 0],
            lane=places[:, 1],
        )

    def _call_kinds(
        self, records: np.ndarray, context: np.ndarray, kinds: _Numbers
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the kind of each call, and of its wait, and whether it is a service."""
        rows = []
        firsts, which = _alike(context, records[:, 0], records[:, 1], records[:, f.ITS_NAMES])
        for at in firsts.tolist():
            message_context, (word, count) = self._contexts[context[at]], records[at, :2].tolist()
            process, names = self._processes[message_context.rank], int(records[at, f.ITS_NAMES])
            signature = process.signatures.get(word, Signature())
            kind = CallKind(
                f"I{signature.name.lower()}" if message_context.form == "in flight" else signature.name,
                "" if signature.service else message_context.comm,
                count * signature.nbytes if signature.nbytes >= 0 and 0 <= count < _MOST_COUNT else -1,
                count // signature.per_element if signature.per_element and count >= 0 else -1,
                signature.type,
                signature.op,
                signature.root,
                signature.algorithm,
                process.places.get(names >> f.PLACE_AT, ""),
                process.regions.get(names & f.REGION_BITS, ""),
                message_context.lane,
            )
            waiting = kinds[kind._replace(name=f"Wait {kind.name}")] if message_context.lane else -1
            rows.append((kinds[kind], waiting, signature.service))
        columns = np.array(rows, np.int64).reshape(-1, 3)[which].T
        return columns[0], columns[1], columns[2] > 0

    def _region_kinds(self, regions: np.ndarray, owner: np.ndarray, kinds: _Numbers) -> np.ndarray:
        firsts, which = _alike(owner, regions[:, 0])
        names = (
            self._processes[rank].regions.get(int(regions[at, 0]), "")
            for at, rank in zip(firsts.tolist(), owner[firsts].tolist())
        )
        return np.array([kinds[CallKind(name)] for name in names], np.int64)[which]

    def _step_kinds(self, steps: np.ndarray, kinds: _Numbers) -> np.ndarray:
        firsts, which = _alike(steps[:, f.STEP_WHAT], steps[:, f.STEP_NBYTES])
        whats = steps[firsts][:, [f.STEP_WHAT, f.STEP_NBYTES]].tolist()
        return np.array([kinds[_step(*what)] for what in whats], np.int64)[which]


def _step(what: int, nbytes: int) -> CallKind:
    code, segment, peer = (
        what & _CODE,
        (what >> f.STEP_SEGMENT_AT & _SEGMENT) - 1,
        (what >> f.STEP_PEER_AT) - 1,
    )
    kind, text = _STEPS.get(code, ("", "a step"))  # type: ignore[call-overload]
    size = f" {format_nbytes(nbytes)}" if nbytes >= 0 else ""
    name = text.format(nbytes=size, peer=peer) + (f" segment {segment}" if segment >= 0 else "")
    return CallKind(name, nbytes=nbytes, type=kind, peer=peer, segment=segment)


def _alike(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each of the rows of some columns that differ is for the first time, and which of these each row is."""
    mixed = np.zeros(len(columns[0]), np.int64)
    for column, mix in zip(columns, _MIX):
        mixed ^= column * np.int64(mix)
    _, firsts, which = np.unique(mixed, return_index=True, return_inverse=True)
    return firsts, which


def _context(rank: int, about: dict[str, Any]) -> Context:
    size = _whole(about["size"], MAX_RANKS)
    sources = [_whole(source, size - 1) for source in about["sources"]]
    comm, form = (printable(str(about[name])) for name in ("comm", "form"))
    return Context(rank, comm, _whole(about["lane"]), form, _whole(about["at"], size - 1), size, sources)


def _signature(said: dict[str, Any]) -> Signature:
    texts = (printable(str(said[name] or "")) for name in ("name", "type", "op", "algorithm"))
    name, element, op, algorithm = texts
    root, nbytes = (-1 if said[key] is None else _whole(said[key], 1 << 20) for key in ("root", "nbytes"))
    return Signature(
        name,
        bool(said["service"]),
        element,
        op,
        root,
        algorithm,
        nbytes,
        _whole(said["per_element"], 1 << 20),
    )


def _texts(said: dict[str, Any]) -> dict[int, str]:
    return {int(number): printable(str(text)) for number, text in said.items()}


def _whole(number: Any, most: int = MAX_INTEGER >> 1) -> int:
    if isinstance(number, int) and 0 <= number <= most:
        return number
    raise ArgumentError(f"expected a whole number from 0 to {most}, got {quoted(number)}")
