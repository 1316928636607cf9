"""The MPI library's own collectives from compiled code: every element type, the ledger, and its errors."""

from typing import Any

import numpy as np
import pytest
from internals import context, resources
from mpi4py import MPI
from reference import communicator, ensure_none, unless

import hpcoll
from hpcoll.comm.arguments.methods import METHODS
from hpcoll.runtime.engine.call_cache import BufferPattern, CachedCall, MpiCall
from hpcoll.runtime.engine.object_layout import SUPPORTED
from hpcoll.runtime.program.call_fields import ALIASED, ONE

pytestmark = pytest.mark.mpi
CODES = "?bhilqBHILQfdgFDG"


@pytest.mark.parametrize("method", ["Allreduce", "Bcast", "Alltoall", "Gather"])
def test_every_element_type(method: str) -> None:
    """Counts are the caller's elements; the second and the third call do not pass through mpi4py."""
    comm = communicator().Dup()
    p, wrong = comm.size, []
    for code in CODES:
        op, length = MPI.LOR if code == "?" else MPI.SUM, 3 * p
        send, recv, expected = np.zeros(length, code), np.zeros(length, code), np.zeros(length, code)
        for turn in range(3):
            send[:] = [(comm.rank + i + turn) % 2 for i in range(length)]
            recv[:] = expected[:] = 0
            arguments: dict[str, Any] = {
                "Allreduce": (send, recv, op),
                "Bcast": (send, p - 1),
                "Alltoall": (send, recv),
                "Gather": (send[:3], recv, p - 1),
            }
            theirs = [expected if one is recv else one for one in arguments[method]]
            bare = send.copy()
            getattr(MPI.Intracomm(comm), method)(*(bare if one is send else one for one in theirs))
            getattr(comm, method)(*arguments[method], algorithm="native")
            wrong += unless((recv == expected).all() and (send == bare).all(), (code, turn))
        runs = [table.latest.by for table in context(comm).tables.tables.values()]
        wrong += unless(not SUPPORTED or [type(one) for one in runs] == [MpiCall], (code, runs))
    comm.Free()
    ensure_none(wrong)


@pytest.mark.parametrize("method", ["Allreduce", "Reduce_scatter_block", "Reduce", "Scan"])
@pytest.mark.parametrize("in_place", [False, True])
def test_long_double(method: str, in_place: bool) -> None:
    """Only the library can combine them; what lies behind the result stays as it was."""
    comm, wrong = communicator().Dup(), []
    p, bare, root = comm.size, MPI.Intracomm(comm), (communicator().size - 1,) if method == "Reduce" else ()
    for turn in range(3):
        results = []
        for one in (bare, comm):
            memory = np.full(3 * p + 5, -1, "g")
            send = np.arange(3 * p, dtype="g") + comm.rank + turn
            recv = memory[: 3 if method == "Reduce_scatter_block" and not in_place else 3 * p]
            if in_place:
                recv[:] = send
            here = in_place and (method != "Reduce" or comm.rank == p - 1)
            getattr(one, method)(MPI.IN_PLACE if here else send, recv, MPI.SUM, *root)
            results.append(memory[:3] if method == "Reduce_scatter_block" and in_place else memory)
            wrong += unless((memory[3 * p :] == -1).all(), (turn, "behind it"))
        wrong += unless(np.array_equal(*results), (turn, *results))
    comm.Free()
    ensure_none(wrong)


def test_what_the_library_refuses_is_raised_and_leaves_the_communicator_as_it_is() -> None:
    """An operator that it does not have for floats, entered as if it had been accepted before."""
    comm = communicator().Dup()
    bare, x = MPI.Intracomm(comm), np.ones(3)
    before = bare.Get_errhandler()
    bare.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM, algorithm="native")
    table = context(comm).tables.tables["Allreduce", 0, "native", None, None]
    sums, log = np.zeros(3, np.int64), resources(comm).log
    call = MpiCall(
        "MPI_Allreduce",
        METHODS["Allreduce"].c_arguments,
        "",
        bare,
        0,
        MPI.DOUBLE,
        MPI.BAND,
        True,
        sums,
        8,
        log,
        1,
    )
    pattern, served = (
        BufferPattern(ONE, x.nbytes, True, x, element=8),
        CachedCall(call, table.calls[0].plan, (3, 3), 3, 24),
    )
    table.enter(MPI.BAND, BufferPattern(ALIASED), pattern, served)
    wrong = []
    try:
        comm.Allreduce(MPI.IN_PLACE, x, MPI.BAND, algorithm="native")
        wrong.append("accepted")
    except MPI.Exception as error:
        wrong += unless(error.Get_error_class() == MPI.ERR_OP, str(error))
    x[:] = 1
    comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM, algorithm="native")
    wrong += unless((x == comm.size).all(), x)
    bare.Set_errhandler(before)
    comm.Free()
    ensure_none(wrong)


def test_operators_that_only_the_library_has() -> None:
    """Pairs of a number and an index, and a function of the caller's; none that has been freed is called."""
    comm = communicator().Dup()
    pairs, least, wrong = (
        np.zeros(3, np.dtype("f8, i4", align=True)),
        np.zeros(3, np.dtype("f8, i4", align=True)),
        [],
    )
    own, x, y = MPI.Op.Create(_maximum, commute=True), np.zeros(4), np.zeros(4)
    for turn in range(3):
        pairs["f0"], pairs["f1"] = [(comm.rank + turn + i) % comm.size for i in range(3)], comm.rank
        comm.Allreduce(
            [pairs.view("u1"), 3, MPI.DOUBLE_INT], [least.view("u1"), 3, MPI.DOUBLE_INT], MPI.MINLOC
        )
        wrong += unless(
            least.tolist() == [(0, (-turn - i) % comm.size) for i in range(3)], ("MINLOC", turn, least)
        )
        x[:] = comm.rank + turn
        comm.Allreduce([x, MPI.BYTE], [y, MPI.BYTE], own)
        wrong += unless((y == comm.size - 1 + turn).all(), ("own", turn, y))
    runs = [type(served.by) for table in context(comm).tables.tables.values() for served in table.calls]
    wrong += unless(not SUPPORTED or runs == [MpiCall, MpiCall], runs)
    own.Free()
    with pytest.raises((hpcoll.HpcollError, MPI.Exception)):
        comm.Allreduce([x, MPI.BYTE], [y, MPI.BYTE], own)
    comm.Free()
    ensure_none(wrong)


def _maximum(one: Any, other: Any, datatype: MPI.Datatype) -> None:
    numbers, into = (np.frombuffer(memory, "f8") for memory in (one, other))
    np.maximum(numbers, into, out=into)
