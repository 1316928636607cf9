"""Requests that are done when one of the MPI library's is, and a piece of work after it."""

import os
from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from hpcoll.comm.arguments.call import Call
from hpcoll.comm.plans.ledger import Account
from hpcoll.comm.plans.plan import MessageContext, Plan
from hpcoll.comm.requests.call_hooks import CallOwner
from hpcoll.comm.requests.operation import Operation, collect
from hpcoll.comm.requests.request import start
from hpcoll.runtime.engine.host_engine import Binding, HostEngine
from hpcoll.runtime.engine.wait_policy import wait_policy
from hpcoll.runtime.program.fields import NCOLUMNS
from hpcoll.runtime.program.opcodes import Code, Program
from hpcoll.runtime.transports.mpi import library

_BYTE = np.dtype(np.uint8)


def chain(
    rank: int,
    what: str,
    posted: MPI.Request,
    make: Callable[[Operation], MPI.Grequest],
    *,
    status: MPI.Status | None = None,
    finish: Callable[[], None] | None = None,
    report: Callable[[MPI.Status], None] | None = None,
) -> MPI.Grequest:
    """Return a request that is done when another one is.

    Args:
        rank: Rank of this process, for texts.
        what: Name of the request, for texts.
        posted: The library's request.
        make: Makes the request of an operation.
        status: Status of ``posted``, which is written at its end.
        finish: Work that remains to be done then.
        report: Tells a status what came.
    """
    collect()
    status = MPI.Status() if status is None else status

    def bind(engine: HostEngine) -> None:
        engine.bind_watched(MPI._addressof(posted), MPI._addressof(status))

    call = Call("receive", 0, 0, 0, _BYTE, start=bind, finish=finish, keep=(posted, status), report=report)
    return start(CallOwner(rank), MessageContext(0, None), _plan(what), call, make)[0]


@cache
def _plan(what: str) -> Plan:
    """Return the plan of one operation, which tests a request of the MPI library's."""
    row = np.zeros((1, NCOLUMNS), np.int64)
    row[0, 0] = Code.WAIT
    program = Program(row, np.zeros((0, 2), np.int64), np.array([[0, 1, 0]], np.int64), 1, 0, 0, 0, 0)
    account = Account()
    binding = Binding(0, np.zeros(1, np.int64), account.sums)
    policy = wait_policy(1, os.cpu_count() or 1)
    return Plan(what, "", account, lambda call, on: HostEngine(program, library(), policy, binding))
