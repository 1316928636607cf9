"""Traces as hpcoll writes them, made up: of ranks that come late, calls in flight, regions; the same each time. Times are microseconds."""

import struct
from collections import defaultdict
from typing import Any

import numpy as np

from hpcoll.comm.plans.signature import Signature
from hpcoll.runtime.telemetry.trace_blocks import MAGIC, block
from hpcoll.schedules.collectives import COLLECTIVES

RANKS, LATE, LATE_US, MOVING_US = 4, 2, 300.0, 40.0
WORLD = "MPI_COMM_WORLD"


class Run:
    """The trace of a run, to which calls and regions are added."""

    def __init__(
        self, nranks: int, *, per_host: int = 2, comm: str = WORLD, clock_error_us: float = 2.5
    ) -> None:
        self.ranks = range(nranks)
        self._about = {"version": "0.2.0", "ranks": nranks, "clock_error_us": clock_error_us}
        self._per_host, self._comm = per_host, comm
        self._numbers: dict[Any, int] = {}
        self._records = defaultdict[int, dict[int, dict[int, list[int]]]](lambda: defaultdict(dict))
        self._left = defaultdict[int, list[list[int]]](list)
        self._spent = defaultdict[int, dict[int, int]](lambda: defaultdict(int))  # nanoseconds
        self._names = defaultdict[int, dict[str, dict[int, Any]]](lambda: defaultdict(dict))  # by rank

    def call(
        self,
        rank: int,
        name: str,
        number: int,
        begin: float,
        end: float,
        *,
        lane: int = 0,
        wait: tuple[float, float] = (0, 0),
        count: int = 1 << 17,
        root: int = -1,
        algorithm: str = "ring",
        at: str = "",
        region: str = "",
    ) -> None:
        """Add a call; one of a lane is in flight, and the program waits for it."""
        spent = sum(one for other, one in self._spent[rank].items() if other != lane)
        names = self._number(rank, "places", at) << 32 | self._number(rank, "regions", region)
        word = self._signature(rank, name, root, algorithm)
        record = [word, count, _ns(begin), spent, _ns(end), names, *map(_ns, wait)]
        self._records[rank][lane][number] = record
        first, last = wait if lane else (begin, end)
        self._spent[rank][lane] += _ns(last - first)

    def region(self, rank: int, name: str, begin: float, end: float) -> None:
        """Add a region that was left."""
        self._left[rank].append([self._number(rank, "regions", name), _ns(begin), _ns(end)])

    def of_rank(self, rank: int, comm: str = "", size: int = 0, at: int = -1) -> bytes:
        """Return all that a rank writes; its communicator may be another one than that of all."""
        found = [
            {"rank": rank, "host": f"node{rank // self._per_host}", "program": ["train.py"]} | self._about
        ]
        found.append({"rank": rank} | self._names[rank])
        texts = [written(one) for one in found]
        for lane, records in self._records[rank].items():
            size, at = size or len(self.ranks), at if at >= 0 else rank
            context = {"comm": comm or self._comm, "lane": lane, "at": at, "size": size, "sources": []}
            form = "in flight" if lane else "blocking"
            texts.append(written({"rank": rank, "context": lane, "form": form} | context))
            for number, record in records.items():
                texts.append(written({"rank": rank, "calls": lane, "first": number}, [record]))
        texts.append(written({"rank": rank, "left": 1}, self._left[rank]))
        return b"".join(texts)

    def content(self) -> bytes:
        """Return the file."""
        return b"".join(map(self.of_rank, self.ranks))

    def _number(self, rank: int, what: str, name: str) -> int:
        number = self._numbers.setdefault((what, name), 1 + len(self._numbers)) if name else 0
        if name:
            self._names[rank][what][number] = name
        return number

    def _signature(self, rank: int, name: str, root: int, algorithm: str) -> int:
        collective = list(COLLECTIVES).index(name.lower())
        word = Signature(collective, 0, 4, 1 if name == "Allreduce" else 0, 0, 0, max(root, 0)).word
        self._names[rank]["signatures"][word] = {
            "name": name,
            "service": False,
            "type": "float64",
            "op": "SUM",
            "root": None if root < 0 else root,
            "algorithm": algorithm,
            "nbytes": 8,
            "per_element": 1,
        }
        return word


def events(
    steps: int = 50, *, late_us: float = LATE_US, comm: str = WORLD, clock_error_us: float = 2.5
) -> Run:
    """The trace of a run: each step has an Allreduce, an Iallreduce with its wait, and a Bcast in a region."""
    run, now = Run(RANKS, comm=comm, clock_error_us=clock_error_us), 1000.0
    for step in range(steps):
        begins = [now + 7 * rank + (late_us if rank == LATE else 0) for rank in range(RANKS)]
        end = max(begins) + MOVING_US
        for rank, begin in enumerate(begins):
            run.region(rank, "step", begin - 5, end + 320)
            run.call(rank, "Allreduce", 2 * step + 1, begin, end, at="train.py:88", region="step")
        begins = [end + rank + (130 if rank == 3 else 0) for rank in range(RANKS)]
        for rank, begin in enumerate(begins):
            wait = max(end + 100 + rank, begin), begins[3] + 20
            run.call(rank, "Allreduce", step + 1, begin, wait[1], lane=1, wait=wait, count=8, region="step")
        begins = [end + 200 + (60 if rank == 0 else 3 * rank) for rank in range(RANKS)]
        for rank, begin in enumerate(begins):
            ends, what = begin + 10 if rank == 0 else begins[0] + 15, {"root": 0, "algorithm": "binomial"}
            run.call(
                rank, "Bcast", 2 * step + 2, begin, ends, count=1, at="train.py:90", region="step", **what
            )  # type: ignore[arg-type]
        now = end + 500
    return run


def many_ranks(nranks: int, *, steps: int = 3, per_host: int = 8, names: int = 0) -> Run:
    """The trace of a run of many ranks, each of which is the last in some step; ``names``: of places that only one rank calls, in all."""
    run = Run(nranks, per_host=per_host)
    for step in range(steps):
        now, last = 1000.0 + 5000 * step, (step + 1) * nranks // (steps + 1)
        for rank in range(nranks):
            begin = now + (1000 if rank == last else 900 * rank / nranks)
            at = f"train.py:{rank % names}" if names else "train.py:88"
            run.call(rank, "Allreduce", step + 1, begin, now + 1200, at=at)
    return run


def written(about: dict[str, Any], records: list[list[int]] | None = None) -> bytes:
    """Return a block."""
    return b"".join(bytes(piece) for piece in block(about, np.array(records or [], np.int64)))


def said_as(content: bytes, old: bytes, new: bytes) -> bytes:
    """Return a trace with another text in its blocks, whose heads tell their length."""
    found = b""
    for one in content.split(MAGIC)[1:]:
        ntext, nrecords = struct.unpack("<II", one[:8])
        text = one[8 : 8 + ntext].replace(old, new)
        found += MAGIC + struct.pack("<II", len(text), nrecords) + text + one[8 + ntext :]
    return found


def _ns(us: float) -> int:
    return round(1000 * us)
