"""Rows of a trace: each is a message context of a process, and has its calls, waits and arrows as lines."""

import os
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.comm.plans.signature import Signature
from hpcoll.comm.status.names import place_text, region_text
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.telemetry.compared import ComparedCalls
from hpcoll.comm.telemetry.trace_lines import Form, form, line, lines, thousandths, whole
from hpcoll.runtime.program import fields as f

Lines: TypeAlias = list[bytes | np.ndarray]

LEAST_NS, ARROW_NS = 1000, 10_000  # shorter waits are summed up; have no arrow
# begins of other ranks are rounded to the first; a call is at least as long, so that arrows meet it
_TICK_NS, _LEAST_SLICE_NS = (
    16,
    50,
)
# after the last rank came: readers that keep times as floats tell them apart for years
_MOVES_AT, _ENDS_AT = (
    2 * _TICK_NS,
    3 * _TICK_NS,
)
_ROWS = 16  # of a rank, usually
_MOST_KINDS = 4096  # that are kept
_world: dict[
    str, str
] = {}  # by the world's name the key of its first communicator: calls of one that was recovered are numbered anew
# odd numbers, by which words of a kind or a step make one number
MIX = (
    -7046029254386353131,
    -4417276706812531889,
    1609587929392839161,
)


class Positions:
    """The positions of rows: each host is a process of the trace, and each row of a rank one of its threads.

    Args:
        resources: Of the first communicator of this process.
    """

    def __init__(self, resources: Resources) -> None:
        world, hosts = MPI.COMM_WORLD, resources.topology.hosts
        self.rank, self._nranks, self._narrows = world.rank, world.size, 0
        whole = resources.nranks == world.size  # else other ranks may count hosts in another order
        self._nodes = {host: node for node, host in enumerate(dict.fromkeys(hosts))} if whole else {}
        self.host, self._folder = resources.host, os.getcwd() + os.sep
        self.node = self.node_of(self.host)

    def node_of(self, host: str) -> int:
        """Return the number of a host."""
        return self._nodes[host] if host in self._nodes else zlib.crc32(host.encode()) >> 1

    def here(self, place: str) -> str | None:
        """Return a place relative to the folder in which the program ran when its trace began."""
        return place.removeprefix(self._folder) or None

    def of(self, resources: Resources, rank: int, row: int) -> dict[str, Any]:
        """Return where the row of a rank of a communicator is; row 0: its blocking calls."""
        return {
            "pid": self.node_of(resources.topology.hosts[rank]),
            "tid": self._tid(resources.team.world_ranks[rank], row),
        }

    def own(self, row: int) -> dict[str, Any]:
        """Return where a row of this process is."""
        return {"pid": self.node, "tid": self._tid(self.rank, row)}

    def arrows(self, count: int) -> np.ndarray:
        """Return numbers for new arrows, which no other arrow of any rank has."""
        self._narrows += count
        return np.arange(self._narrows - count, self._narrows) * self._nranks + self.rank

    def _tid(self, rank: int, row: int) -> int:
        return (rank + row // _ROWS * self._nranks) * _ROWS + row % _ROWS


class _Kind(NamedTuple):
    """A kind of call, with equal lines but for number and times."""

    form: Form
    waiting: Form  # of the program's wait for it
    nbytes: int


class Row:
    """The row of a message context.

    Args:
        positions: Where rows are.
        number: Number of the row among those of this process; 0: all blocking calls.
        lane: Position of the message context among `Resources.every_message_context`; 0: blocking calls.
        common: Returns times of this host on the clock of all hosts.

    Attributes:
        written: Number of the last call of which the slice has been written.
        begun: Number of the last call that counters know of.
    """

    def __init__(
        self, positions: Positions, number: int, lane: int, common: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self._positions, self.lane, self._common, self._number = positions, lane, common, number
        self.at = positions.own(number)
        self.written = self.begun = self._free_at = 0
        self._life = -1
        self._forget()
        # of what the program waits
        self._bounds = (f.ITS_WAIT_BEGIN, f.ITS_WAIT_END) if lane else (f.ITS_BEGIN, f.ITS_END)

    def calls(self, resources: Resources, first: int, records: np.ndarray) -> tuple[Lines, np.ndarray]:
        """Return the slices of calls that have ended, and the bytes of each; ``first`` is the number of the first one."""
        # another communicator, or one that calls a great many
        if resources.life != self._life or len(self._kinds) > _MOST_KINDS:
            self._forget()
            self._life = resources.life
        which, kinds = self._kinds_of(resources, records)
        forms, numbers = [kind.form for kind in kinds], np.arange(first, first + len(records))
        begin, took = self._common(records[:, f.ITS_BEGIN]), records[:, f.ITS_END] - records[:, f.ITS_BEGIN]
        found: Lines = self._slices(forms, which, numbers, begin, np.maximum(took, _LEAST_SLICE_NS))
        waits = np.flatnonzero(records[:, f.ITS_WAIT_BEGIN]) if self.lane else ()
        if len(waits):
            begin, end = (
                self._common(records[waits, f.ITS_WAIT_BEGIN]),
                self._common(records[waits, f.ITS_WAIT_END]),
            )
            forms = [kind.waiting for kind in kinds]
            found.append(
                lines(
                    forms,
                    which[waits],
                    whole(numbers[waits]),
                    thousandths(begin),
                    thousandths(np.maximum(end - begin, 0)),
                )
            )
        return found, np.array([kind.nbytes for kind in kinds])[which]

    def _slices(
        self, forms: list[Form], which: np.ndarray, numbers: np.ndarray, begin: np.ndarray, took: np.ndarray
    ) -> Lines:
        """Return slices of calls. Those of a row must not overlap: a call in flight that waits for its turn has its slice from there on."""
        if not self.lane:
            return [lines(forms, which, whole(numbers), thousandths(begin), thousandths(took))]
        end = begin + took
        turn = np.maximum(begin, np.append(self._free_at, end[:-1]))
        self._free_at, queued, found = int(end[-1]), turn > begin, list[bytes | np.ndarray]()
        if not queued.all():
            at = np.flatnonzero(~queued)
            found.append(
                lines(forms, which[at], whole(numbers[at]), thousandths(begin[at]), thousandths(took[at]))
            )
        if queued.any():
            at = np.flatnonzero(queued)
            times = (
                thousandths(turn[at]),
                thousandths(np.maximum(end[at] - turn[at], 0)),
                thousandths(begin[at]),
            )
            found.append(
                lines(
                    [(*form[:-1], b',"issued":', form[-1]) for form in forms],
                    which[at],
                    whole(numbers[at]),
                    *times,
                )
            )
        return found

    def _forget(self) -> None:
        """Forget all kinds of calls, so that they are looked up anew."""
        self._kinds: dict[int, _Kind] = {}
        self._known = np.zeros(1, np.int64)  # no call's: a signature is not 0

    def _kinds_of(self, resources: Resources, records: np.ndarray) -> tuple[np.ndarray, list[_Kind]]:
        """Return the position of each record's kind, and the kinds."""
        words = records[:, 0], records[:, 1], records[:, f.ITS_NAMES]
        mixed = words[0] * MIX[0] ^ words[1] * MIX[1] ^ words[2] * MIX[2]
        which = self._find(mixed)
        new = np.flatnonzero(self._known[which] != mixed)
        if len(new):
            for at in (new[np.unique(mixed[new], return_index=True)[1]]).tolist():
                self._kinds[int(mixed[at])] = self._kind(resources, *(int(word[at]) for word in words))
            self._known = np.array(sorted(self._kinds), np.int64)
            which = self._find(mixed)
        used = np.zeros(len(self._known), np.bool_)
        used[which] = True
        return (np.cumsum(used) - 1)[which], [self._kinds[one] for one in self._known[used].tolist()]

    def _find(self, mixed: np.ndarray) -> np.ndarray:
        """Return the positions of kinds among those that are known, or any for others."""
        return np.minimum(np.searchsorted(self._known, mixed), len(self._known) - 1)

    def _kind(self, resources: Resources, word: int, count: int, names: int) -> _Kind:
        signature = Signature.unpacked(word)
        call = signature.record(count)
        nbytes = signature.nbytes(count)
        name = signature.text(count).partition("(")[0]
        if self.lane and self.lane < len(resources.message_contexts):
            name = f"I{name.lower()}"
        known = {
            "comm": _title(resources),
            "lane": self.lane or None,
            "bytes": nbytes,
            "count": call["count"],
            "type": call["element"] or None,
            "op": call["op"] or None,
            "root": call["root"],
            "algorithm": call["algorithm"],
            "at": self._positions.here(place_text(names >> f.PLACE_AT)),
            "region": region_text(names & f.REGION_BITS) or None,
        }
        known = {
            name: value
            for name, value in known.items()
            if value is not None and (name == "comm" or not signature.purpose)
        }
        cat = "service" if signature.purpose else "call"
        slice = slice_form({"cat": cat, "name": name, **self.at, "args": known}, numbered=True)
        waiting = slice_form(
            {"cat": "in wait", "name": f"Wait {name}", **self._positions.own(0), "args": known}, numbered=True
        )
        return _Kind(slice, waiting, nbytes or 0)

    def unfinished(self, resources: Resources, first: int, records: np.ndarray, now_ns: int) -> Lines:
        """Return slices of calls that have not ended, up to now, as single lines."""
        open = records.copy()
        open[:, f.ITS_END] = np.where(open[:, f.ITS_END], open[:, f.ITS_END], now_ns)
        open[:, f.ITS_WAIT_END] = np.where(open[:, f.ITS_WAIT_END], open[:, f.ITS_WAIT_END], now_ns)
        return self.calls(resources, first, open)[0]

    def missing(self, first: int, records: np.ndarray) -> bytes:
        """Return the event that says how many calls before these have no slice, because they were too fast."""
        lost = first - self.written - 1
        ts = int(self._common(records[:1, f.ITS_BEGIN])[0]) / 1000
        name = f"{lost} calls before are missing"
        return line(
            ph="i",
            s="t",
            cat="missing",
            name=name,
            **self.at,
            ts=ts,
            args={"calls": lost, "first": self.written + 1},
        )

    def waits(self, calls: ComparedCalls) -> Lines:
        """Return the waits in calls, and arrows from the ranks that came last."""
        world_ranks, at = calls.resources.team.world_ranks, self._positions.own(0)
        begin, owner, waited = self._common(calls.records[:, self._bounds[0]]), calls.owner, calls.waited
        found: Lines = []
        short = np.flatnonzero((waited > 0) & (waited < LEAST_NS))
        if len(short):
            sums = np.bincount(owner[short], waited[short]).astype(np.int64)
            told = {world_ranks[rank]: int(sums[rank]) for rank in np.flatnonzero(sums).tolist()}
            args, name = {"calls": len(short), "ns_for": told}, f"waits below {LEAST_NS // 1000} us"
            found.append(
                line(ph="i", s="t", cat="wait", name=name, **at, ts=int(begin[-1]) / 1000, args=args)
            )
        long = np.flatnonzero(waited >= LEAST_NS)
        if len(long):
            owners, which = np.unique(owner[long], return_inverse=True)
            event = {"cat": "wait", "cname": "terrible", **at}
            named = [
                {**event, "name": f"waits for rank {rank}", "args": {"for": rank}}
                for rank in (world_ranks[one] for one in owners)
            ]
            times = thousandths(begin[long]), thousandths(waited[long])
            found.append(
                lines(
                    [slice_form(one, numbered=True) for one in named],
                    which,
                    whole(calls.first + long),
                    *times,
                )
            )
            found += self._late(calls, owners.tolist(), long, which, begin[long] + waited[long])
        return found

    def _late(
        self, calls: ComparedCalls, owners: list[int], long: np.ndarray, which: np.ndarray, came: np.ndarray
    ) -> Lines:
        """Return arrows, and the slices to which they lead: of moving data, once the last rank has come.

        Perfetto has an arrow lead to the slice that begins later, so it cannot be that of the call or of the wait.

        Args:
            calls: The calls.
            owners: Ranks that came last.
            long: Which calls have long waits.
            which: Of each of these the position of its owner.
            came: When the owner began it.
        """
        end = self._common(calls.records[long, self._bounds[1]])
        arrows = np.flatnonzero((calls.waited[long] >= ARROW_NS) & (came + _ENDS_AT + _TICK_NS < end))
        if not len(arrows):
            return []
        number, came, moving, own = (
            self._positions.arrows(len(arrows)),
            came[arrows],
            (end - came)[arrows],
            self._positions.own(0),
        )
        late = {"cat": "late", "name": "late"}
        begins = [
            _gapped(
                {"ph": "s", **late, **self._positions.of(calls.resources, rank, self._number)}, "id", "ts"
            )
            for rank in owners
        ]
        ends = [_gapped({"ph": "f", "bp": "e", **late, **own}, "id", "ts")]
        moves = [
            slice_form(
                {"cat": "moves", "name": "moves data", "cname": "good", **own, "args": {}}, numbered=True
            )
        ]
        times, alike = (
            (thousandths(came + _MOVES_AT), thousandths(moving - _MOVES_AT - _TICK_NS)),
            np.zeros_like(arrows),
        )
        return [
            lines(moves, alike, whole(calls.first + long[arrows]), *times),
            lines(begins, which[arrows], whole(number), thousandths(came + _TICK_NS)),
            lines(ends, alike, whole(number), thousandths(came + _ENDS_AT)),
        ]


def slices(event: dict[str, Any], begin: np.ndarray, took: np.ndarray) -> np.ndarray:
    """Return slices with equal lines but for their times in nanoseconds."""
    return lines([slice_form(event)], np.zeros(len(begin), np.intp), thousandths(begin), thousandths(took))


def slice_form(event: dict[str, Any], *, numbered: bool = False) -> Form:
    """Return the form of a slice: ``args`` are the last of its event, and get the number of the call."""
    whole = {"ph": "X", **event}
    if not numbered:
        return _gapped(whole, "ts", "dur")
    return (
        form(whole)[:-2] + (b',"call":' if event["args"] else b'"call":'),
        b'},"ts":',
        b',"dur":',
        b"},\n",
    )


def _gapped(event: dict[str, Any], *gaps: str) -> Form:
    """Return the form of an event with further fields that are numbers."""
    first, *rest = (f',"{gap}":'.encode() for gap in gaps)
    return (form(event)[:-1] + first, *rest, b"},\n")


def counter(event: dict[str, Any], series: str, when: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the points of a counter."""
    shape = (form({"ph": "C", **event})[:-1] + b',"ts":', f',"args":{{"{series}":'.encode(), b"}},\n")
    return lines([shape], np.zeros(len(when), np.intp), thousandths(when), whole(values))


def _title(resources: Resources) -> str:
    """Return a name of a communicator that no other one has, alike on all its ranks; of the world only the first has its plain name."""
    title = resources.title
    of_world = title == "MPI_COMM_WORLD" and resources.nranks == MPI.COMM_WORLD.size
    return (
        title
        if of_world and _world.setdefault(title, resources.key) == resources.key
        else f"{title} {resources.key}"
    )
