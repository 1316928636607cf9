"""Calls that return before they have ended: non-blocking ones, and persistent requests."""

from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.attach import WithContext, has_context
from hpcoll.comm.calls.buffers import resolve
from hpcoll.comm.calls.call import Call, is_in_place
from hpcoll.comm.calls.methods import METHODS, Caller, Method
from hpcoll.comm.calls.native import as_native
from hpcoll.comm.context import Context
from hpcoll.comm.entries import enter
from hpcoll.comm.prepared import Asked
from hpcoll.comm.progress_thread import can_be_helped, collect, lasting
from hpcoll.comm.requests import SHORT_NBYTES, Persistent, Request, go_on, is_short, start
from hpcoll.comm.resources import IN_FLIGHT
from hpcoll.runtime.engine.call_cache import Key, Served
from hpcoll.runtime.engine.entry import CACHED, call_compiled
from hpcoll.runtime.program.call_fields import MISS
from hpcoll.runtime.program.fields import DONE
from hpcoll.selection.config import NATIVE


def issue(comm: WithContext, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, stream: Any) -> MPI.Request:
    """Start a non-blocking call; errors as in `Context.run`, those of the transport when the request is waited for.

    One like an earlier one, short and of host arrays, makes its first turns in compiled code at once, if nothing is before it.
    """
    request = None
    if algorithm is None and not has_context(comm):
        request = _without_context(comm, method, arguments)
    elif method in _QUICK:
        request = _like_an_earlier_one(comm._context, method, arguments, algorithm, segment)
    if request is not None:
        return request
    context: Context = comm._context
    context.check()
    collect()
    arguments = lasting(METHODS[method].meant(arguments, context.rank))
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
    which = 1 + context.issued % IN_FLIGHT
    with context.closing(plan.named(call.count)):
        request, engine = start(context, prepared.carrier.message_contexts[which], plan, call)
    if method in _QUICK and call.as_given and plan.kept and call.finish is None and is_short(call):
        row = METHODS[method]
        buffers, key = row.slots(arguments, context.rank), _key(row, arguments, algorithm, segment, which)
        if not call.aliased or buffers[0] is MPI.IN_PLACE:
            served = Served(engine, plan)
            enter(context.planner, context.started.table(key), method, arguments, buffers, call, served, SHORT_NBYTES)
    return request


def _key(row: Method, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, which: int) -> Key:
    return row.name, arguments[-1] if row.arguments[-1] == "root" else 0, algorithm, segment, which


def _like_an_earlier_one(
    context: Context, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any
) -> MPI.Request | None:  # fmt: skip
    """The request of a call that the call cache knows, None for any other. It has ended, or is under way."""
    which = 1 + (context.issued + 1) % IN_FLIGHT
    message_context = context.resources.message_contexts[which]
    if message_context.issued != message_context.ended[0]:
        return None
    row = METHODS[method]
    key = _key(row, arguments, algorithm, segment, which)
    send, recv = row.slots(arguments, context.rank)
    op = id(arguments[2]) if row.arguments[2:3] == ("op",) else 0
    status = call_compiled(CACHED, context.started[key], id(send), id(recv), op)
    if status == MISS:
        return None
    context.issued += 1
    if status == DONE:
        request = Request(MPI.Grequest.Start(None, None, None))
        request.Complete()
        return request
    served = context.started.table(key).latest
    served.plan.claim(message_context, served.by)
    call = Call(row.collective, 0, 0, served.by.elements, _BYTE, keep=arguments)
    return go_on(context, message_context, served.plan, call, served.by, status)


def _without_context(comm: WithContext, method: str, arguments: tuple[Any, ...]) -> MPI.Request | None:
    """The library's own request: making a context waits for all ranks, which a call in flight must not. None: only hpcoll can serve it."""
    row, native = METHODS[method], MPI.Intracomm(comm)
    if native == MPI.COMM_NULL or (method == "Reduce_scatter" and arguments[2] is None):  # describing it asks the others
        return None
    arguments = row.meant(arguments, native.rank)
    call = row.describe(Caller(native, native.rank, native.size, np.zeros(1, np.uint8)), *arguments)
    if call is not None and (call.strict or not call.native):
        return None
    theirs = as_native(lasting(arguments), row.in_place_at if call is not None and call.aliased else None)
    request: MPI.Request = getattr(native, f"I{method.lower()}")(*theirs)
    return request


# Methods whose calls in flight are looked for in the call cache.
_QUICK = frozenset(("Allreduce", "Bcast", "Reduce", "Allgather", "Alltoall", "Gather", "Scatter", "Reduce_scatter_block", "Scan", "Exscan"))
_BYTE = np.dtype(np.uint8)


def make_persistent(
    context: Context, method: str, arguments: tuple[Any, ...], algorithm: str | None, segment: Any, stream: Any
) -> MPI.Prequest:  # fmt: skip
    """Plan a persistent call; collective, errors as in `Context.run`."""
    context.check()
    arguments = _counted(context, method, lasting(METHODS[method].meant(arguments, context.rank)))
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
