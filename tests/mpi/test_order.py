"""Reductions with ``order="rank"``: the bits of one expression over the ranks' contributions, whatever algorithm, form, size or memory."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failed_calls import caught
from gpu_cases import read
from mpi4py import MPI
from reference import (
    COLLECTIVES,
    REDUCING,
    UNTOUCHED,
    Array,
    communicator,
    ensure,
    ensure_none,
    fresh,
    raised,
    unless,
)

import hpcoll
from hpcoll.selection.config import NATIVE

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/same_bits"))
from right_bits import canonical, lean

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
METHODS = ("Allreduce", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan")
FORMS = ("blocking", "in flight", "persistent")
Combine = Callable[[Array, Array], Array]


def added(one: Array, other: Array) -> Array:
    return np.add(one, other)


def wide(nranks: int, count: int, dtype: Any = np.float64) -> list[Array]:
    """Every rank's numbers, of many exponents: their sum is another in almost any other order."""
    chance, dtype = np.random.default_rng(count), np.dtype(dtype)
    exponents = (
        chance.integers(-6, 6, (nranks, count))
        if dtype.itemsize == 2
        else chance.integers(-20, 20, (nranks, count))
    )
    found = chance.standard_normal((nranks, count)) * 2.0**exponents
    if dtype.kind == "c":
        found = found + 1j * chance.permuted(found, axis=1)
    return [one.astype(dtype) for one in found]


class Case:
    """A reduction of some contributions on this rank: its arguments, and what it must give."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        method: str,
        every: list[Array],
        op: Any,
        combine: Combine,
        *,
        in_place: bool,
        root: int,
    ) -> None:
        me, nranks = comm.rank, comm.size
        counts = [every[0].size // nranks] * nranks
        if method == "Reduce_scatter":
            counts = [counts[0] // 2 * ((rank + 1) % 3) for rank in range(nranks)]
            every = [one[: sum(counts)] for one in every]
        used = {"Scan": every[: me + 1], "Exscan": every[:me]}.get(method, every)
        receives = bool(used) and (method != "Reduce" or me == root)
        total = canonical(used, combine) if receives else None
        if total is not None and method.startswith("Reduce_scatter"):
            total = total[sum(counts[:me]) : sum(counts[: me + 1])]
        in_place = in_place and (method != "Reduce" or me == root)
        own, self.wanted = every[me], total
        self.recv = (
            own.copy()
            if in_place
            else np.full(counts[me] if "scatter" in method else own.size, UNTOUCHED, own.dtype)
        )
        more = {"Reduce": (op, root), "Reduce_scatter": (counts, op)}.get(method, (op,))
        self.arguments = (MPI.IN_PLACE if in_place else own.copy(), self.recv, *more)
        self._before = self.recv.copy()

    @property
    def good(self) -> bool:
        """Say whether the result has the bits that it must have; what receives nothing is as it was."""
        wanted = self._before if self.wanted is None else self.wanted
        found = self.recv[: wanted.size]
        if found.dtype == np.longdouble:  # some of whose bytes are no part of the number
            return np.array_equal(found, wanted)
        return found.tobytes() == wanted.tobytes()

    def again(self) -> None:
        self.recv[:] = self._before


def called(comm: Any, form: str, method: str, arguments: tuple[Any, ...], **keywords: Any) -> None:
    if form == "blocking":
        getattr(comm, method)(*arguments, **keywords)
    elif form == "in flight":
        getattr(comm, f"I{method.lower()}")(*arguments, **keywords).Wait()
    else:
        request = getattr(comm, f"{method}_init")(*arguments, **keywords)
        request.Start()
        request.Wait()
        request.Free()


def found_wrong(
    comm: Any, method: str, every: list[Array], op: Any = MPI.SUM, combine: Combine = added, **keywords: Any
) -> list[Any]:
    """Every form, in place too, twice: the second time the call cache knows it."""
    wrong = []
    for form in FORMS:
        for in_place in (False, True):
            case = Case(comm, method, every, op, combine, in_place=in_place, root=comm.size - 1)
            for turn in range(2):
                case.again()
                called(comm, form, method, case.arguments, order="rank", **keywords)
                wrong += unless(case.good, (form, in_place, turn, every[0].dtype, every[0].size, op))
    return wrong


@pytest.mark.parametrize("method", METHODS)
def test_the_bits_of_one_expression(method: str, way: str) -> None:
    """In every form, short and long, on a node and by messages."""
    comm, wrong = fresh(), list[Any]()
    for count in (comm.size, 3 * 512 * comm.size, 40_000 * comm.size):
        wrong += found_wrong(comm, method, wide(comm.size, count))
    comm.Free()
    ensure_none(wrong)


@pytest.mark.parametrize("collective", REDUCING)
def test_every_algorithm_gives_the_same_or_is_refused(collective: str) -> None:
    """Also in segments: which ones serve is the catalogue's to say, and every collective has one."""
    comm, method, served, wrong = communicator(), COLLECTIVES[collective], list[str](), list[Any]()
    for name in (*hpcoll.algorithms(collective), NATIVE):
        for segment in (None, "4K"):
            case = Case(
                comm, method, wide(comm.size, 5000 * comm.size), MPI.SUM, added, in_place=False, root=0
            )
            keywords = {"algorithm": name, "segment": segment, "order": "rank"}
            error = raised(lambda: called(comm, "blocking", method, case.arguments, **keywords))  # noqa: B023
            if error is None:
                served.append(name)
                wrong += unless(case.good, (name, segment))
            else:
                asked = isinstance(
                    error, hpcoll.ArgumentError
                ) and "the canonical expression, which order='rank' asks for" in str(error)
                wrong += unless(asked and "these can: " in str(error), (name, repr(error)))
    ensure_none(wrong)
    assert served
    assert comm.size == 1 or NATIVE not in served


def user_op() -> MPI.Op:
    def function(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        mine = np.frombuffer(right, np.float64)
        mine[:] = lean(np.frombuffer(left, np.float64), mine)

    return MPI.Op.Create(function, commute=False)


@pytest.mark.parametrize("method", METHODS)
def test_what_only_the_mpi_library_combines(method: str) -> None:
    """Operators of the program's own, and long double: gathered by hpcoll, folded by the library, the last rank's buffer in place."""
    comm, op = communicator(), user_op()
    wrong = found_wrong(comm, method, wide(comm.size, 24 * comm.size), op, lean)
    wrong += found_wrong(comm, method, wide(comm.size, 24 * comm.size, np.longdouble))
    wrong += found_wrong(comm, method, [np.zeros(0)] * comm.size, op, lean)
    ensure_none(wrong)


def test_errors() -> None:
    """Before anything leaves: they name rank, what was expected and what came."""
    comm, x = communicator(), np.ones(4)
    expected = {
        "got 'ring'": lambda: comm.Allreduce(x, x.copy(), order="ring"),
        r"got \['rank'\]": lambda: comm.Scan(x, x.copy(), order=["rank"]),
        "got ''": lambda: comm.Iallreduce(x, x.copy(), order=""),
        "got 1": lambda: comm.Reduce_init(x, x.copy(), order=1),
    }
    for text, call in expected.items():
        with pytest.raises(
            hpcoll.ArgumentError, match=f"rank {comm.rank}: order must be 'rank' or None, {text}"
        ):
            call()
    with pytest.raises(
        hpcoll.ArgumentError,
        match="only the MPI library can combine this in rank order, got algorithm='ring'",
    ):
        comm.Allreduce(x, x.copy(), user_op(), algorithm="ring", order="rank")
    with pytest.raises(hpcoll.ArgumentError, match="recvbuf needs 4 elements"):
        comm.Allreduce(x, np.ones(3), user_op(), order="rank")


def test_the_variable(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A program that knows nothing of it; the first call in flight, too. Ledger and log say why."""
    monkeypatch.setenv("HPCOLL_ORDER", "rank")
    comm, wrong = fresh(), list[Any]()
    caplog.set_level(logging.INFO, logger="hpcoll")
    for method in METHODS:
        for form in reversed(FORMS):
            for op, combine in ((MPI.SUM, added), (user_op(), lean)):
                case = Case(
                    comm, method, wide(comm.size, 999 * comm.size), op, combine, in_place=False, root=0
                )
                called(comm, form, method, case.arguments)
                wrong += unless(case.good, (method, form, op))
    rows = comm.ledger.rows()
    wrong += [row for row in rows if row.algorithm == NATIVE or row.why != "order='rank'"]
    wrong += unless(
        comm.rank or any("order='rank'" in record.getMessage() for record in caplog.records), "log"
    )
    comm.Free()
    monkeypatch.setenv("HPCOLL_ALLREDUCE", "ring")
    comm = fresh()
    error = raised(lambda: comm.Allreduce(np.ones(7), np.ones(7)))
    wrong += unless(
        comm.size == 1 or "allreduce/ring cannot serve this call: its results are not" in str(error),
        repr(error),
    )
    comm.Free()
    ensure_none(wrong)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("check", ["", "all"])
def test_ranks_that_ask_for_another_order(check: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told on every rank, also where all would run the same algorithm."""
    if check:
        monkeypatch.setenv("HPCOLL_CHECK", check)
    comm, x = fresh(), np.ones(4)
    keywords = {"order": "rank"} if comm.rank == 0 else {}
    text, _ = caught(comm, lambda: comm.Allreduce(x, np.empty(4), algorithm="direct", **keywords))
    right = "op=SUM, order='rank')" in text and "Allreduce(float64[4], op=SUM) at" in text
    ensure(right, text)


@pytest.mark.double
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gpu_arrays(dtype: Any, double: Any) -> None:
    """Long ones by a program for GPU memory, short ones by way of the host: the bits of host arrays."""
    comm, wrong = fresh(), list[Any]()
    for count in (9, 40_000 * comm.size):
        every = wide(comm.size, count, dtype)
        total = canonical([one.astype(np.float32) for one in every], added).astype(dtype)
        for form in FORMS:
            send, recv = double.Array(count, dtype).fill(every[comm.rank]), double.Array(count, dtype).fill(0)
            called(comm, form, "Allreduce", (send, recv), order="rank")
            wrong += unless(read(recv).tobytes() == total.tobytes(), (count, form))
    comm.Free()
    ensure_none(wrong)
