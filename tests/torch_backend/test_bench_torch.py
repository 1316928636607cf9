"""``hpcoll bench-torch`` measures every operation by both backends, and finds wrong answers."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcoll.cli.bench.measure import Pace
from hpcoll.cli.bench_torch import run
from hpcoll.cli.bench_torch.command import OPERATIONS
from hpcoll.cli.bench_torch.report import ASYNC, BLOCKING, GLOO, HPCOLL, report

WORLD = MPI.COMM_WORLD
QUICK = Pace(rounds=2, warmup=1, batch=1)
SIZE = 4 * 84  # bytes: 84 elements, which any number of ranks up to 4 divides


@pytest.fixture(scope="module")
def groups() -> dict[str, Any]:
    return {HPCOLL: dist.group.WORLD, GLOO: dist.new_group(backend=GLOO)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name: str, groups: dict[str, Any]) -> None:
    one = run.measured(name, SIZE, groups, QUICK, WORLD)
    assert (one.operation, one.size, one.nwrong) == (name, SIZE, 0)
    assert set(one.us) == {(backend, mode) for backend in (HPCOLL, GLOO) for mode in (BLOCKING, ASYNC)}
    assert min(one.us.values()) > 0
    assert name in "".join(report([one], WORLD.size, torch.__version__))


@pytest.mark.parametrize("name", OPERATIONS)
def test_wrong_answers_are_counted_on_all_ranks(
    name: str, groups: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(
        source: torch.Tensor, target: torch.Tensor, parts: list[torch.Tensor], *, by: Any, **how: Any
    ) -> Any:
        work = by(source, target, parts, **how)
        if WORLD.rank == WORLD.size - 1:
            if work is not None:
                work.wait()
            (parts[0] if operation.lists == "target" else target)[0] += 1
            return SimpleNamespace(wait=lambda: None)  # gloo's work may bring its result once more
        return work

    operation = run._OPERATIONS[name]
    monkeypatch.setitem(run._OPERATIONS, name, operation._replace(call=partial(spoilt, by=operation.call)))
    # before and after timing, of each contender
    assert run.measured(name, SIZE, groups, QUICK, WORLD).nwrong >= 8
