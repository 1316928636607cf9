"""The ledger and the log say of each call who served it and why, the caller's element type, the way of the bytes."""

import logging
from typing import Any

import numpy as np
import pytest
from gpu_double import SHORT, WORLD, allreduce
from ml_dtypes import bfloat16
from mpi4py import MPI
from reference import ensure, ensure_none, fresh, unless

import hpcoll
from hpcoll.runtime.engine.object_layout import SUPPORTED

pytestmark = [pytest.mark.mpi, pytest.mark.once]
X, LONG, PAIRS = (
    np.ones(8),
    np.ones(3, "G"),
    np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True)),
)


def ones(dtype: Any) -> Any:
    return np.ones(8, dtype)


def served(comm: hpcoll.Communicator) -> list[tuple[str, str, str, str, int]]:
    return sorted(
        (row.operation, row.algorithm, row.element, row.why, row.calls) for row in comm.ledger.rows()
    )


def own_operator(comm: hpcoll.Communicator) -> None:
    op = MPI.Op.Create(lambda send, recv, datatype: None, commute=True)
    comm.Allreduce(X, ones("f8"), op)
    op.Free()


def pairs(comm: hpcoll.Communicator) -> None:
    comm.Reduce([PAIRS, 2, MPI.DOUBLE_INT], [PAIRS.copy(), 2, MPI.DOUBLE_INT], MPI.MINLOC)


def column(comm: hpcoll.Communicator, form: bool = False) -> None:
    datatype = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
    datatype.Set_name("column")
    if form:
        comm.Ibcast([ones("f8"), 1, datatype]).Wait()
    else:
        comm.Bcast([ones("f8"), 1, datatype])
    datatype.Free()


def persistent(comm: hpcoll.Communicator) -> None:
    request = comm.Allreduce_init(X, ones("f8"), algorithm="native")
    request.Start()
    request.Wait()
    request.Free()


ASKED, EXTENDED = "algorithm='native'", "long double elements"
CASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "blocking": (lambda c: c.Allreduce(X, ones("f8"), algorithm="native"), ("allreduce", "float64", ASKED)),
    "in flight": (
        lambda c: c.Iallreduce(X, ones("f8"), algorithm="native").Wait(),
        ("allreduce", "float64", ASKED),
    ),
    "barrier": (lambda c: c.Barrier(algorithm="native"), ("barrier", "", ASKED)),
    "long double": (lambda c: c.Allreduce(LONG, LONG.copy()), ("allreduce", str(LONG.dtype), EXTENDED)),
    "operator": (own_operator, ("allreduce", "float64", "user-defined operator")),
    "MINLOC": (pairs, ("reduce", "MPI_DOUBLE_INT", "MINLOC")),
    "no memory": (
        lambda c: c.Bcast([MPI.BOTTOM, 0, MPI.INT]),
        ("bcast", "", "buffer that only it understands"),
    ),
}


@pytest.mark.smoke
@pytest.mark.parametrize("case", CASES)
def test_what_the_library_serves(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each call is counted, with the reason; rank 0 says it once."""
    call, (operation, element, why) = CASES[case]
    comm = fresh()
    with caplog.at_level(logging.INFO, "hpcoll"):
        for _ in range(3):
            call(comm)
    found = served(comm)
    said = [text for text in caplog.messages if text.endswith(f"native ({why})")]
    what = f"{operation} of {element}" if element else operation
    wrong: list[Any] = unless(found == [(operation, "native", element, why, 3)], found)
    wrong += unless(len(said) == (comm.rank == 0) and all(text.startswith(what) for text in said), said)
    comm.Free()
    ensure_none(wrong)


TYPES = {
    "float16": lambda c: c.Allreduce(ones("f2"), ones("f2")),
    "float32": lambda c: c.Alltoallv(
        [np.ones(c.size, "f4"), [1] * c.size], [np.ones(c.size, "f4"), [1] * c.size]
    ),
    "bfloat16": lambda c: c.Allreduce(ones(bfloat16), ones(bfloat16)),
    "uint8": lambda c: c.Bcast(bytearray(8)),
    "column": column,
    "column in flight": lambda c: column(c, True),
    "": lambda c: c.Barrier(),
}


@pytest.mark.parametrize("element", TYPES)
def test_the_callers_element_type(element: str, caplog: pytest.LogCaptureFixture) -> None:
    comm = fresh()
    with caplog.at_level(logging.INFO, "hpcoll"):
        TYPES[element](comm)
    found, element = comm.ledger.rows(), element.removesuffix(" in flight")
    wrong: list[Any] = unless([(row.element, row.why) for row in found] == [(element, "")], found)
    of = f" of {element}" if element else ","
    wrong += unless(comm.rank or any(of in text for text in caplog.messages), caplog.messages)
    comm.Free()
    ensure_none(wrong)


@pytest.mark.skipif(not SUPPORTED, reason="every call is planned in Python")
def test_a_repeated_call_is_counted_in_compiled_code(described: list[str]) -> None:
    """Calls of several types take turns, each in its own line, and none comes back to Python."""
    comm, arrays = fresh(), [ones(code) for code in ("f8", "f4", "i4")]
    for array in arrays:
        comm.Bcast(array, algorithm="binomial")
        comm.Bcast(array, algorithm="native")
    described.clear()
    for i in range(2):
        for array in arrays[i:]:
            comm.Bcast(array, algorithm="binomial")
            comm.Bcast(array, algorithm="native")
    ncalls = {(row.algorithm, row.element): row.calls for row in comm.ledger.rows()}
    wanted = {
        (name, element): n
        for name in ("binomial", "native")
        for element, n in (("float64", 2), ("float32", 3), ("int32", 3))
    }
    comm.Free()
    ensure(ncalls == wanted and not described, (ncalls, described))


@pytest.mark.smoke
@pytest.mark.parametrize("algorithm", ["direct", "native"])
@pytest.mark.parametrize("count", [8, 300_000])
def test_every_form_is_counted(count: int, algorithm: str) -> None:
    """Once, whether a call ends as it begins or later, waits alone or among others; the time per call is over those that have one."""
    comm, x, y = fresh(), np.ones(count), np.ones(count)
    request = comm.Allreduce_init(x, y, algorithm=algorithm)
    for _ in range(5):
        comm.Allreduce(x, y, algorithm=algorithm)
        comm.Iallreduce(x, y, algorithm=algorithm).Wait()
        MPI.Request.Waitall([comm.Iallreduce(x, y, algorithm=algorithm)])
        request.Start()
        request.Wait()
        MPI.Prequest.Startall([request])
        MPI.Request.Waitall([request])
    (row,) = comm.ledger.rows()
    request.Free()
    head, line = (line.split() for line in str(comm.ledger).splitlines())
    seconds = float(line[head.index("us/call") + 1]) * 1e-6  # bytes are two words
    wrong: list[Any] = unless(row.calls == 25 and row.nbytes == 25 * x.nbytes and row.seconds > 0, row)
    wrong += unless(5 <= row.timed <= 25 and abs(seconds - row.seconds / row.timed) < 1e-7, (row, seconds))
    wrong += unless(
        ("timed" in head) == (row.timed < 25) and (row.timed == 25 or line[3] == str(row.timed)), (row, line)
    )
    wrong += unless(algorithm == "direct" or row.timed == 5, row)
    comm.Free()
    ensure_none(wrong)


@pytest.mark.smoke
def test_ways(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Shared memory within a group of two ranks, MPI between groups; each rank names its own peers' ways."""
    monkeypatch.setenv("HPCOLL_SHM_RANKS", "2")
    comm, rank = fresh(), WORLD.rank
    group = [one for one in range(comm.size) if one // 2 == rank // 2 and one != rank]
    with caplog.at_level(logging.DEBUG, "hpcoll"):
        comm.Allreduce(X, ones("f8"), algorithm="direct")
    ways = {"shm": len(group), "mpi": comm.size - 1 - len(group)}
    peers = ", ".join(f"{n} by {way}" for way, n in sorted(ways.items()) if n) or "none"
    found, wanted = (
        [row.ways for row in comm.ledger.rows()],
        "+".join(sorted(way for way, n in ways.items() if n)),
    )
    wrong: list[Any] = unless(found == [wanted], found)
    wrong += unless(
        caplog.messages.count(f"rank {rank}: allreduce of float64: direct, peers: {peers}") == 1,
        caplog.messages,
    )
    comm.Free()
    ensure_none(wrong)


@pytest.mark.double
def test_gpu_arrays_that_pass_through_the_host(double: Any) -> None:
    comm = hpcoll.Communicator(WORLD.Dup())
    right = allreduce(comm, double, SHORT)
    found = [(row.element, row.ways) for row in comm.ledger.rows()]
    wanted = [("float32", "host+shm" if comm.size > 1 else "host")]
    comm.Free()
    ensure(right and found == wanted, (right, found))
