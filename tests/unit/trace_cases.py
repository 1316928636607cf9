"""A trace as hpcoll writes it, made up: 4 ranks on 2 nodes, of which one comes late, calls in flight, regions; the same each time."""

import json
from collections.abc import Iterator
from typing import Any

RANKS, LATE, LATE_US, MOVING_US = 4, 2, 300.0, 40.0
Event = dict[str, Any]


def events(
    steps: int = 50, *, late_us: float = LATE_US, comm: str = "MPI_COMM_WORLD", waits: bool = True
) -> Iterator[Event]:
    """The events of a run: each step has an Allreduce, an Iallreduce with its wait, and a Bcast in a region."""
    yield from _metadata()
    now = 1000.0
    for step in range(steps):
        common = {"comm": comm, "region": "step"}
        gradients = {
            "bytes": 1 << 20,
            "count": 1 << 17,
            "type": "float64",
            "op": "SUM",
            "algorithm": "ring",
            "at": "train.py:88",
        }
        begins = [now + 7 * rank + (late_us if rank == LATE else 0) for rank in range(RANKS)]
        end = max(begins) + MOVING_US
        for rank in range(RANKS):
            yield _event(rank, 0, "region", "step", begins[rank] - 5, end + 320 - begins[rank], {})
        yield from _calls(
            "Allreduce", 0, {"call": 2 * step + 1, **common, **gradients}, begins, [end] * RANKS, waits
        )
        yield from _in_flight(
            {"call": step + 1, **common, "bytes": 64, "count": 8, "type": "float64", "op": "SUM", "lane": 1},
            end,
            waits,
        )
        root = {
            "bytes": 8,
            "count": 1,
            "type": "int64",
            "root": 0,
            "algorithm": "binomial",
            "at": "train.py:90",
        }
        begins = [end + 200 + (60 if rank == 0 else 3 * rank) for rank in range(RANKS)]
        ends = [begin + 10 if rank == 0 else begins[0] + 15 for rank, begin in enumerate(begins)]
        yield from _calls("Bcast", 0, {"call": 2 * step + 2, **common, **root}, begins, ends, waits, owner=0)
        now = end + 500
        yield {
            "ph": "C",
            "name": "bytes of rank 0",
            "pid": 0,
            "tid": 0,
            "ts": now,
            "args": {"bytes": step << 20},
        }


def text(found: Iterator[Event]) -> str:
    """A trace file."""
    return "[\n" + "".join(json.dumps(event, separators=(",", ":")) + ",\n" for event in found)


def _metadata() -> Iterator[Event]:
    for rank in range(RANKS):
        pid, args = rank // 2, {"version": "0.2.0", "ranks": RANKS, "rank": rank, "host": f"node{rank // 2}"}
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"node{pid}"}}
        for lane, name in enumerate((f"rank {rank}", f"rank {rank} in flight")):
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": pid,
                "tid": rank * 16 + lane,
                "args": {"name": name},
            }
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": pid,
                "tid": rank * 16 + lane,
                "args": {"sort_index": rank * 16 + lane},
            }
        yield {
            "ph": "M",
            "name": "hpcoll",
            "pid": pid,
            "tid": rank * 16,
            "args": {**args, "clock_error_us": 2.5, "program": ["train.py"]},
        }


def _event(
    rank: int, lane: int, category: str, name: str, start: float, length: float, args: Event, **more: Any
) -> Event:
    """A slice in the order in which hpcoll writes its fields; the number of its call is the last of its arguments."""
    numbered = (
        {"args": {**{key: value for key, value in args.items() if key != "call"}, "call": args["call"]}}
        if args
        else {}
    )
    place = {"pid": rank // 2, "tid": rank * 16 + lane}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        **more,
        **place,
        **numbered,
        "ts": round(start, 3),
        "dur": round(length, 3),
    }


def _calls(
    name: str,
    lane: int,
    args: Event,
    begins: list[float],
    ends: list[float],
    waits: bool,
    owner: int | None = None,
) -> Iterator[Event]:
    last = begins.index(max(begins)) if owner is None else owner
    for rank, (begin, end) in enumerate(zip(begins, ends)):
        yield _event(rank, lane, "call", name, begin, end - begin, args)
        if waits and rank != last and begins[last] > begin:
            yield from _wait(rank, args["call"], begin, begins[last], last)


def _wait(rank: int, call: int, begin: float, end: float, owner: int) -> Iterator[Event]:
    yield _event(
        rank,
        0,
        "wait",
        f"waits for rank {owner}",
        begin,
        end - begin,
        {"for": owner, "call": call},
        cname="terrible",
    )
    ends = ("s", owner, {}), ("f", rank, {"bp": "e"})
    for phase, of, more in ends:
        place = {"pid": of // 2, "tid": of * 16, "ts": round(end, 3)}
        yield {"ph": phase, "cat": "late", "name": "late", "id": call * RANKS + rank, **place, **more}


def _in_flight(args: Event, now: float, waits: bool) -> Iterator[Event]:
    """A call that begins at once on each rank but 3, and for which each waits after 100 us; 3 begins it 130 us later."""
    begins = [now + rank + (130 if rank == 3 else 0) for rank in range(RANKS)]
    for rank, begin in enumerate(begins):
        end = begins[3] + 20
        wait = max(now + 100 + rank, begin)
        yield _event(rank, 1, "call", "Iallreduce", begin, end - begin, args)
        yield _event(rank, 0, "in wait", "Wait Iallreduce", wait, end - wait, args)
        if waits and rank != 3:
            yield from _wait(rank, args["call"], wait, begins[3], 3)


def many_ranks(
    nranks: int, *, steps: int = 3, per_host: int = 8, names: int = 0, waits: bool = True
) -> Iterator[Event]:
    """The events of a run of many ranks, each of which is the last in some step; ``names``: of places that only one rank calls, in all."""
    for rank in range(nranks):
        pid, tid, args = (
            rank // per_host,
            rank * 16,
            {"version": "0.2.0", "ranks": nranks, "rank": rank, "host": f"node{rank // per_host}"},
        )
        where = {"pid": pid, "tid": tid}
        yield {"ph": "M", "name": "process_name", **where, "args": {"name": args["host"]}}
        yield {
            "ph": "M",
            "name": "hpcoll",
            **where,
            "args": {**args, "clock_error_us": 2.5, "program": ["train.py"]},
        }
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": f"rank {rank}"}}
    of_all = {"comm": "MPI_COMM_WORLD", "bytes": 1 << 20, "type": "float64", "op": "SUM", "algorithm": "ring"}
    for step in range(steps):
        now = 1000.0 + 5000 * step
        last = (step + 1) * nranks // (steps + 1)
        for rank in range(nranks):
            place = {"pid": rank // per_host, "tid": rank * 16}
            begin = now + (1000 if rank == last else 900 * rank / nranks)
            own = {"at": f"train.py:{rank % names}"} if names else {"at": "train.py:88"}
            call = {
                "ph": "X",
                "cat": "call",
                "name": "Allreduce",
                **place,
                "args": {**of_all, **own, "call": step + 1},
            }
            yield call | {"ts": round(begin, 3), "dur": round(now + 1200 - begin, 3)}
            if waits and rank != last:
                wait = {
                    "ph": "X",
                    "cat": "wait",
                    "name": f"waits for rank {last}",
                    "cname": "terrible",
                    **place,
                }
                yield wait | {
                    "args": {"for": last, "call": step + 1},
                    "ts": round(begin, 3),
                    "dur": round(now + 1000 - begin, 3),
                }
