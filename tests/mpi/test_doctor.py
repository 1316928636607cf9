"""``hpcoll doctor`` on several ranks: rank 0 speaks, ranks that say the same are one line, a rank that differs is named."""

import json
import os
from typing import Any

import pytest
from mpi4py import MPI

from hpcoll.cli import main
from hpcoll.cli.doctor.findings import FAIL, OK, WARN
from hpcoll.schedules.placement import describe, describe_all
from hpcoll.selection.processes import UNBOUND

Capture = pytest.CaptureFixture[str]

WORLD = MPI.COMM_WORLD
NRANKS = WORLD.size
pytestmark = pytest.mark.once


def report(capsys: Capture) -> Any:
    """Return what rank 0 printed, on all ranks; its exit code says whether something does not work."""
    code = main(["doctor", "--format", "json"])
    out = capsys.readouterr().out
    assert bool(out) is (WORLD.rank == 0)
    document = WORLD.bcast(json.loads(out) if WORLD.rank == 0 else None)
    assert code == (document["failed"] if WORLD.rank == 0 else 0)
    assert document["nranks"] == NRANKS
    return document


def rows(document: Any, subject: str) -> list[tuple[str, str, list[int] | None]]:
    return [
        (row["level"], row["found"], row["ranks"])
        for row in document["findings"]
        if row["subject"] == subject
    ]


def cores_here() -> int:
    """Cores that the ranks of this host may run on, together."""
    return len(frozenset().union(*WORLD.allgather(os.sched_getaffinity(0))))


@pytest.mark.mpi(min_size=1)
def test_ranks_that_agree_are_one_line(capsys: Capture) -> None:
    document = report(capsys)
    for subject in (
        "MPI library",
        "threads",
        "MPI and CUDA",
        "launcher",
        "hosts",
        "software",
        "CUDA",
        "settings",
    ):
        assert [ranks for _, _, ranks in rows(document, subject)] == [None], subject
    level, launch, _ = rows(document, "launcher")[0]
    assert level == OK
    assert launch.endswith(f", {NRANKS} {'rank' if NRANKS == 1 else 'ranks'}")
    assert rows(document, "hosts")[0][1].startswith("1 host: ")
    crowded = cores_here() < NRANKS
    assert bool(rows(document, "cores")) == crowded


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_differs_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    if WORLD.rank == 1:
        monkeypatch.setenv("HPCOLL_ALLREDUSE", "ring")
    document = report(capsys)
    assert (WARN, "HPCOLL_ALLREDUSE means nothing to hpcoll", [1]) in rows(document, "settings")
    odd = next(row for row in document["findings"] if "ALLREDUSE" in row["found"])
    assert odd["hosts"] == [WORLD.bcast(MPI.Get_processor_name(), root=1)]


@pytest.mark.mpi(min_size=2)
def test_ranks_that_are_bound_to_one_core(capsys: Capture) -> None:
    if os.cpu_count() == 1:
        pytest.skip("a machine of one core")
    before = os.sched_getaffinity(0)
    core = WORLD.bcast(min(before))
    try:
        os.sched_setaffinity(0, {core})
        document = report(capsys)
    finally:
        os.sched_setaffinity(0, before)
    assert rows(document, "binding") == [
        (FAIL, f"{NRANKS} ranks of a host are bound to its core {core} and no other", None)
    ]
    assert document["failed"]


@pytest.mark.mpi(min_size=2)
def test_ranks_on_several_caches_are_said_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """As if even ranks were bound to another cache than odd ones; then as if one were bound to none."""
    places = [WORLD.rank % 2]
    monkeypatch.setattr("hpcoll.selection.processes.bound_to", lambda cores: places[-1])
    found = describe_all((0,) * NRANKS, tuple(rank % 2 for rank in range(NRANKS)))
    assert rows(report(capsys), "placement") == [(OK, found, None)]
    places.append(WORLD.rank or UNBOUND)
    assert rows(report(capsys), "placement") == [(OK, describe((0,) * NRANKS), None)]
