"""Flight records as torch's ``fr_trace`` reads them: a pickle for each rank, in version 2.10 of its format.

Each lane of a communicator is a process group there, because its calls are counted by themselves. The reader knows no other types of calls
than NCCL's: each call has the nearest one, and then its own words.
"""

import pickle
from pathlib import Path
from typing import Any

from hpcoll.base.files import write_file
from hpcoll.cli.inspect.flight_records import BLOCKING, ELSEWHERE, ENDED, Flight, RecordedCall
from hpcoll.cli.inspect.wording import spelled

VERSION = "2.10"
PREFIX = "hpcoll_rank_"  # of the files, before the rank
# Types of calls, and whether the elements that go in, and that come out, are as many times the count as there are ranks.
_TYPES = {
    "allreduce": ("all_reduce", False, False),
    "scan": ("all_reduce", False, False),
    "exscan": ("all_reduce", False, False),
    "bcast": ("broadcast", False, False),
    "reduce": ("reduce", False, False),
    "barrier": ("all_reduce_barrier", False, False),
    "allgather": ("all_gather", False, True),
    "allgatherv": ("_all_gather_base", False, True),
    "gather": ("gather", False, True),
    "gatherv": ("gather", False, True),
    "scatter": ("scatter", True, False),
    "scatterv": ("scatter", True, False),
    "reduce_scatter": ("reduce_scatter", True, False),
    "reduce_scatter_block": ("reduce_scatter", True, False),
}
_EXCHANGE = ("all_to_all", True, True)  # all others: of blocks, also between neighbours
_UNCOUNTED = {"all_gather": "_all_gather_base"}  # types in place of those whose sizes the reader compares


def write(flight: Flight, folder: Path) -> None:
    """Write a file for each rank that has a record; OSError where the system does not let us."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps(flight).items():
        write_file(folder / f"{PREFIX}{rank}", pickle.dumps(dump))


def dumps(flight: Flight) -> dict[int, dict[str, Any]]:
    """Return the contents of the files, by rank.

    A rank remembers its last calls only, and none of communicators that it has freed. Calls before the first that all ranks remember, and
    communicators that some rank has freed, are left out: the reader would take the rank for one that did not come.
    """
    groups: dict[int, dict[str, Any]] = {rank: {} for rank in flight.records}
    entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in flight.records}
    having = {group.id: groups.keys() & set(group.ranks) for group in flight.communicators}
    kept = [
        group
        for group in flight.communicators
        if all(group.id in flight.records[rank].parts for rank in having[group.id])
    ]
    lanes = [
        (communicator, lane, calls) for communicator in kept for lane, calls in communicator.calls.items()
    ]
    for number, (communicator, lane, calls) in enumerate(lanes):
        name = communicator.label if lane == BLOCKING else f"{communicator.label} {lane}"
        ranks = [rank for rank in communicator.ranks if rank != ELSEWHERE]
        for rank in having[communicator.id]:
            groups[rank][str(number)] = {"name": str(number), "desc": name, "ranks": str(ranks)}
        first: dict[int, int] = {}
        for seq, by_rank in calls.items():
            first |= {rank: seq for rank in by_rank if rank not in first}
        for seq, by_rank in calls.items():
            for rank, call in by_rank.items():
                if seq >= max(first.values()):
                    entries[rank].append(_entry(call, number, name, len(ranks)))
    for records in entries.values():
        records.sort(key=lambda entry: entry["time_created_ns"])
        for number, entry in enumerate(records):
            entry["record_id"] = number
    return {
        rank: {"version": VERSION, "pg_config": groups[rank], "entries": entries[rank]}
        for rank in flight.records
    }


def _entry(call: RecordedCall, group: int, name: str, nranks: int) -> dict[str, Any]:
    kind, *many = _TYPES.get(call.collective, _EXCHANGE)
    if call.count is None:
        kind = _UNCOUNTED.get(kind, kind)
    sizes: list[list[list[int]]] = [
        [[] if call.count is None else [call.count * (nranks if times else 1)]] for times in many
    ]
    ended = None if call.ended is None else _ns(call.ended)
    file, _, line = call.caller.rpartition(":")
    types = [call.element] if call.element else []
    return {
        "pg_id": group,
        "process_group": (str(group), name),
        "collective_seq_id": call.seq,
        "p2p_seq_id": 0,
        "op_id": call.seq,
        "profiling_name": f"nccl:{kind} {spelled(call).replace(':', ' ')}",
        "input_sizes": sizes[0],
        "output_sizes": sizes[1],
        "input_dtypes": types,
        "output_dtypes": types,
        "state": "completed" if call.state == ENDED else "started",
        "time_created_ns": _ns(call.begun),
        "time_discovered_started_ns": _ns(call.begun),
        "time_discovered_completed_ns": ended,
        "retired": call.state == ENDED,
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": [{"name": call.collective, "filename": file, "line": line}] if file else [],
    }


def _ns(seconds: float) -> int:
    return int(1e9 * seconds)
