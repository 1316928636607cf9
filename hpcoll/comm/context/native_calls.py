"""Blocking calls that the MPI library serves, by mpi4py's own methods: noted while they run, for ranks that wait in hpcoll."""

from time import perf_counter_ns
from typing import Any, NoReturn

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.methods import METHODS, NUMBERS, Method
from hpcoll.comm.arguments.native import as_native
from hpcoll.comm.planning.planner import refusal
from hpcoll.comm.plans.plan import Prepared
from hpcoll.comm.plans.segmentation import ledger_nbytes
from hpcoll.comm.team.resources import CommunicatorCalls
from hpcoll.runtime.transports.mpi import Revoked, tells_of_failure


def run(context: CommunicatorCalls, method: str, prepared: Prepared) -> tuple[Any, ...]:
    """Let the library serve a call, and return the arguments that it got."""
    arguments = arguments_of(context, METHODS[method], prepared)
    prepared.plan.account.note(ledger_nbytes(prepared.call, context.nranks), call(context, method, arguments))
    if prepared.after_native is not None:
        with context.failure_scope(method):
            prepared.after_native()
    return arguments


def call(context: CommunicatorCalls, method: str, arguments: tuple[Any, ...]) -> int:
    """Call mpi4py's method, and return the nanoseconds that it took.

    Raises:
        mpi4py.MPI.Exception: it failed. PeerFailed, Revoked: because a rank has, or because the communicator is revoked.
    """
    log, begun = context.resources.log, perf_counter_ns()
    log.begin_library(NUMBERS[method])
    try:
        getattr(context.resources.native, method)(*arguments)
    except MPI.Exception as error:
        failed(context, method, error)
    finally:
        log.end_library()
    return perf_counter_ns() - begun


def failed(context: CommunicatorCalls, method: str, error: MPI.Exception) -> NoReturn:
    """Raise the error of a call; where the library knows of a rank that has failed, all others get to know."""
    on = context.resources
    if tells_of_failure(error, on.native):
        on.native.Revoke()  # others may wait in it
        context.interrupted(method, on.peer_failed(error))
    if on.revoked:
        context.interrupted(method, Revoked(on.revoked))
    raise error


def arguments_of(context: CommunicatorCalls, row: Method, prepared: Prepared) -> tuple[Any, ...]:
    """Return the arguments for the library's own method.

    Raises:
        ArgumentError: it does not have the operator.
    """
    found = prepared.call
    try:
        return as_native(prepared.arguments, row.in_place_at if found is not None and found.aliased else None)
    except ArgumentError as error:
        raise refusal(context.rank, found or row.name, error) from None
