"""A call like an earlier one takes the quick way; what changed since, or only looks alike, gets what a first call would get."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forms import every
from mpi4py import MPI
from reference import communicator, ensure_none, fresh, unless

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.runtime.engine import call_cache

pytestmark = pytest.mark.mpi
COUNT = 6
ALGORITHMS = [*hpcoll.algorithms("allreduce"), "native"]


def warm(comm: Any, algorithm: str, *, in_place: bool = False) -> tuple[Any, Any]:
    """Arrays with which the quick way has been taken."""
    x, y = np.full(COUNT, comm.rank + 1.0), np.zeros(COUNT)
    for _ in range(3):
        y[:] = comm.rank + 1
        comm.Allreduce(MPI.IN_PLACE if in_place else x, y, algorithm=algorithm)
    assert (y == total(comm)).all()
    return x, y


def total(comm: Any) -> float:
    return comm.size * (comm.size + 1) / 2


def shaped(x: Any, y: Any) -> tuple[Any, Any]:
    x.shape = y.shape = (2, 3)
    return x, y


def shaped_apart(x: Any, y: Any) -> tuple[Any, Any]:
    x.shape, y.shape = (3, 2), (1, 6, 1)
    return x, y


def resized(x: Any, y: Any) -> tuple[Any, Any]:
    """Longer, elsewhere in memory."""
    rank = x[0]
    x.resize(5000, refcheck=False)
    y.resize(5000, refcheck=False)
    x[:] = rank
    return x, y


def retyped(x: Any, y: Any) -> tuple[Any, Any]:
    """Twice as many elements of half the size."""
    rank = x[0]
    x.dtype = y.dtype = np.float32
    x[:], y[:] = rank, 0
    return x, y


class Marked(np.ndarray):
    """A subclass."""


CHANGES: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "shape": shaped,
    "resize": resized,
    "dtype": retyped,
    "empty": lambda x, y: (x[:0], y[:0]),
    "no dimensions": lambda x, y: (x[:1].reshape(()), y[:1].reshape(())),
    "subclass": lambda x, y: (x.view(Marked), y.view(Marked)),
    "complex": lambda x, y: (x.astype(np.complex64), y.astype(np.complex64)),
    "halves": lambda x, y: (x.astype(np.float16), y.astype(np.float16)),
    "two names of a type": lambda x, y: (x.astype("l"), y.astype("q")),
    "Fortran order": lambda x, y: (np.asfortranarray(x.reshape(2, 3)), np.asfortranarray(y.reshape(2, 3))),
    "one memory": lambda x, y: (x, x),
    "read-only input": lambda x, y: (frozen(x), y),
    "memoryview": lambda x, y: (memoryview(x), memoryview(y)),
    "list": lambda x, y: ([x, MPI.DOUBLE], [y, 6, MPI.DOUBLE]),
    "unaligned": lambda x, y: (unaligned(x), unaligned(y)),
}


def frozen(x: Any) -> Any:
    x.flags.writeable = False
    return x


def unaligned(x: Any) -> Any:
    y = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype)
    y[:] = x
    return y


def array_of(spec: Any) -> Any:
    return np.asarray(spec[0] if isinstance(spec, list) else spec)


@pytest.mark.parametrize("algorithm", ["direct", "native"])
def test_changed(algorithm: str) -> None:
    """Out of place, then in place, then as before the change; one table sees all changes."""
    comm, wrong = communicator().Dup(), []
    for name, change in CHANGES.items():
        if algorithm == "native" and name in ("two names of a type", "unaligned"):
            continue  # mpi4py refuses these
        send, recv = change(*warm(comm, algorithm))
        for _ in range(3):
            array_of(recv)[...] = comm.rank + 1 if "one memory" in name else 0
            comm.Allreduce(send, recv, algorithm=algorithm)
            wrong += unless((array_of(recv) == total(comm)).all(), (name, array_of(recv)))
        for _ in range(2):
            array_of(recv)[...] = comm.rank + 1
            comm.Allreduce(MPI.IN_PLACE, recv, algorithm=algorithm)
            wrong += unless((array_of(recv) == total(comm)).all(), (name, "in place", array_of(recv)))
        x, y = np.full(COUNT, comm.rank + 1.0), np.zeros(COUNT)
        comm.Allreduce(x, y, algorithm=algorithm)
        wrong += unless((y == total(comm)).all() and (x == comm.rank + 1).all(), (name, "as before"))
    comm.Free()
    ensure_none(wrong)


def test_one_memory_first() -> None:
    """A call with one array as both buffers is in place; the same shapes with two arrays are not."""
    comm, wrong = communicator().Dup(), []
    for algorithm in ALGORITHMS:
        both = np.full(1009, comm.rank + 1.0)
        comm.Allreduce(both, both, algorithm=algorithm)
        x, y = np.full(1009, comm.rank + 1.0), np.full(1009, -5.0)
        comm.Allreduce(x, y, algorithm=algorithm)
        wrong += unless(
            (both == total(comm)).all() and (y == total(comm)).all() and (x == comm.rank + 1).all(), algorithm
        )
    comm.Free()
    ensure_none(wrong)


REFUSED: dict[str, tuple[Callable[[Any, Any], tuple[Any, Any]], str]] = {
    "read-only": (lambda x, y: (x, frozen(y)), "recvbuf must be writable, got a read-only ndarray"),
    "every second": (lambda x, y: (np.tile(x, 2)[::2], y), "sendbuf must be contiguous"),
    "byte order": (lambda x, y: (x.astype(">f8"), y), "sendbuf needs native numbers, got dtype >f8"),
    "overlap": (lambda x, y: (lapping(x)[:6], lapping(x)[2:]), "must be the same memory or share none"),
    "shorter": (lambda x, y: (x, y[:5]), "recvbuf needs 6 elements of float64, got 5"),
    "other type": (lambda x, y: (x, y.view(np.int64)), "recvbuf needs 6 elements of float64, got 6 of int64"),
}
_LAPPING = np.zeros(8)


def lapping(x: Any) -> Any:
    return _LAPPING


@pytest.mark.parametrize("algorithm", ["direct", "native"])
def test_refused(algorithm: str) -> None:
    """In the words of a first call, and the next right one goes on."""
    comm, fresh = communicator().Dup(), communicator().Dup()
    for change, text in REFUSED.values():
        send, recv = change(*warm(comm, algorithm))
        for one in (comm, comm, fresh):
            with pytest.raises(ArgumentError, match=re.escape(text)):
                one.Allreduce(send, recv, algorithm=algorithm)
    warm(comm, algorithm)
    comm.Free()
    fresh.Free()


def test_blocks_around_what_is_sent() -> None:
    """What is sent may lie between the blocks that are received, but not in one of them."""
    comm = communicator()
    memory = np.zeros(2 * COUNT * comm.size + COUNT)
    counts, displs = [COUNT] * comm.size, [2 * COUNT * rank for rank in range(comm.size)]
    spec = [memory, (counts, displs)]
    for value in range(3):
        memory[COUNT : 2 * COUNT] = mine = value * comm.size + comm.rank
        comm.Allgatherv(memory[COUNT : 2 * COUNT], spec)
        assert (memory[COUNT : 2 * COUNT] == mine).all()
        assert [set(memory[at : at + COUNT]) for at in displs] == [
            {value * comm.size + rank} for rank in range(comm.size)
        ]
    with pytest.raises(ArgumentError, match="partial overlap"):
        comm.Allgatherv(memory[COUNT - 1 : 2 * COUNT - 1], spec)


def test_operators_that_look_alike() -> None:
    """Equal and not identical: SUM by another object; identical in all but the function; of one name."""
    comm = communicator().Dup()
    n, x, y, wrong = comm.size, np.full(4, comm.rank + 1.0), np.zeros(4), []
    operators: list[tuple[Any, float]] = [
        (MPI.SUM, total(comm)),
        (MPI.Op(MPI.SUM), total(comm)),
        (MPI.MAX, n),
        (MPI.Op.f2py(MPI.MIN.py2f()), 1),
        (hpcoll.AVG, total(comm) / n),
        (hpcoll.premul_sum(2.0), 2 * total(comm)),
        (hpcoll.premul_sum(3.0), 3 * total(comm)),
    ]
    if n <= 2:  # it compiles on every rank
        operators.append((hpcoll.reduce_op(lambda a, b: max(a, b), name="sum"), n))
    for _ in range(3):
        for op, wanted in operators:
            comm.Allreduce(x, y, op, algorithm="direct")
            wrong += unless((y == wanted).all(), (op, y[0], wanted))
            comm.Allreduce(x, y, op=op, algorithm="direct")
            wrong += unless((y == wanted).all(), ("by keyword", y[0], wanted))
    comm.Free()
    ensure_none([str(one) for one in wrong])


def test_operators_that_are_gone() -> None:
    """A new operator may lie where an old one lay."""
    comm = communicator().Dup()
    x, y, wrong = np.full(4, comm.rank + 1.0), np.zeros(4), []
    for factor in range(1, 60):
        comm.Allreduce(x, y, hpcoll.premul_sum(factor), algorithm="direct")
        wrong += unless((y == factor * total(comm)).all(), (factor, y[0]))
    for k in range(60):
        copy = MPI.Op((MPI.SUM, MPI.MAX)[k % 2])
        comm.Allreduce(x, y, copy, algorithm="direct")
        wrong += unless((y == (total(comm), comm.size)[k % 2]).all(), (k, y[0]))
        del copy
    comm.Free()
    ensure_none(wrong)


def test_more_shapes_than_a_table_holds() -> None:
    """Twice as many as there is room for, forwards, backwards, and each once more."""
    comm = communicator().Dup()
    lengths, wrong = list(range(1, 2 * call_cache.MAX_ENTRIES + 3)), []
    for length in (*lengths, *lengths[::-1], *(length for length in lengths for _ in range(2))):
        x, y = np.full(length, comm.rank + 1.0), np.zeros(length)
        comm.Allreduce(x, y, algorithm="direct")
        comm.Bcast(x, root=comm.size - 1, algorithm="direct")
        wrong += unless((y == total(comm)).all() and (x == comm.size).all(), length)
    comm.Free()
    ensure_none(wrong)


@pytest.mark.skipif(not call_cache.SUPPORTED, reason="arrays of this NumPy are laid out otherwise")
def test_every_method_finds_its_entry(described: list[str]) -> None:
    """The second call of a shape takes the quick way."""
    comm, wrong = fresh(), []
    for turn in range(3):
        described.clear()
        for case in every(comm, 3):
            case.fill(turn)
            getattr(comm, case.method)(*case.arguments)
            wrong += unless(case.good(), case)
        wrong += described * bool(turn)
    comm.Free()
    ensure_none(wrong)


def sum_of_scalars(comm: Any, turn: int) -> bool:
    total_of = np.zeros(1)
    comm.Allreduce(np.full(3, comm.rank + turn + 0.5).sum(), total_of)
    return bool(total_of[0] == sum(3 * (rank + turn + 0.5) for rank in range(comm.size)))


def in_fortran_order(comm: Any, turn: int) -> bool:
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3) + (turn if comm.rank == 0 else 99))
    comm.Bcast(x)
    return bool((x == np.arange(6.0).reshape(2, 3) + turn).all())


def of_a_subclass(comm: Any, turn: int) -> bool:
    x, y = np.full(4, comm.rank + turn).view(Marked), np.zeros(4, int).view(Marked)
    comm.Allreduce(x, [y, MPI.LONG])
    return bool((y == sum(rank + turn for rank in range(comm.size))).all())


def sizes_of(comm: Any) -> tuple[list[int], list[int]]:
    """Counts and displacements of blocks of their own sizes, with a gap before each."""
    counts = [rank + 2 for rank in range(comm.size)]
    return counts, [sum(counts[:rank]) + rank + 1 for rank in range(comm.size)]


def gathered_in_place(comm: Any, turn: int, method: str = "Allgatherv") -> bool:
    (counts, displs), here = sizes_of(comm), comm.rank
    whole = np.full(sum(counts) + comm.size + 1, -1.0)
    right = whole.copy()
    for rank, (count, displ) in enumerate(zip(counts, displs, strict=True)):
        right[displ : displ + count] = rank + turn
    own = slice(displs[here], displs[here] + counts[here])
    whole[own] = right[own]
    root = 0 if method == "Gatherv" else here
    send = MPI.IN_PLACE if here == root else right[own]
    getattr(comm, method)(send, [whole, (counts, displs)])
    return here != root or bool((whole == right).all())


def reduced_by_counts(comm: Any, turn: int, longer: int = 0) -> bool:
    counts = [rank + 1 for rank in range(comm.size)]
    x, y = np.full(sum(counts) + longer, turn + 1.0), np.zeros(comm.rank + 1)
    comm.Reduce_scatter([x, sum(counts), MPI.DOUBLE], [y, comm.rank + 1, MPI.DOUBLE], counts)
    return bool((y == comm.size * (turn + 1.0)).all())


def reduced_in_place(comm: Any, turn: int, longer: int = 0) -> bool:
    """Blocks of other sizes in each turn, as many elements in all."""
    counts = [2 * rank for rank in range(comm.size)]
    counts[0] += turn
    counts[-1] += 5 - turn
    x = np.arange(sum(counts) + longer) + turn + 10.0 * comm.rank
    first, n = sum(counts[: comm.rank]), counts[comm.rank]
    right = comm.size * (np.arange(first, first + n) + turn + 5.0 * (comm.size - 1))
    comm.Reduce_scatter(MPI.IN_PLACE, [x, sum(counts)] if longer else x, counts)
    return bool((x[:n] == right).all())


FORMS: dict[str, Callable[[Any, int], bool]] = {
    "a scalar of NumPy": sum_of_scalars,
    "Fortran order": in_fortran_order,
    "a subclass": of_a_subclass,
    "Allgatherv in place": gathered_in_place,
    "Gatherv in place": lambda comm, turn: gathered_in_place(comm, turn, "Gatherv"),
    "counts twice": reduced_by_counts,
    "counts of a longer array": lambda comm, turn: reduced_by_counts(comm, turn, 3),
    "Reduce_scatter in place": reduced_in_place,
    "Reduce_scatter in place in a longer array": lambda comm, turn: reduced_in_place(comm, turn, 3),
}


@pytest.mark.skipif(not call_cache.SUPPORTED, reason="arrays of this NumPy are laid out otherwise")
@pytest.mark.parametrize("form", FORMS)
def test_forms_that_are_found_again(form: str, described: list[str]) -> None:
    """Buffers as programs write them: the third call needs no description, and has the right answer with new arrays."""
    comm, wrong = fresh(), []
    for turn in range(5):
        if turn == 2:
            described.clear()
        wrong += unless(FORMS[form](comm, turn), f"turn {turn}")
    comm.Free()
    ensure_none(wrong + described)


@pytest.mark.skipif(not call_cache.SUPPORTED, reason="arrays of this NumPy are laid out otherwise")
def test_counts_that_do_not_add_up() -> None:
    """A Reduce_scatter like an earlier one, but of another number of elements than its counts have, is refused."""
    comm = fresh()
    counts = [2] * comm.size
    x, y = np.ones(sum(counts) + 1), np.zeros(2)
    for _ in range(3):
        comm.Reduce_scatter([x, sum(counts), MPI.DOUBLE], y, counts)
        comm.Reduce_scatter(MPI.IN_PLACE, [x, sum(counts), MPI.DOUBLE], counts)
        comm.Reduce_scatter(MPI.IN_PLACE, x[1:], counts)
    for send, recv in (
        ([x, sum(counts) + 1, MPI.DOUBLE], y),
        (x, y),
        ([x[2:], sum(counts), MPI.DOUBLE], y),
        (MPI.IN_PLACE, x),
        (MPI.IN_PLACE, [x, sum(counts) + 1, MPI.DOUBLE]),
    ):
        with pytest.raises(ArgumentError):
            comm.Reduce_scatter(send, recv, counts)
    comm.Free()


@pytest.mark.skipif(not call_cache.SUPPORTED, reason="arrays of this NumPy are laid out otherwise")
def test_what_is_never_found_neither_pushes_out_nor_keeps_out(described: list[str]) -> None:
    """Pairs of a new type each time are entered in vain: other calls keep their entry, and those of a new kind soon have one."""
    comm = fresh()
    x, y, z = np.full(4, comm.rank + 1.0), np.zeros(4), np.zeros(4, complex)

    def pairs(times: int) -> None:
        for _ in range(times):
            one, other = ([np.ones(1, np.dtype("d,i4", align=True)), 1, MPI.DOUBLE_INT] for _ in range(2))
            comm.Allreduce(one, other, MPI.MAXLOC)

    comm.Allreduce(x, y)
    pairs(3 * call_cache.MAX_ENTRIES)
    described.clear()
    comm.Allreduce(x, y)
    wrong = described.copy()
    pairs(600)
    for _ in range(61):
        comm.Allreduce(z, z.copy())
    described.clear()
    comm.Allreduce(z, z.copy())
    comm.Free()
    ensure_none(wrong + described)
