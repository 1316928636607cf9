"""Buffer specs as clients write them, derived datatypes on some ranks only, and what the ledger and the environment say about calls."""

import logging

import numpy as np
import pytest
from internals import resources
from mpi4py import MPI
from reference import communicator, fresh

import hpcoll
from hpcoll.base.errors import ArgumentError

pytestmark = pytest.mark.mpi
ALGORITHMS = ["direct", "native"]


def test_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOLL_ALLREDUCE", "ring")
    monkeypatch.setenv("HPCOLL_BCAST", "native")
    monkeypatch.setenv("HPCOLL_SEGMENT", "64")
    comm = communicator().Dup()
    x = np.arange(1009.0)
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Allreduce(MPI.IN_PLACE, np.ones(3), algorithm="tree")  # the keyword is stronger
    comm.Bcast(x)
    assert x.tolist() == (comm.size * np.arange(1009.0)).tolist()
    assert {(row.operation, row.algorithm) for row in comm.ledger.rows()} == {
        ("allreduce", "ring"),
        ("allreduce", "tree"),
        ("bcast", "native"),
    }
    assert resources(comm).config.segment == 64
    with pytest.raises(ArgumentError, match="it combines ranks in any order"):
        comm.Allreduce(np.ones(3), np.ones(3), hpcoll.reduce_op(lambda a, b: b, commutative=False))
    comm.Free()


def test_log_says_what_was_picked(caplog: pytest.LogCaptureFixture) -> None:
    comm = fresh()
    with caplog.at_level(logging.INFO, "hpcoll"):
        comm.Allreduce(MPI.IN_PLACE, np.ones(5), algorithm="ring", segment="1K")
        comm.Allreduce(MPI.IN_PLACE, np.ones(5), algorithm="ring", segment="1K")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert said == (
        ["allreduce of float64, 32 to 63 bytes: ring, segments of 1024 bytes (algorithm='ring')"]
        if comm.rank == 0
        else []
    )
    comm.Free()


def test_unknown_variable_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HPCOLL_ALLREDUSE", "ring")
    with caplog.at_level(logging.WARNING, "hpcoll"):
        fresh().Free()
        fresh().Free()
    text = "environment variable HPCOLL_ALLREDUSE means nothing: did you mean HPCOLL_ALLREDUCE?"
    # once, and not from every rank
    assert sum(said == text for said in caplog.messages) == (MPI.COMM_WORLD.rank == 0)


@pytest.mark.parametrize(
    ("name", "value"), [("HPCOLL_ALLREDUCE", "fast"), ("HPCOLL_SEGMENT", "0"), ("HPCOLL_DEBUG", "loud")]
)
def test_variable_that_means_nothing(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """On the last rank only, and yet every rank says so and none waits."""
    comm = communicator()
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ArgumentError, match=rf"^rank {comm.size - 1}: environment variable {name}: .*{value}"
    ):
        fresh()
    monkeypatch.undo()
    fresh().Free()


def test_variables_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = communicator()
    if comm.size == 1:
        pytest.skip("needs two ranks")
    monkeypatch.setenv("HPCOLL_REDUCE", "binomial" if comm.rank else "chain")
    with pytest.raises(
        ArgumentError,
        match=r"^rank 1: HPCOLL_REDUCE must be equal on all ranks, expected 'chain' .* got 'binomial'$",
    ):
        fresh()
