"""Calls that return before they have ended: non-blocking ones, and persistent requests."""

from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.attach import WithContext, has_context
from hpcoll.comm.calls.buffers import resolve
from hpcoll.comm.calls.call import is_in_place
from hpcoll.comm.calls.methods import METHODS, Caller
from hpcoll.comm.calls.native import as_native
from hpcoll.comm.context import Context
from hpcoll.comm.prepared import Asked
from hpcoll.comm.progress_thread import can_be_helped, collect, lasting
from hpcoll.comm.requests import Persistent, start
from hpcoll.comm.resources import IN_FLIGHT
from hpcoll.selection.config import NATIVE


def issue(comm: WithContext, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, stream: Any) -> MPI.Request:
    """Start a non-blocking call; errors as in `Context.run`, those of the transport when the request is waited for."""
    if algorithm is None and not has_context(comm):
        request = _without_context(comm, method, arguments)
        if request is not None:
            return request
    context: Context = comm._context
    context.check()
    collect()
    arguments = lasting(arguments)
    moves = can_be_helped() or algorithm is not None
    if method in ("Gatherv", "Scatterv"):  # others would have to ask the root for sizes first, and wait
        algorithm = algorithm or "direct"
        if algorithm not in ("direct", NATIVE):
            raise ArgumentError(f"rank {context.rank}: I{method.lower()} takes algorithm 'direct' or 'native', got {algorithm!r}")
    with context.closing(method):
        prepared = context.prepare(method, arguments, Asked(algorithm, segment, stream, in_flight=True))
    call, plan = prepared.call, prepared.plan
    if call is None or plan is None or plan.algorithm == NATIVE or not (moves or call.strict or not call.native):
        # the library's own requests move whenever it is called, by whatever method
        theirs = context.natively(METHODS[method], prepared._replace(arguments=arguments))
        return getattr(context.resources.native, f"I{method.lower()}")(*theirs)
    context.issued += 1
    with context.closing(plan.named(call.count)):
        return start(context, prepared.carrier.message_contexts[1 + context.issued % IN_FLIGHT], plan, call)


def _without_context(comm: WithContext, method: str, arguments: tuple[Any, ...]) -> MPI.Request | None:
    """The library's own request: making a context waits for all ranks, which a call in flight must not. None: only hpcoll can serve it."""
    row, native = METHODS[method], MPI.Intracomm(comm)
    if native == MPI.COMM_NULL or (method == "Reduce_scatter" and arguments[2] is None):  # describing it asks the others
        return None
    call = row.describe(Caller(native, native.rank, native.size, np.zeros(1, np.uint8)), *arguments)
    if call is not None and (call.strict or not call.native):
        return None
    theirs = as_native(lasting(arguments), row.in_place_at if call is not None and call.aliased else None)
    request: MPI.Request = getattr(native, f"I{method.lower()}")(*theirs)
    return request


def make_persistent(
    context: Context, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, stream: Any
) -> MPI.Prequest:  # fmt: skip
    """Plan a persistent call; collective, errors as in `Context.run`."""
    context.check()
    arguments = _counted(context, method, lasting(arguments))
    with context.closing(method):
        prepared = context.prepare(method, arguments, Asked(algorithm, segment, stream, in_flight=True))
    call, plan = prepared.call, prepared.plan
    if call is None or plan is None or plan.algorithm == NATIVE:
        theirs = context.natively(METHODS[method], prepared._replace(arguments=arguments))
        return getattr(context.resources.native, f"{method}_init")(*theirs)
    request, message_context = Persistent(), prepared.carrier.message_context()
    with context.closing(plan.named(call.count)):
        give_back = partial(prepared.carrier.give_back, message_context)
        request._bind(context, plan, message_context, call, None if call.as_given else prepared.describe, give_back)
    return request


def _counted(context: Context, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with the counts that a Reduce_scatter may leave out, so that describing it again asks no other rank; collective."""
    if method != "Reduce_scatter" or arguments[2] is not None or is_in_place(arguments[0]):
        return arguments
    own = resolve(arguments[1], name="recvbuf", rank=context.rank, writable=True)
    return *arguments[:2], None if own is None else context.resources.comm.allgather(own.count), arguments[3]
