"""Parameter servers refuse bad parameters, arguments, gradients and calls; ranks that leave, fail or fall silent are named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from internals import server_of
from reference import ensure, ensure_none, raised
from training_model import MODES, NRANKS, RANK, WORLD, differences, gradient, initial, serial

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.training.optimizers import SGD
from hpcoll.training.shard_window import LostRank

pytestmark = [pytest.mark.mpi, pytest.mark.twice]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: p.pop("bias"), "lacks parameter 'bias'"),
        (
            lambda p: p.update(bias=np.zeros(12)),
            "'bias' needs float64 of shape (11,), got float64 of shape (12,)",
        ),
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
    error = raised(lambda: hpcoll.ParameterServer(WORLD, mine))
    good = (
        isinstance(error, ArgumentError)
        and text in str(error)
        and str(error).startswith(f"rank {NRANKS - 1}: ")
    )
    ensure(good, repr(error))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"servers": [NRANKS]}, "needs distinct servers among"),
        ({"servers": []}, "needs distinct servers among"),
        ({"mode": "bounded"}, "needs mode 'synchronous' or 'asynchronous', got 'bounded'"),
        ({"staleness": 1}, "needs staleness >= 0 and mode 'asynchronous'"),
        ({"timeout": 0}, "needs a timeout > 0 s, got 0"),
        ({"optimizer": 0.1}, "needs an optimizer that can be called, got 0.1"),
    ],
)
def test_arguments(options: dict[str, Any], text: str) -> None:
    """Wrong ones on one rank: all raise."""
    mine = options if RANK == NRANKS - 1 else {}
    error = raised(lambda: hpcoll.ParameterServer(WORLD, initial(), **mine))
    ensure(isinstance(error, ArgumentError) and text in str(error), repr(error))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("options", [{"mode": "asynchronous"}, {"servers": [1]}, {"split": False}], ids=str)
def test_arguments_that_differ(options: dict[str, Any]) -> None:
    with pytest.raises(
        ArgumentError, match=f"rank {NRANKS - 1}: {next(iter(options))} must be equal on all ranks"
    ):
        hpcoll.ParameterServer(WORLD, initial(), **(options if RANK == NRANKS - 1 else {}))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda g: g.pop("bias"), "gradient lacks parameter 'bias'"),
        (
            lambda g: g.update(bias=np.zeros(12)),
            "gradient of parameter 'bias' needs float64 of shape (11,), got float64 of shape (12,)",
        ),
        (lambda g: g.update(bias="eleven"), "gradient of parameter 'bias' needs floating-point numbers"),
        (
            lambda g: g["weights"].__setitem__((3, 4), np.nan),
            "gradient of parameter 'weights' has 1 NaN, the first at (3, 4)",
        ),
    ],
)
def test_gradients_are_refused_before_they_are_sent(
    change: Callable[[dict[str, Any]], Any], text: str
) -> None:
    """With parameter and rank; a good one can follow, and is the first."""
    with hpcoll.ParameterServer(WORLD, initial(), optimizer=SGD(1.0), check_nan=True) as server:
        bad = initial()
        change(bad)
        error = raised(lambda: server.push(bad))
        server.push(initial())
        wrong = differences(server.pull(), {name: array * 0 for name, array in initial().items()})
    told = isinstance(error, ArgumentError) and str(error).startswith(f"rank {RANK}: {text}")
    ensure_none(wrong if told else [repr(error)])


def test_calls_out_of_order() -> None:
    """A push without a pull, arrays that cannot be written, what is no dict of them, and calls after the end."""
    frozen = initial()
    frozen["bias"].flags.writeable = False
    with hpcoll.ParameterServer(WORLD, initial(), mode="asynchronous", staleness=2) as server:
        given = [
            (raised(lambda: server.push(initial())), "needs a pull since the push before it"),
            (
                raised(lambda: server.pull(frozen)),
                "array for parameter 'bias' needs contiguous memory that can be written",
            ),
            (raised(lambda: server.pull([])), "needs a dict of arrays by name, got list"),
            (raised(lambda: server.pull({})), "array to pull to lacks parameter 'weights'"),
        ]
        server.barrier()
    server.close()
    given.append(
        (raised(server.pull), f"rank {RANK}: pull needs a parameter server that this rank has not left")
    )
    ensure_none(
        [
            repr(error)
            for error, text in given
            if not isinstance(error, ArgumentError) or text not in str(error)
        ]
    )


@pytest.mark.mpi(min_size=3)
def test_synchronous_goes_on_without_a_worker_that_leaves() -> None:
    """As a serial run does that has its gradients for as long as it was there."""
    wrong: list[Any] = []
    server = hpcoll.ParameterServer(
        WORLD, initial(), servers=[0], dedicated=True, optimizer=SGD(0.1), timeout=60
    )
    last = NRANKS - 1
    for step in range(1, 7 if RANK else 0):
        if last == RANK and step == 4:
            server.leave()
            break
        server.push(gradient(server.pull(), RANK - 1, step))
    else:
        wrong += differences(server.pull(), serial(SGD(0.1), NRANKS - 1, 6, last - 1, 3)) if RANK else []
        server.close()
    ensure_none(wrong)


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
            while server_of(server).version < 3:
                server_of(server).turn()
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
    ensure(found == expected, (found, expected))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", MODES, ids=["synchronous", "asynchronous", "bounded"])
@pytest.mark.parametrize("dedicated", [True, False])
def test_server_that_fails(dedicated: bool, mode: dict[str, Any]) -> None:
    """Its workers name it, at once and not after the timeout."""
    server = hpcoll.ParameterServer(WORLD, initial(), servers=[0], dedicated=dedicated, timeout=60, **mode)
    found = lost(lambda: run(server, 0, 100_000))
    ensure(found == (None if RANK == 0 else 0), found)


@pytest.mark.mpi(min_size=2)
def test_optimiser_that_raises() -> None:
    """On the server it comes out where it serves; workers hear that the server has left."""

    def broken(parameter: Any, gradient: Any, state: Any, step: int) -> None:
        raise ZeroDivisionError("step 1")

    server = hpcoll.ParameterServer(
        WORLD, initial(), servers=[0], dedicated=True, optimizer=broken, timeout=60
    )
    error = raised(lambda: run(server, -1))
    ensure(isinstance(error, ZeroDivisionError if RANK == 0 else LostRank), repr(error))


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
    ensure(found == expected, found)
