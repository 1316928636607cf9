"""The Python of README and docs runs as it stands, page by page from top to bottom, on any number of ranks.

Files that commands use, blocks with a title, run with those (tests/unit/test_docs_commands.py).
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from pages import BLOCKS

import hpcoll

RANK, NRANKS = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

pytestmark = pytest.mark.once


def readme(names: dict[str, Any], out: str) -> None:
    assert (
        names["x"] == NRANKS * NRANKS * (NRANKS - 1) / 2
    ).all()  # summed twice: the second time equal values
    assert ("allreduce" in out) == (RANK == 0)


def landing(names: dict[str, Any], out: str) -> None:
    assert (names["x"] == NRANKS * (NRANKS - 1) / 2).all()


def semantics(names: dict[str, Any], out: str) -> None:
    assert (names["x"] == NRANKS * np.arange(6)).all()
    assert "'double_tree'" in out


def overlap(names: dict[str, Any], out: str) -> None:
    assert (names["y"] == NRANKS * names["x"]).all()


def own_operators(names: dict[str, Any], out: str) -> None:
    each = [rank - 1.5 for rank in range(NRANKS)]
    np.testing.assert_allclose(names["mean"], sum(each) / NRANKS)
    np.testing.assert_allclose(names["weighted"], sum(one / (1 + rank) for rank, one in enumerate(each)))
    assert (abs(names["largest"]) == max(map(abs, each))).all()


def schedules(names: dict[str, Any], out: str) -> None:
    assert out == next(
        block.text
        for block in BLOCKS
        if block.page == "docs/concepts/schedules.md" and block.language == "text"
    )


def halo_exchange(names: dict[str, Any], out: str) -> None:
    grid, own = names["grid"], names["u"][names["halo"].owned]
    # the whole array, on this rank alone
    u = np.kron(np.arange(NRANKS).reshape(grid.dims), np.ones(own.shape))
    for _ in range(10):
        walled = np.pad(u, ((0, 0), (1, 1)))
        u = (np.roll(u, 1, 0) + np.roll(u, -1, 0) + walled[:, :-2] + walled[:, 2:]) / 4
    rows, columns = (slice(n * at, n * (at + 1)) for n, at in zip(own.shape, grid.coords, strict=True))
    np.testing.assert_allclose(own, u[rows, columns], rtol=1e-12, atol=1e-12)


def redistribute(names: dict[str, Any], out: str) -> None:
    height = names["y"].shape[1]
    ranks = np.concatenate(
        [np.full(len(part), rank) for rank, part in enumerate(np.array_split(range(240), NRANKS))]
    )
    assert (names["y"] == np.outer(ranks, np.ones(height))).all()
    for result in ("out", "z", "short", "w"):
        assert (names[result] == names["y"] + 10).all()
    assert (names["again"] == RANK).all()
    assert names["short"].dtype == np.float32
    assert (names["total"] == NRANKS * (NRANKS + 1) / 2).all()


def find_who_is_late(names: dict[str, Any], out: str) -> None:
    assert len(names["found"].rows) == NRANKS
    assert (out == f"{names['found']}\n") == (RANK == 0)


def monitor(names: dict[str, Any], out: str) -> None:
    (ended,) = names["ended"]
    assert ended.startswith("Allreduce of 8000 bytes at docs/how_to/monitor.md:")


def same_bits(names: dict[str, Any], out: str) -> None:
    wide = names["whole"].astype(np.float64)  # whose sums are right in all bits of float32
    for result in ("ordered", "rounded"):
        np.testing.assert_allclose(names[result], wide.sum(axis=0), atol=1e-2)
    assert (names["exact"] == wide.sum(axis=0).astype(np.float32)).all()


def share_arrays(names: dict[str, Any], out: str) -> None:
    assert (names["total"] == NRANKS * (NRANKS - 1) / 2).all()
    assert out == "1.0 False\n"


def contributing(names: dict[str, Any], out: str) -> None:
    assert len(names["ring"]) == 5
    assert "send(peer 1, input[4])" in out


def train(names: dict[str, Any], out: str) -> None:
    sums = [float(sum(one.sum() for one in names["parameters"].values())), names["buckets"].clip(1e9)]
    assert MPI.COMM_WORLD.allgather(sums) == [sums] * NRANKS, "ranks train apart"
    assert 0 < sums[1] < 1 + 1e-9


def parameter_server(names: dict[str, Any], out: str) -> None:
    value, velocity = 0.0, 0.0
    for _ in range(10):
        velocity = 0.9 * velocity - 0.1 * (value - 1)
        value += velocity
    for array in names["parameters"].values():
        np.testing.assert_allclose(array, value, rtol=1e-5)
    assert "pushes=10, pulls=11" in out


def ledger(names: dict[str, Any], out: str) -> None:
    rows = {row.region: row.calls for row in names["comm"].ledger.regions()}
    # those of other pages' redistributions are there as well
    assert {region: rows[region] for region in rows if "/" in region} == {
        "step/halo": 2000,
        "step/norm": 1000,
    }
    assert ("step/halo" in out) == (RANK == 0)


def exact(names: dict[str, Any], out: str) -> None:
    assert names["one"].count == 6
    assert names["one"] != names["other"]


def launch(names: dict[str, Any], out: str) -> None:
    """Another MPI library than this may have to run it."""
    assert "start" in names["work"].__code__.co_names
    inspect.signature(hpcoll.start).bind(0, 2, "host:1")


CHECKS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "README.md": readme,
    "docs/index.md": landing,
    "docs/concepts/schedules.md": schedules,
    "docs/development/contributing.md": contributing,
    "docs/how_to/launch.md": launch,
    "docs/how_to/monitor.md": monitor,
    "docs/how_to/find_who_is_late.md": find_who_is_late,
    "docs/how_to/overlap.md": overlap,
    "docs/how_to/own_operators.md": own_operators,
    "docs/how_to/parameter_server.md": parameter_server,
    "docs/how_to/halo_exchange.md": halo_exchange,
    "docs/how_to/redistribute.md": redistribute,
    "docs/how_to/same_bits.md": same_bits,
    "docs/how_to/share_arrays.md": share_arrays,
    "docs/how_to/train.md": train,
    "docs/reference/exact.md": exact,
    "docs/reference/ledger.md": ledger,
    "docs/reference/semantics.md": semantics,
}
RUN = [block for block in BLOCKS if block.language == "python" and not block.reason and not block.title]


@pytest.mark.parametrize("page", dict.fromkeys(block.page for block in RUN))
def test_page(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks in one namespace, in a folder that ranks share; what comes out is checked."""
    monkeypatch.chdir(MPI.COMM_WORLD.bcast(tmp_path))
    names: dict[str, Any] = {}
    for block in RUN:
        if block.page == page:
            exec(compile("\n" * block.line + block.text, block.page, "exec"), names)  # noqa: S102
    CHECKS[page](names, capsys.readouterr().out)
