"""The parameter server: equal to a serial run, within its bound, never half an update; GPU arrays, and the job."""

import importlib
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from internals import server_of
from reference import ensure, ensure_none, unless
from training_model import (
    MODES,
    NEEDS_TWO,
    NRANKS,
    RANK,
    WORLD,
    differences,
    gradient,
    initial,
    serial,
)

import hpcoll
from hpcoll.training.optimizers import SGD, Adam, Optimizer

pytestmark = pytest.mark.mpi

PLACES = [
    pytest.param({}, id="everywhere"),
    pytest.param({"servers": [NRANKS - 1]}, id="beside one"),
    pytest.param({"servers": [0], "dedicated": True}, id="dedicated", marks=NEEDS_TWO),
    pytest.param(
        {"servers": [2, 0], "dedicated": True},
        id="two dedicated",
        marks=pytest.mark.skipif(NRANKS < 3, reason="needs 3 ranks"),
    ),
]


def own_sgd(parameter: Any, gradient: Any, state: dict[str, Any], step: int) -> None:
    """An optimiser of a user."""
    state["seen"] = state.get("seen", 0) + 1
    parameter -= gradient / parameter.dtype.type(10 * (step + state["seen"]))


@pytest.mark.smoke
@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.1), own_sgd], ids=["SGD", "Adam", "own"])
@pytest.mark.parametrize("places", PLACES)
def test_synchronous_is_the_serial_run(places: dict[str, Any], optimizer: Optimizer) -> None:
    """Bit for bit: gradients are added in the order of workers."""
    wrong: list[Any] = []
    # rank 0's values count
    mine = initial() if RANK == 0 else {name: array + 7 for name, array in initial().items()}
    with hpcoll.ParameterServer(WORLD, mine, optimizer=optimizer, **places) as server:
        if RANK in server.workers:
            worker, into = server.workers.index(RANK), initial()
            for step in range(1, 9):
                server.push(gradient(server.pull(into), worker, step))
            wrong += differences(server.pull(into), serial(optimizer, len(server.workers), 8))
            wrong += unless(set(server.versions.values()) == {8}, server.versions)
            wrong += unless(
                server.traffic.pushed + server.traffic.pulled * 8 / 9 == 8 * server.nbytes_per_step,
                server.traffic,
            )
            total = sum(array.nbytes for array in mine.values())
            wrong += unless(
                not places.get("dedicated") or server.nbytes_per_step == 2 * total, server.nbytes_per_step
            )
    wrong += unless(server.staleness.max == 0, server.staleness)
    ensure_none(wrong)


UNUSUAL = [
    np.ones(1),
    np.ones(50, ml_dtypes.bfloat16),
    np.ones(50, ">f4"),
    np.ones((8, 6)).T[::2],
    np.ones(3, np.complex64),
]


@pytest.mark.parametrize("one", UNUSUAL, ids=["one element", "bfloat16", "big-endian", "gaps", "complex"])
def test_unusual_arrays(one: Any) -> None:
    """Fewer elements than servers, element types beside float32 and float64, arrays with gaps."""
    with hpcoll.ParameterServer(WORLD, {"one": one, "none": one[:0]}, optimizer=SGD(0.5)) as server:
        server.pull()
        server.push({"one": one, "none": one[:0]})
        found = server.pull()["one"]
    ensure(found.shape == one.shape and (found == one / 2).all(), found)


NPUSHES = 120  # of each worker: the distance of 5 becomes 5 * 0.95 ** 120


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "asynchronous", "bounded"])
def test_converges(mode: dict[str, Any], places: dict[str, Any]) -> None:
    """To the minimum of a parabola; every gradient of an asynchronous worker is an update."""
    wrong: list[Any] = []
    with hpcoll.ParameterServer(
        WORLD, {"w": np.zeros((50, 3))}, optimizer=SGD(0.05), **mode, **places
    ) as server:
        if RANK in server.workers:
            for _ in range(NPUSHES):
                server.push({"w": server.pull()["w"] - 5.0})
            server.barrier()
            wrong += unless(np.allclose(server.read()["w"], 5.0, atol=0.05), server.read()["w"].ravel()[:3])
            updates = NPUSHES * (1 if mode["mode"] == "synchronous" else len(server.workers))
            wrong += unless(set(server.versions.values()) == {updates}, server.versions)
    ensure_none(wrong)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_staleness_keeps_its_bound(bound: int, places: dict[str, Any]) -> None:
    """Whoever is slow: each worker is for some time; and every gradient is counted once."""
    random = np.random.default_rng(RANK)
    with hpcoll.ParameterServer(
        WORLD, {"w": np.zeros(40)}, mode="asynchronous", staleness=bound, **places
    ) as server:
        if RANK in server.workers:
            for step in range(30):
                server.pull()
                time.sleep(0.002 * (step // 10 == RANK % 3) * random.random())
                server.push({"w": np.ones(40)})
            server.barrier()
    counted = server.staleness.histogram.total()
    good = server.staleness.max <= bound and counted == (
        30 * len(server.workers) if RANK in server.servers else 0
    )
    ensure(good, server.staleness)


@pytest.mark.mpi(min_size=2)
def test_staleness_is_seen() -> None:
    """A worker that pulls, and pushes after all others have pushed nine times, is that stale."""
    with hpcoll.ParameterServer(WORLD, {"w": np.zeros(4)}, servers=[0], mode="asynchronous") as server:
        slow = RANK == NRANKS - 1
        server.pull()
        server.barrier()
        for _ in range(0 if slow else 9):
            server.push({"w": np.ones(4)})
        server.barrier()
        if slow:
            server.push({"w": np.ones(4)})
    ensure(RANK or server.staleness.max == 9 * (NRANKS - 1), server.staleness)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", MODES[1:], ids=["asynchronous", "bounded"])
def test_readers_under_stress(mode: dict[str, Any]) -> None:
    """Large shards that all elements of change with each update, read as often as can be: every read is of one version."""

    def count(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        parameter[:] = step

    wrong = []
    with hpcoll.ParameterServer(
        WORLD, {"w": np.zeros(200_000)}, servers=[0], dedicated=True, optimizer=count, **mode
    ) as server:
        if RANK == 0:
            while not server_of(server).finished:
                if not server_of(server).turn():
                    server_of(server)._apply([0])  # further updates without a gradient
        else:
            into = {"w": np.empty(200_000)}
            for _ in range(60):
                found = server.read(into)["w"]
                wrong += unless(
                    found.min() == found.max() == server.versions[0],
                    (found.min(), found.max(), server.versions),
                )
    ensure_none(wrong)


# --- GPU arrays


@pytest.mark.once
def test_gpu_arrays_go_through_host_memory(double: Double) -> None:
    """Parameters, gradients and what is pulled, which lands in the caller's array."""
    start, into = np.arange(1000.0), double.Array(1000, np.float64).fill(-1)
    with hpcoll.ParameterServer(
        WORLD, {"w": double.Array(1000, np.float64).fill(start)}, optimizer=SGD(0.5)
    ) as server:
        server.push({"w": double.Array(1000, np.float64).fill(2.0)})
        found = server.pull({"w": into})["w"]
    ensure(found is into and (into.get() == start - 1).all(), into.get()[:3])


# --- the job


@pytest.mark.once
@pytest.mark.parametrize("dedicated", [0, pytest.param(1, marks=NEEDS_TWO)])
def test_job(dedicated: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own checks hold, and every way learns."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "jobs"))
    job = importlib.import_module("parameter_server")
    status = job.main(f"--epochs 3 --hidden 32 --dedicated {dedicated}".split())
    rows = {
        row[0]: float(row[3].rstrip("%")) for row in map(str.split, capsys.readouterr().out.splitlines()[1:5])
    }
    good = status == 0 and (RANK > 0 or (len(rows) == 4 and min(rows.values()) > 70))
    ensure(good, (status, rows))
