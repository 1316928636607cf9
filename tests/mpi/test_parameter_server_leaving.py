"""Ranks that leave a parameter server, fail or fall silent: whoever waits for them names them, and nobody hangs."""

from collections.abc import Callable
from typing import Any

import pytest
from reference import agreed, raised
from training_model import MODES, NRANKS, RANK, WORLD, differences, gradient, initial, serial

import hpcoll
from hpcoll.training.optimizers import SGD
from hpcoll.training.shard_window import LostRank

pytestmark = pytest.mark.mpi


@pytest.mark.mpi(min_size=3)
def test_synchronous_goes_on_without_a_worker_that_leaves() -> None:
    """As a serial run does that has its gradients for as long as it was there."""
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
    error = raised(lambda: run(server, -1))
    assert agreed([] if isinstance(error, ZeroDivisionError if RANK == 0 else LostRank) else [repr(error)]) == []


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
