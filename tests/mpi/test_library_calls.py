"""The MPI library's own collectives from compiled code: every element type, the ledger, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import agreed, communicator

from hpcoll.comm.calls.methods import METHODS
from hpcoll.runtime.engine.call_cache import SUPPORTED, Served, Side
from hpcoll.runtime.engine.mpi_collectives import MpiCall, known
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
                "Allreduce": (send, recv, op), "Bcast": (send, p - 1), "Alltoall": (send, recv), "Gather": (send[:3], recv, p - 1)
            }  # fmt: skip
            theirs = [expected if one is recv else one for one in arguments[method]]
            bare = send.copy()
            getattr(MPI.Intracomm(comm), method)(*(bare if one is send else one for one in theirs))
            getattr(comm, method)(*arguments[method], algorithm="native")
            wrong += [] if (recv == expected).all() and (send == bare).all() else [(code, turn)]
        runs = [table.latest.by for table in comm._context.tables.tables.values()]
        wanted = type(None) if code in "gG" and method == "Allreduce" else MpiCall  # `Call` knows no such reduction
        wrong += [] if not SUPPORTED or [type(one) for one in runs] == [wanted] else [(code, runs)]
    comm.Free()
    assert agreed(wrong) == []


def test_the_ledger_counts_them() -> None:
    comm = communicator().Dup()
    x = np.ones(5)
    for _ in range(7):
        comm.Allreduce(MPI.IN_PLACE, x, algorithm="native")
    rows = [row for row in comm.ledger.rows() if row.algorithm == "native"]
    comm.Free()
    assert agreed([] if [row.calls for row in rows] == [7] and rows[0].nbytes == 7 * x.nbytes and rows[0].seconds > 0 else rows) == []


def test_what_the_library_refuses_is_raised_and_leaves_the_communicator_as_it_is() -> None:
    """An operator that it does not have for floats, entered as if it had been accepted before."""
    comm = communicator().Dup()
    bare, x = MPI.Intracomm(comm), np.ones(3)
    before = bare.Get_errhandler()
    bare.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM, algorithm="native")
    table = comm._context.tables.tables["Allreduce", 0, "native", None]
    call = MpiCall("MPI_Allreduce", METHODS["Allreduce"].c_arguments, "", bare, 0, x.dtype, MPI.BAND, True, np.zeros(3, np.int64), 8)
    table.enter(MPI.BAND, Side(ALIASED), Side(ONE, x.nbytes, True, x, element=8), Served(call, table.calls[0].plan, (3, 3), 3, 24))
    wrong = []
    try:
        comm.Allreduce(MPI.IN_PLACE, x, MPI.BAND, algorithm="native")
        wrong.append("accepted")
    except MPI.Exception as error:
        wrong += [] if error.Get_error_class() == MPI.ERR_OP else [str(error)]
    x[:] = 1
    comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM, algorithm="native")
    wrong += [] if (x == comm.size).all() else [x]
    bare.Set_errhandler(before)
    comm.Free()
    assert agreed(wrong) == []


def test_what_mpi4py_has_to_look_at() -> None:
    """Types that MPI does not have, operators that are none of mpi4py's."""
    f8 = np.dtype("f8")
    assert known(f8, MPI.SUM)
    assert known(np.dtype("u1"), None)
    assert not known(f8.newbyteorder(), MPI.SUM)
    assert not known(np.dtype("M8[s]"), MPI.SUM)
    assert not known(f8, "sum")
    assert not METHODS["Allgatherv"].c_arguments
