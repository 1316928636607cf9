"""Records of a few ranks, as they write them when they hang or fail."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START = 1700000000.0
WORLD, ROW = "MPI_COMM_WORLD", "row"
CALL: dict[str, Any] = {
    "lane": "blocking",
    "collective": "allreduce",
    "count": 4096,
    "element": "float64",
    "op": "SUM",
    "root": None,
    "algorithm": "two_shot",
    "step": "",
    "awaits": [],
    "caller": "train.py:12",
}
BCAST: dict[str, Any] = {"collective": "bcast", "count": 8, "op": "", "root": 0, "caller": "train.py:20"}
BARRIER: dict[str, Any] = {
    "collective": "barrier",
    "count": None,
    "element": "",
    "op": "",
    "caller": "train.py:30",
}


def call(seq: int, state: str = "ended", late: float = 0.0, **changed: Any) -> dict[str, Any]:
    """A call that begins at second ``seq`` and takes half a second."""
    begun = START + seq + late
    return (
        CALL
        | {"seq": seq, "state": state, "begun": begun, "ended": begun + 0.5 if state == "ended" else None}
        | changed
    )


def part(
    rank: int, ranks: list[int], calls: list[dict[str, Any]], name: str = WORLD, dropped: int = 0
) -> dict[str, Any]:
    """Return what a rank of the world did on a communicator."""
    id = f"{','.join(map(str, ranks))}/{name}"
    return {
        "id": id,
        "name": name,
        "rank": ranks.index(rank),
        "ranks": ranks,
        "dropped": dropped,
        "calls": calls,
    }


def record(
    rank: int, nranks: int, *parts: dict[str, Any], doing: str = "", why: str = "SIGUSR2", **changed: Any
) -> dict[str, Any]:
    """Return one rank's record."""
    return {
        "format": 1,
        "program": ["train.py", "--x"],
        "host": "node1",
        "pid": 100 + rank,
        "world_rank": rank,
        "world_size": nranks,
        "written": START + 10,
        "why": why,
        "doing": doing,
        "communicators": list(parts),
    } | changed


def world(*calls: list[dict[str, Any]], **changed: Any) -> list[dict[str, Any]]:
    """Records of ranks that have one communicator, from their calls."""
    return [
        record(rank, len(calls), part(rank, list(range(len(calls))), mine), **changed)
        for rank, mine in enumerate(calls)
    ]


def write(folder: Path, records: Sequence[Any]) -> list[str]:
    """Files of records; texts are written as they are."""
    files = [folder / f"{i}.json" for i in range(len(records))]
    for file, content in zip(files, records):
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return [str(file) for file in files]
