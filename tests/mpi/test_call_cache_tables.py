"""The table of earlier calls: operators that only look alike, more shapes than it holds, and what must not be entered."""

from typing import Any

import numpy as np
import pytest
from forms import every
from internals import context
from mpi4py import MPI
from reference import communicator, ensure, ensure_none, unless
from test_call_cache import Marked, frozen, total, warm

import hpcoll
from hpcoll.runtime.engine import call_cache

pytestmark = pytest.mark.mpi


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
    if n <= 2:  # they compile on every rank
        operators += [
            (hpcoll.reduce_op(lambda a, b: max(a, b), name="one"), n),
            (hpcoll.reduce_op(lambda a, b: min(a, b), name="one"), 1),
        ]
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


def test_every_method_finds_its_entry() -> None:
    """The second call of a shape takes the quick way: nothing is added to the table."""
    if not call_cache.SUPPORTED:
        pytest.skip("arrays of this NumPy are laid out otherwise")
    comm = communicator().Dup()
    cases = [
        case for case in every(comm, 3) if not case.method.endswith("v") and case.method != "Reduce_scatter"
    ]
    sizes = []
    for turn in range(3):
        for case in cases:
            case.fill(turn)
            getattr(comm, case.method)(*case.arguments)
        sizes.append([len(table.calls) for table in context(comm).tables.tables.values()])
    comm.Free()
    assert sizes[1] == sizes[0] == sizes[2]
    ensure(all(sizes[0]), sizes)


@pytest.mark.parametrize("how", ["Fortran order", "subclass", "read-only root"])
def test_what_has_no_entry_does_not_push_out_what_has(how: str) -> None:
    """Calls that can never take the quick way leave the table alone."""
    comm = communicator().Dup()
    warm(comm, "direct")
    tables = context(comm).tables.tables
    for _ in range(call_cache.MAX_ENTRIES + 1):
        if how == "Fortran order":
            comm.Allreduce(np.ones((2, 3), order="F"), np.ones((2, 3), order="F"), algorithm="direct")
        elif how == "subclass":
            comm.Allreduce(np.ones(6).view(Marked), np.ones(6).view(Marked), algorithm="direct")
        else:
            comm.Bcast(frozen(np.ones(3)) if comm.rank == 0 else np.ones(3), algorithm="direct")
    entries = {key[0]: len(table.calls) for key, table in tables.items()}
    wanted = {"Allreduce": 1} | ({"Bcast": int(comm.rank > 0)} if how == "read-only root" else {})
    comm.Free()
    ensure(entries == wanted, entries)


def test_what_is_never_found_neither_pushes_out_nor_keeps_out() -> None:
    """Pairs of a new type each time are entered in vain: other calls keep their entry, and those of a new kind soon have one."""
    if not call_cache.SUPPORTED:
        pytest.skip("arrays of this NumPy are laid out otherwise")
    comm = communicator().Dup()
    x, y, z = np.full(4, comm.rank + 1.0), np.zeros(4), np.zeros(4, complex)
    table, sizes = context(comm).tables.table("Allreduce"), list[int]()

    def pair() -> list[Any]:
        return [np.ones(1, np.dtype("d,i4", align=True)), 1, MPI.DOUBLE_INT]

    for _ in range(3 * call_cache.MAX_ENTRIES):
        comm.Allreduce(x, y)
        comm.Allreduce(pair(), pair(), MPI.MAXLOC)
        sizes.append(len(table.calls))
    for _ in range(600):
        comm.Allreduce(pair(), pair(), MPI.MAXLOC)
    for _ in range(61):
        comm.Allreduce(z, z.copy())
    misses = table._misses
    comm.Allreduce(z, z.copy())
    wrong = [] if sizes == sorted(sizes) and table._misses == misses else [(sizes, misses, table._misses)]
    comm.Free()
    ensure_none(wrong)
