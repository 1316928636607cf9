"""The parameter server: equal to a serial run, within its bound, never half an update, and no hang whoever leaves."""

from __future__ import annotations

import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from mpi4py import MPI
from reference import agreed

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.training.optimizers import SGD, Adam, Optimizer
from hpcoll.training.shard_window import LostRank

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
RANK, NRANKS = WORLD.rank, WORLD.size
SHAPES = {"weights": ((23, 7), "f4"), "empty": ((0, 3), "f8"), "bias": ((11,), "f8"), "scale": ((), "f4")}
NEEDS_TWO = pytest.mark.skipif(NRANKS < 2, reason="needs a worker beside the server")
MODES: list[dict[str, Any]] = [{"mode": "synchronous"}, {"mode": "asynchronous"}, {"mode": "asynchronous", "staleness": 1}]

PLACES = [
    pytest.param({}, id="everywhere"),
    pytest.param({"servers": [NRANKS - 1]}, id="beside one"),
    pytest.param({"servers": [0], "dedicated": True}, id="dedicated", marks=NEEDS_TWO),
    pytest.param({"servers": [2, 0], "dedicated": True}, id="two dedicated", marks=pytest.mark.skipif(NRANKS < 3, reason="needs 3 ranks")),
]


def initial() -> dict[str, Any]:
    return {name: np.ones(shape, dtype) for name, (shape, dtype) in SHAPES.items()}


def gradient(parameters: dict[str, Any], worker: int, step: int) -> dict[str, Any]:
    """Some gradient that depends on everything."""
    return {name: (array * (1 + worker) - step).astype(array.dtype) for name, array in parameters.items()}


def own_sgd(parameter: Any, gradient: Any, state: dict[str, Any], step: int) -> None:
    """An optimiser of a user."""
    state["seen"] = state.get("seen", 0) + 1
    parameter -= gradient / parameter.dtype.type(10 * (step + state["seen"]))


def serial(optimizer: Optimizer, nworkers: int, nsteps: int, leaves: int = -1, after: int = 0) -> dict[str, Any]:
    """The parameters after steps by the mean gradient; one worker may leave after some steps."""
    parameters, states = initial(), {name: {} for name in SHAPES}
    for step in range(1, nsteps + 1):
        workers = [w for w in range(nworkers) if w != leaves or step <= after]
        found = [gradient(parameters, worker, step) for worker in workers]
        for name, array in parameters.items():
            total = found[0][name].copy()
            for other in found[1:]:
                total += other[name]
            if len(workers) > 1:
                total /= array.dtype.type(len(workers))
            optimizer(array.reshape(-1), total.reshape(-1), states[name], step)
    return parameters


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [name for name in wanted if not np.array_equal(found[name], wanted[name])]


@pytest.mark.smoke
@pytest.mark.parametrize("optimizer", [SGD(0.1, 0.9), Adam(0.1), own_sgd], ids=["SGD", "Adam", "own"])
@pytest.mark.parametrize("places", PLACES)
def test_synchronous_is_the_serial_run(places: dict[str, Any], optimizer: Optimizer) -> None:
    """Bit for bit: gradients are added in the order of workers."""
    wrong: list[Any] = []
    mine = initial() if RANK == 0 else {name: array + 7 for name, array in initial().items()}  # rank 0's values count
    with hpcoll.ParameterServer(WORLD, mine, optimizer=optimizer, **places) as server:
        if RANK in server.workers:
            worker, into = server.workers.index(RANK), initial()
            for step in range(1, 9):
                server.push(gradient(server.pull(into), worker, step))
            wrong += differences(server.pull(into), serial(optimizer, len(server.workers), 8))
            wrong += [] if set(server.versions.values()) == {8} else [server.versions]
            wrong += [] if server.traffic.pushed + server.traffic.pulled * 8 / 9 == 8 * server.nbytes_per_step else [server.traffic]
            total = sum(array.nbytes for array in mine.values())
            wrong += [] if not places.get("dedicated") or server.nbytes_per_step == 2 * total else [server.nbytes_per_step]
    wrong += [] if server.staleness.max == 0 else [server.staleness]
    assert agreed(wrong) == []


@pytest.mark.parametrize("split", [True, False])
def test_whole_parameters(split: bool) -> None:
    """An optimiser that needs all of a parameter gets it where nothing is split."""
    seen = []

    def normed(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        seen.append(parameter.size)
        parameter -= gradient / max(1, np.linalg.norm(gradient))

    with hpcoll.ParameterServer(WORLD, initial(), optimizer=normed, split=split) as server:
        server.pull()
        server.push(initial())
        server.barrier()
    sizes = {int(np.prod(shape)) for shape, _ in SHAPES.values()}
    everyone = [size for found in WORLD.allgather(seen) for size in found]
    assert sum(everyone) == sum(sizes)
    assert (set(everyone) <= sizes) == (not split or NRANKS == 1)


UNUSUAL = [np.ones(1), np.ones(50, ml_dtypes.bfloat16), np.ones(50, ">f4"), np.ones((8, 6)).T[::2], np.ones(3, np.complex64)]


@pytest.mark.parametrize("one", UNUSUAL, ids=["one element", "bfloat16", "big-endian", "gaps", "complex"])
def test_unusual_arrays(one: Any) -> None:
    """Fewer elements than servers, element types beside float32 and float64, arrays with gaps."""
    with hpcoll.ParameterServer(WORLD, {"one": one, "none": one[:0]}, optimizer=SGD(0.5)) as server:
        server.pull()
        server.push({"one": one, "none": one[:0]})
        found = server.pull()["one"]
    assert agreed([] if found.shape == one.shape and (found == one / 2).all() else [found]) == []


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "asynchronous", "bounded"])
def test_converges(mode: dict[str, Any], places: dict[str, Any]) -> None:
    """To the minimum of a parabola; every gradient of an asynchronous worker is an update."""
    wrong: list[Any] = []
    with hpcoll.ParameterServer(WORLD, {"w": np.zeros((50, 3))}, optimizer=SGD(0.02), **mode, **places) as server:
        if RANK in server.workers:
            for _ in range(300):
                server.push({"w": server.pull()["w"] - 5.0})
            server.barrier()
            wrong += [] if np.allclose(server.read()["w"], 5.0, atol=0.05) else [server.read()["w"].ravel()[:3]]
            updates = 300 * (1 if mode["mode"] == "synchronous" else len(server.workers))
            wrong += [] if set(server.versions.values()) == {updates} else [server.versions]
    assert agreed(wrong) == []


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("bound", [0, 1, 4])
def test_staleness_keeps_its_bound(bound: int, places: dict[str, Any]) -> None:
    """Whoever is slow: each worker is for some time; and every gradient is counted once."""
    random = np.random.default_rng(RANK)
    with hpcoll.ParameterServer(WORLD, {"w": np.zeros(40)}, mode="asynchronous", staleness=bound, **places) as server:
        if RANK in server.workers:
            for step in range(30):
                server.pull()
                time.sleep(0.002 * (step // 10 == RANK % 3) * random.random())
                server.push({"w": np.ones(40)})
            server.barrier()
    counted = server.staleness.histogram.total()
    good = server.staleness.max <= bound and counted == (30 * len(server.workers) if RANK in server.servers else 0)
    assert agreed([] if good else [server.staleness]) == []


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
    assert agreed([] if RANK or server.staleness.max == 9 * (NRANKS - 1) else [server.staleness]) == []


@pytest.mark.parametrize(("updates", "torn"), [(1, 0), (2, 1), (5, 1)])
def test_nobody_reads_half_an_update(updates: int, torn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates in the middle of a read: one goes to the other copy, more overwrite what is read, which is then read again."""

    def count(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        parameter[:] = step

    with hpcoll.ParameterServer(MPI.COMM_SELF, {"w": np.zeros(1000)}, optimizer=count, mode="asynchronous") as server:
        get, left = server._window.get, [updates]

        def interrupted(rank: int, displ: int, content: Any) -> None:
            get(rank, displ, content[:4000])
            for _ in range(left.pop() if left else 0):
                server._server._apply([0])
            get(rank, displ + 4000, content[4000:])

        monkeypatch.setattr(server._window, "get", interrupted)
        found = server.pull()["w"]
    expected = updates if torn else 0
    assert agreed([] if (found == expected).all() and server.traffic.torn == torn else [found[[0, -1]], server.traffic]) == []


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", MODES[1:], ids=["asynchronous", "bounded"])
def test_readers_under_stress(mode: dict[str, Any]) -> None:
    """Large shards that all elements of change with each update, read as often as can be: every read is of one version."""

    def count(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        parameter[:] = step

    wrong = []
    with hpcoll.ParameterServer(WORLD, {"w": np.zeros(200_000)}, servers=[0], dedicated=True, optimizer=count, **mode) as server:
        if RANK == 0:
            while not server._server.finished:
                if not server._server.turn():
                    server._server._apply([0])  # further updates without a gradient
        else:
            into = {"w": np.empty(200_000)}
            for _ in range(60):
                found = server.read(into)["w"]
                wrong += [] if found.min() == found.max() == server.versions[0] else [(found.min(), found.max(), server.versions)]
    assert agreed(wrong) == []


# --- ranks that leave


@pytest.mark.mpi(min_size=3)
def test_synchronous_goes_on_without_a_worker_that_leaves() -> None:
    wrong: list[Any] = []
    server = hpcoll.ParameterServer(WORLD, initial(), servers=[0], dedicated=True, optimizer=SGD(0.1), timeout=60)
    last = NRANKS - 1
    for step in range(1, 7 if RANK else 0):
        if last == RANK and step == 4:
            server.leave()
            break
        server.push(gradient(server.pull(), RANK - 1, step))
    else:
        wrong += differences(server.pull(), serial(SGD(0.1), NRANKS - 1, 6, last - 1, 3)) if RANK else []
        server.close()
    assert agreed(wrong) == []


def lost(action: Callable[[], Any]) -> int | None:
    """The rank that an action misses; None where it misses nobody."""
    try:
        action()
    except LostRank as error:
        return error.rank if f"rank {error.rank}" in str(error) else -1
    except KeyboardInterrupt:
        pass
    return None


def run(server: hpcoll.ParameterServer, breaks: int, nsteps: int = 6) -> None:
    """Steps of a worker, or serving; one rank ends with an exception after some steps."""
    with server:
        for step in range(nsteps if RANK in server.workers else 0):
            parameters = server.pull()
            if breaks == RANK and step == 3:
                raise KeyboardInterrupt
            server.push(gradient(parameters, RANK, step))
        if breaks == RANK:  # a server
            while server._server.version < 3:
                server._server.turn()
            raise KeyboardInterrupt
        if RANK in server.workers:
            server.barrier()


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "asynchronous", "bounded"])
def test_worker_that_fails(mode: dict[str, Any]) -> None:
    """Synchronous ranks name it, servers too; the others go on."""
    server = hpcoll.ParameterServer(WORLD, initial(), servers=[0], dedicated=True, timeout=60, **mode)
    broken = NRANKS - 1
    expected = broken if mode["mode"] == "synchronous" and broken != RANK else None
    found = lost(lambda: run(server, broken))
    assert agreed([] if found == expected else [(found, expected)]) == []


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "asynchronous", "bounded"])
@pytest.mark.parametrize("dedicated", [True, False])
def test_server_that_fails(dedicated: bool, mode: dict[str, Any]) -> None:
    """Its workers name it, at once and not after the timeout."""
    server = hpcoll.ParameterServer(WORLD, initial(), servers=[0], dedicated=dedicated, timeout=60, **mode)
    found = lost(lambda: run(server, 0, 100_000))
    assert agreed([] if found == (None if RANK == 0 else 0) else [found]) == []


@pytest.mark.mpi(min_size=2)
def test_optimiser_that_raises() -> None:
    """On the server it comes out where it serves; workers hear that the server has left."""

    def broken(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        raise ZeroDivisionError("step 1")

    server = hpcoll.ParameterServer(WORLD, initial(), servers=[0], dedicated=True, optimizer=broken, timeout=60)
    with pytest.raises(ZeroDivisionError if RANK == 0 else LostRank):
        run(server, -1)
    assert agreed([]) == []


@pytest.mark.once
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("who", ["worker", "server"])
def test_silence_ends_with_the_timeout(who: str) -> None:
    """Of a rank that just does nothing: it is given up, and named by those who wait."""
    server = hpcoll.ParameterServer(WORLD, initial(), servers=[0], dedicated=True, timeout=1.5)
    silent = 0 if who == "server" else NRANKS - 1

    def work() -> None:
        with server:
            for step in range(3 if RANK else 0):
                server.push(gradient(server.pull(), 0, step))

    found = None if silent == RANK else lost(work)
    WORLD.Barrier()
    if silent == RANK and who == "worker":
        found = lost(work)  # it hears of it when it comes back
    expected = None if silent == RANK and who == "server" else silent
    assert agreed([] if found == expected else [found]) == []


# --- bad input


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: p.pop("bias"), "lacks parameter 'bias'"),
        (lambda p: p.update(more=np.zeros(3)), "has parameter 'more'"),
        (lambda p: p.update(bias=np.zeros(12)), "'bias' needs float64 of shape (11,), got float64 of shape (12,)"),
        (lambda p: p.update(bias=np.zeros(11, "f4")), "'bias' needs float64 of shape (11,), got float32"),
        (lambda p: p.update(bias=np.zeros(11, "i4")), "'bias' needs floating-point numbers, got int32"),
        (lambda p: p.update(bias=p.pop("bias"), weights=p.pop("weights")), "in another order"),
    ],
)
def test_parameters_that_differ(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    """All ranks raise, and name parameter and rank, of which the last one is wrong."""
    mine = initial()
    if RANK == NRANKS - 1:
        change(mine)
    if NRANKS == 1 and "floating" not in text:
        return
    with pytest.raises(ArgumentError) as error:
        hpcoll.ParameterServer(WORLD, mine)
    said = str(error.value)
    assert agreed([] if text in said and said.startswith(f"rank {NRANKS - 1}: ") else [said]) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": [NRANKS]}, "needs distinct servers among"),
        ({"servers": [0, 0]}, "needs distinct servers among"),
        ({"servers": []}, "needs distinct servers among"),
        ({"dedicated": True}, "with dedicated servers needs a rank that is none"),
        ({"mode": "bounded"}, "needs mode 'synchronous' or 'asynchronous', got 'bounded'"),
        ({"staleness": 1}, "needs staleness >= 0 and mode 'asynchronous'"),
        ({"mode": "asynchronous", "staleness": -1}, "needs staleness >= 0"),
        ({"timeout": 0}, "needs a timeout > 0 s, got 0"),
        ({"optimizer": 0.1}, "needs an optimizer that can be called, got 0.1"),
    ],
)
@pytest.mark.parametrize("everywhere", [True, False])
def test_arguments(options: dict[str, Any], text: str, everywhere: bool) -> None:
    """Wrong ones, on all ranks or on one: all raise."""
    mine = options if everywhere or RANK == NRANKS - 1 else {}
    with pytest.raises(ArgumentError) as error:
        hpcoll.ParameterServer(WORLD, initial(), **mine)
    assert agreed([] if text in str(error.value) else [str(error.value)]) == []


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("options", [{"mode": "asynchronous"}, {"servers": [1]}, {"split": False}], ids=str)
def test_arguments_that_differ(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"rank {NRANKS - 1}: {next(iter(options))} must be equal on all ranks"):
        hpcoll.ParameterServer(WORLD, initial(), **(options if RANK == NRANKS - 1 else {}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda g: g.pop("bias"), "gradient lacks parameter 'bias'"),
        (lambda g: g.update(more=np.zeros(3)), "gradient has parameter 'more', which there is not"),
        (lambda g: g.update(bias=np.zeros(12)), "gradient of parameter 'bias' needs float64 of shape (11,), got float64 of shape (12,)"),
        (lambda g: g.update(bias=np.zeros(11, "f4")), "gradient of parameter 'bias' needs float64 of shape (11,), got float32"),
        (lambda g: g.update(bias="eleven"), "gradient of parameter 'bias' needs floating-point numbers"),
        (lambda g: g["weights"].__setitem__((3, 4), np.nan), "gradient of parameter 'weights' has 1 NaN, the first at (3, 4)"),
    ],
)
def test_gradients_are_refused_before_they_are_sent(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    """With parameter and rank; a good one can follow, and is the first."""
    with hpcoll.ParameterServer(WORLD, initial(), optimizer=SGD(1.0), check_nan=True) as server:
        bad = initial()
        change(bad)
        with pytest.raises(ArgumentError) as error:
            server.push(bad)
        server.push(initial())
        good = differences(server.pull(), {name: array * 0 for name, array in initial().items()})
    said = str(error.value)
    assert agreed(good if said.startswith(f"rank {RANK}: {text}") else [said]) == []


def test_calls_out_of_order() -> None:
    frozen = initial()
    frozen["bias"].flags.writeable = False
    with hpcoll.ParameterServer(WORLD, initial(), mode="asynchronous", staleness=2) as server:
        with pytest.raises(ArgumentError, match="needs a pull since the push before it"):
            server.push(initial())
        with pytest.raises(ArgumentError, match="array for parameter 'bias' needs contiguous memory that can be written"):
            server.pull(frozen)
        with pytest.raises(ArgumentError, match="needs a dict of arrays by name, got list"):
            server.pull([])
        with pytest.raises(ArgumentError, match="array to pull to lacks parameter 'weights'"):
            server.pull({})
        server.barrier()
    server.close()
    with pytest.raises(ArgumentError, match=f"rank {RANK}: pull needs a parameter server that this rank has not left"):
        server.pull()
    assert agreed([]) == []


@pytest.mark.mpi(min_size=2)
def test_dedicated_servers_push_nothing() -> None:
    with hpcoll.ParameterServer(WORLD, initial(), servers=[0], dedicated=True) as server:
        if RANK == 0:
            with pytest.raises(ArgumentError, match="rank 0: push is for workers"):
                server.push(initial())
            assert server.versions == {}
    assert agreed([]) == []


# --- GPU arrays


@pytest.mark.once
def test_arrays_on_another_gpu(double: Double) -> None:
    with hpcoll.ParameterServer(WORLD, {"w": np.zeros(10)}) as server:
        elsewhere = double.Array(10, np.float64, ordinal=1)
        with pytest.raises(ArgumentError, match=f"rank {RANK}: gradient of parameter 'w' .*it lies on GPU 1, and this thread uses GPU 0"):
            server.push({"w": elsewhere})
    assert agreed([]) == []


@pytest.mark.once
def test_gpu_arrays_go_through_host_memory(double: Double) -> None:
    start, into = np.arange(1000.0), double.Array(1000, np.float64).fill(-1)
    with hpcoll.ParameterServer(WORLD, {"w": double.Array(1000, np.float64).fill(start)}, optimizer=SGD(0.5)) as server:
        server.push({"w": double.Array(1000, np.float64).fill(2.0)})
        assert server.pull({"w": into})["w"] is into
    assert agreed([] if (into.get() == start - 1).all() else [into.get()[:3]]) == []


# --- the job


@pytest.mark.once
@pytest.mark.parametrize("dedicated", [0, pytest.param(1, marks=NEEDS_TWO)])
def test_job(dedicated: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As a script: its own checks hold, and every way learns."""
    pytest.importorskip("sklearn")
    jobs = Path(__file__).parents[2] / "jobs"
    monkeypatch.syspath_prepend(str(jobs))
    monkeypatch.setattr("sys.argv", ["parameter_server", "--epochs", "3", "--hidden", "32", "--dedicated", str(dedicated)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(jobs / "parameter_server.py"), run_name="__main__")
    rows = {row[0]: float(row[3].rstrip("%")) for row in map(str.split, capsys.readouterr().out.splitlines()[1:5])}
    good = ended.value.code == 0 and (RANK > 0 or (len(rows) == 4 and min(rows.values()) > 70))
    assert agreed([] if good else [(ended.value.code, rows)]) == []
