"""Buffer specs as clients write them, derived datatypes on some ranks only, and what the ledger and the environment say about calls."""

import array
import logging
from typing import Any

import numpy as np
import pytest
from memory_kinds import Cai, Dlpack
from mpi4py import MPI
from reference import agreed, communicator, fresh

import hpcoll
from hpcoll.base.errors import ArgumentError

pytestmark = pytest.mark.mpi
ALGORITHMS = ["direct", "native"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("form", range(9))
def test_forms(form: int, algorithm: str) -> None:
    """The same four numbers, named in nine ways, summed into one of nine other ways."""
    comm = communicator()
    send, recv = np.full(6, comm.rank + 1.0), np.zeros(6)
    forms: list[Any] = [
        lambda x: x[1:5],
        lambda x: (x[1:5], MPI.DOUBLE),
        lambda x: [x, (4, 1), "d"],
        lambda x: [x[1:], 4.0, MPI.DOUBLE],
        lambda x: [MPI.buffer.frombuffer(x[1:]), 4, MPI.DOUBLE],
        lambda x: [x.view("V8"), 4, 1, MPI.DOUBLE],
        lambda x: memoryview(x[1:5]),
        lambda x: Dlpack(x[1:5]),
        lambda x: Cai(x[1:5]),
    ]
    comm.Allreduce(forms[form](send), forms[(form + 1) % len(forms)](recv), algorithm=algorithm)
    total = comm.size * (comm.size + 1) / 2
    assert agreed([] if recv.tolist() == [0, *[total] * 4, 0] else [recv]) == []


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_other_owners_of_memory(algorithm: str | None) -> None:
    comm = communicator()
    text = bytearray(b"hpcoll" if comm.rank == 0 else 6)
    comm.Bcast(text if comm.rank else b"hpcoll", algorithm=algorithm)  # read-only at the root
    assert comm.rank == 0 or text == b"hpcoll"
    numbers = array.array("i", [comm.rank] * 3)
    everybody = np.zeros((comm.size, 3), "i", order="C")
    comm.Allgather(numbers, everybody, algorithm=algorithm)
    assert everybody.tolist() == [[rank] * 3 for rank in range(comm.size)]
    matrix = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    out = np.zeros((2, 3), order="F")
    comm.Allreduce(matrix, out, MPI.MAX, algorithm=algorithm)
    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]
    whole = np.array(comm.rank)  # no dimensions
    comm.Allreduce(MPI.IN_PLACE, whole, algorithm=algorithm)
    assert whole == comm.size * (comm.size - 1) // 2
    comm.Bcast([None, 0, MPI.INT], algorithm=algorithm)


@pytest.mark.smoke
@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_columns_meet_rows(algorithm: str | None) -> None:
    """Rank 0 keeps its vector in the second column of a matrix, described by a derived datatype; the others in plain arrays."""
    comm = communicator()
    n, rank = comm.size, comm.rank
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Create_resized(0, 96).Commit()
    matrix = np.zeros((4 * n, 3))
    plain = np.zeros(4 * n)
    derived = rank == 0
    wrong = []

    matrix[:4, 1] = plain[:4] = [1, 2, 3, 4] if rank == n - 1 else [0, 0, 0, 0]
    comm.Bcast([matrix.ravel()[1:], 1, column] if derived else plain[:4], root=n - 1, algorithm=algorithm)
    wrong += [] if (matrix[:4, 1] if derived else plain[:4]).tolist() == [1, 2, 3, 4] else ["bcast"]

    mine = np.arange(4.0) + 10 * rank
    matrix[:] = -1
    comm.Gather(
        mine,
        [matrix.ravel()[1:], 1, column] if derived else None,
        algorithm=algorithm,
    )
    gathered = np.concatenate([np.arange(4.0) + 10 * r for r in range(n)])
    wrong += (
        []
        if not derived or (matrix[:, 1].tolist() == gathered.tolist() and (matrix[:, ::2] == -1).all())
        else ["gather"]
    )

    matrix[:, 1] = gathered
    sent: Any = [matrix.ravel()[1:], 1, column] if derived else None
    found = np.zeros(4)
    comm.Scatter(sent, found, algorithm=algorithm)
    wrong += [] if found.tolist() == mine.tolist() else ["scatter"]

    matrix[:, 1] = gathered + 1000 * rank
    plain = np.zeros(4 * n)
    comm.Alltoall(
        [matrix.ravel()[1:], 1, column] if derived else gathered + 1000 * rank, plain, algorithm=algorithm
    )
    wrong += (
        []
        if plain.tolist() == [1000 * r + 10 * rank + i for r in range(n) for i in range(4)]
        else ["alltoall"]
    )
    column.Free()
    assert agreed(wrong) == []


def calls(comm: hpcoll.Communicator) -> dict[str, tuple[int, int]]:
    """Calls and bytes by operation and algorithm."""
    return {f"{row.operation}/{row.algorithm}": (row.calls, row.nbytes) for row in comm.ledger.rows()}


def test_ledger() -> None:
    comm = communicator().Dup()
    x, y = np.ones(10), np.zeros(10)
    for _ in range(3):
        comm.Allreduce(x, y, algorithm="ring")
    comm.Allreduce(x, y, algorithm="native")
    comm.Bcast(y, algorithm="chain")
    comm.Barrier(algorithm="dissemination")
    with pytest.raises(ArgumentError):
        comm.Allreduce(x, y[:5])
    assert calls(comm) == {
        "allreduce/ring": (3, 240),
        "allreduce/native": (1, 80),
        "bcast/chain": (1, 80),
        "barrier/dissemination": (1, 1),
    }
    assert all(0 < row.seconds < 60 for row in comm.ledger.rows())
    assert "allreduce        ring                        3" in str(comm.ledger)
    comm.ledger.clear()
    assert comm.ledger.rows() == []
    comm.Allreduce(x, y, algorithm="ring")  # a plan made before is counted after
    assert [row.calls for row in comm.ledger.rows()] == [1]
    comm.Free()


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
    assert comm._context.resources.config.segment == 64
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
    assert sum(said == text for said in caplog.messages) == (
        MPI.COMM_WORLD.rank == 0
    )  # once, and not from every rank


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
