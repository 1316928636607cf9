"""Planning a call does not grow with what a rank does not do: steps, rows, sizes and calls of functions are counted, not time."""

import sys
from typing import Any

import pytest

from hpcoll.cli import main
from hpcoll.cli.bench.plan import plan
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.placement import parse_nodes
from hpcoll.schedules.row import schedule

FEW, MANY, PER_NODE = 512, 4096, "64"


def calls_of_planning(collective: str, nranks: int, nbytes: int) -> tuple[int, int]:
    """Return the calls of Python functions while the first rank plans, and the rows of its program."""
    nodes, calls = parse_nodes(PER_NODE, nranks), 0
    plan(collective, nodes, 0, nbytes)  # imports, placements and costs are kept

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        _, program = plan(collective, nodes, 0, nbytes)
    finally:
        sys.setprofile(None)
    return calls, len(program.rows)


@pytest.mark.parametrize(
    ("collective", "nbytes"), [("allreduce", 64 << 10), ("reduce", 8), ("scan", 64 << 10), ("barrier", 8)]
)
def test_vectors_are_planned_by_messages(collective: str, nbytes: int) -> None:
    """Chunks are as many as ranks, but nothing is done for each."""
    (few, few_rows), (many, rows) = (calls_of_planning(collective, nranks, nbytes) for nranks in (FEW, MANY))
    assert rows < 1.2 * few_rows + 50
    assert many < 1.6 * few


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "reduce_scatter", "gather", "scatter"])
@pytest.mark.parametrize("nbytes", [64 << 10, 4 << 20])
def test_blocks_are_planned_together(collective: str, nbytes: int) -> None:
    """A block that is copied or sent alone has rows, but hardly calls of functions of its own."""
    calls, rows = calls_of_planning(collective, MANY, nbytes)
    assert rows < 6 * MANY + 50
    assert calls < 40 * MANY


@pytest.mark.parametrize("nranks", [64, 100, MANY])
def test_bruck_copies_runs(nranks: int) -> None:
    """About two copies a rank, where blocks one by one would be half as many as ranks in each round."""
    (steps,) = schedule(CATALOGUE["alltoall/bruck"], nranks, 1).channels
    assert len(steps) < 2 * nranks + 6 * nranks.bit_length()


def test_collectives_may_follow_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plan", "-n", "8", "--ranks-per-node", "4", "bcast", "scan"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == {"bcast", "scan"}
