"""Calls that return before they have ended: non-blocking ones, and persistent requests."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.call import Call, Time, limit_of, order_of
from hpcoll.comm.arguments.datatypes import retain_datatypes
from hpcoll.comm.arguments.methods import FOUND_BY, METHODS, Caller
from hpcoll.comm.arguments.native import as_native, only_native
from hpcoll.comm.arguments.neighbours import plain
from hpcoll.comm.arguments.reductions import every_count
from hpcoll.comm.context.attach import WithContext, existing_context
from hpcoll.comm.context.cache_entries import enter, enter_native, may_enter
from hpcoll.comm.context.context import Context
from hpcoll.comm.context.native_calls import arguments_of
from hpcoll.comm.plans.plan import MessageContext, Prepared
from hpcoll.comm.plans.segmentation import ledger_nbytes
from hpcoll.comm.requests.call_hooks import HOOKS, BeginningCall, other_thread
from hpcoll.comm.requests.operation import collect, hurry
from hpcoll.comm.requests.pending import PendingStarts, defer
from hpcoll.comm.requests.persistent_request import LibraryPersistentRequest, PersistentRequest, TaggedRequest
from hpcoll.comm.requests.progress_thread import can_be_helped
from hpcoll.comm.requests.request import Make, Request, begin, is_eager, launch, start
from hpcoll.comm.status.regions import Region, regions
from hpcoll.comm.team.team import IN_FLIGHT
from hpcoll.runtime.engine.call_cache import CachedCall, CallTable, Key, whole
from hpcoll.runtime.engine.entry import run_cached
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program.call_fields import MISS
from hpcoll.runtime.program.call_fields import NATIVE as NO_CALL
from hpcoll.runtime.program.copy_fields import NOT_STORED
from hpcoll.runtime.program.fields import BUSY, DONE
from hpcoll.runtime.telemetry.call_log import EVERY
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.config import NATIVE, name_of, read_config


def issue(
    comm: WithContext,
    method: str,
    arguments: tuple[Any, ...],
    algorithm: str | Algorithm | None = None,
    segment: Any = None,
    stream: Any = None,
    timeout: Time = None,
    tag: str | None = None,
    order: str | None = None,
) -> MPI.Request:
    """Start a non-blocking call; errors as in `Context.run`, those of the transport when the request is waited for.

    One like an earlier one, short and of host arrays, makes its first turns in compiled code at once, if nothing is before it.
    """
    if tag is not None:
        with regions[tag]:
            return issue(comm, method, arguments, algorithm, segment, stream, timeout, None, order)
    context = comm.__dict__.get("_context")
    limit_s = None if timeout is None else limit_of(timeout, (comm if context is None else context).rank)
    order = None if order is None else order_of(order, (comm if context is None else context).rank)
    if context is None:
        asked = BeginningCall(
            method, arguments, "in flight", 0, None, limit_s, order, algorithm, segment, stream
        )
        if existing_context(comm) is None and (request := _first(comm, asked)) is not None:
            return request
        context = comm._context
    if context.starting:
        raise other_thread(context.rank)
    context.starting = True  # no thread runs between these two
    try:
        send, recv, op, root = FOUND_BY[method](arguments, context.caller)
        key = (
            method
            if root == 0 and algorithm is None and segment is None and order is None
            else (method, root, algorithm, segment, order)
        )
        status = run_cached(context.started[context.issued % IN_FLIGHT][key], send, recv, op)
        if status == DONE:
            context.issued = issued = context.issued + 1
            if not issued % EVERY:
                _tell(context)
            return _to_self(None, _NOBODY)  # a request that is complete
        return _go_on(context, method, arguments, key, status, (limit_s, order, algorithm, segment, stream))
    finally:
        context.starting = False


def _issued(context: Context) -> None:
    """Count a call in flight that was issued, and tell the other ranks of the last ones now and then."""
    context.issued += 1
    if not context.issued % EVERY:
        _tell(context)


def _tell(context: Context) -> None:
    HOOKS.issued(context, context.issued % IN_FLIGHT)
    context.issued += 1  # an observer may have issued one


def _go_on(
    context: Context,
    method: str,
    arguments: tuple[Any, ...],
    key: Key,
    status: int | None,
    asked: tuple[Any, ...],
    make: Make | None = None,
) -> MPI.Request:
    """Return the request of a call that did not end in its first turns, or had none.

    Args:
        context: Context of the communicator.
        method: mpi4py's name of the blocking method.
        arguments: Positional arguments of the program.
        key: Key of the call in the call cache.
        status: Answer of `hpcoll.runtime.engine.compiled.call_lookup.run_cached`.
        asked: Last fields of `BeginningCall`.
        make: Makes the request, unless the call ends at once; None: whoever serves it does.
    """
    if status == MISS and "gpu" in context.__dict__:
        request = _on_copies(context, method, arguments, key, asked, make)
        if request is not None:
            return request
    turn, meant = (
        context.issued % IN_FLIGHT,
        METHODS[method].meant(arguments, context.rank) if status == MISS else arguments,
    )
    table = context.started[turn].table(key)
    late = status == BUSY and hurry(
        context.resources.message_contexts[1 + turn], context.resources.wait_policy
    )
    if late or meant is not arguments:  # it may be known by what it means
        arguments = meant
        send, recv, op, _ = FOUND_BY[method](arguments, context.caller)
        table.take_kept()  # by the attempt before
        status = run_cached(table.address, send, recv, op)
        if status == DONE:
            _issued(context)
            return _to_self(None, _NOBODY)
    if status == NO_CALL and make is None:
        context.resources.counts_in_flight = False
        table.latest.plan.account.note(table.nbytes)
        return _IN_MPI[method](context.resources.native, *arguments)
    request = (
        None
        if status in (MISS, NO_CALL)
        else _under_way(context, table, method, status, arguments, asked[0], make or Request.of)
    )
    call = BeginningCall(method, arguments, "in flight", turn, None, *asked)
    return request or _prepared(context, call, make)


def _in_flight(key: Key) -> Key:
    """Return a key under which longer calls on GPU arrays are known: their plans may be others than those of blocking calls."""
    method, *rest = whole(key)
    return f"I{method.lower()}", *rest


def _on_copies(
    context: Context,
    method: str,
    arguments: tuple[Any, ...],
    key: Key,
    asked: tuple[Any, ...],
    make: Make | None,
) -> MPI.Request | None:
    """Return the request of a call on GPU arrays, if it is like an earlier one; arguments as of `_go_on`."""
    seen = context.gpu.look(method, arguments, asked[-1])
    if seen is None:
        return None
    turn = context.issued % IN_FLIGHT
    if not context.gpu.may_copy(seen) or context.gpu.one_shot(_in_flight(key), seen):
        prepared = context.gpu.known(_in_flight(key), seen)
        if prepared is None or prepared.call is None:
            return None
        with context.failure_scope(prepared.plan.title, prepared.call.count):
            pool = prepared.context_pool.in_flight(turn)
            request, _ = start(context, pool, prepared.plan, prepared.call, make or Request.of, asked[0])
        _issued(context)
        return request
    table = context.on_host[1 + turn].table(key)
    copies = context.gpu.take_copies(seen, table)
    if copies is None:
        return None
    status, give = copies.run(seen), partial(context.gpu.give_copies, seen, table, copies)
    if status == DONE:
        give()
        _issued(context)
        return _to_self(None, _NOBODY)
    if status in (MISS, NO_CALL):
        give()
        return None

    def finish() -> None:
        """Bring the result to the GPU."""
        copies.store()
        give()

    theirs = *arguments, *copies.arguments
    return _under_way(context, table, method, status, theirs, asked[0], make or Request.of, finish)


def _under_way(
    context: Context,
    table: CallTable,
    method: str,
    status: int | None,
    arguments: tuple[Any, ...],
    limit_s: float | None,
    make: Make,
    finish: Callable[[], None] | None = None,
) -> MPI.Request | None:
    """Return the request of a call like an earlier one that has not ended at once; None where it must wait, and no engine is free.

    ``finish`` remains to be done when it has ended.
    """
    message_context = context.resources.message_contexts[1 + context.issued % IN_FLIGHT]
    plan, engine, maps = table.latest.plan, table.latest.by, table.latest.maps
    (source, target, counts), kept = table.waiting, table.take_kept()
    if status == BUSY:
        with context.failure_scope(method):
            engine = plan.take_made(message_context, counts, maps)
        if engine is None:
            return None
        first = partial(begin, message_context, engine, source, target)
    else:
        plan.claim(message_context, engine)
        first = partial(int, DONE if status == NOT_STORED else status)
    call = Call(
        "", source, target, engine.elements, _BYTE, finish=finish, keep=(*arguments, *kept), maps=maps
    )
    request = launch(context, message_context, plan, call, engine, first, make, limit_s, begun=status != BUSY)
    _issued(context)
    return request


def _prepared(context: Context, asked: BeginningCall, make: Make | None = None) -> MPI.Request:
    """Return the request of a call after describing and planning it; ``make`` makes the request, whoever serves the call."""
    collect()
    method, given, *_ = asked
    row, algorithm, turn = METHODS[method], asked.algorithm, context.issued % IN_FLIGHT
    meant = row.meant(given, context.rank)
    arguments = retain_datatypes(meant)
    asked = BeginningCall(method, arguments, "in flight", turn, *asked[4:])
    context.check(asked)
    if method in ("Gatherv", "Scatterv"):  # others would have to ask the root for sizes first, and wait
        algorithm = name_of(algorithm, row.collective) or "direct"
        if algorithm not in ("direct", NATIVE):
            raise ArgumentError(
                f"rank {context.rank}: I{method.lower()} takes algorithm 'direct' or 'native', got {algorithm!r}"
            )
    with context.failure_scope(method):
        alike = algorithm is asked.algorithm
        prepared = context.prepare(asked if alike else asked._replace(algorithm=algorithm))
    call, plan = prepared.call, prepared.plan
    moves = can_be_helped() or asked.algorithm is not None
    if call is not None and plan.algorithm != NATIVE and not (moves or call.strict or not call.native):
        # the library's own requests move whenever it is called, by whatever method
        plan = context.planner.library(call.collective, str(call.element), "no MPI_THREAD_MULTIPLE")
    send, recv, _, root = FOUND_BY[method](meant, context.caller)
    table = context.started[turn].table((method, root, asked.algorithm, asked.segment, asked.order))
    if call is None or plan.algorithm == NATIVE:
        theirs = arguments_of(
            context,
            row,
            prepared if prepared.arguments is not arguments else prepared._replace(arguments=meant),
        )
        if all(map(operator.is_, theirs, given)):
            enter_native(context.planner, table, method, meant, (send, recv), prepared._replace(plan=plan))
        context.resources.counts_in_flight = False
        plan.account.note(ledger_nbytes(call, context.nranks))
        request = _IN_MPI[method](context.resources.native, *theirs)
        if make is None:
            return request
        from hpcoll.comm.requests.chained import chain

        return chain(context.rank, f"I{method.lower()}", request, make)
    with context.failure_scope(plan.title, call.count):
        request, engine = start(
            context, prepared.context_pool.in_flight(turn), plan, call, make or Request.of, asked.limit_s
        )
    _issued(context)
    if "gpu" in context.__dict__:
        key = method, root, asked.algorithm, asked.segment, asked.order
        context.gpu.note(_in_flight(key), method, given, asked.stream, prepared, engine)
    most_nbytes = engine.wait_policy.eager
    if prepared.on_host is not None:  # it is found by the copies of its arrays
        call, meant = prepared.on_host, prepared.arguments
        send, recv, *_ = FOUND_BY[method](meant, context.caller)
        table = context.on_host[1 + turn].table((method, root, asked.algorithm, asked.segment, asked.order))
        most_nbytes = min(most_nbytes, context.gpu.short_nbytes)
    if is_eager(call, engine) and may_enter(table, call, plan, send):
        enter(
            context.planner,
            table,
            method,
            meant,
            (send, recv),
            call,
            CachedCall(engine, plan),
            most_nbytes,
        )
    return request


def _first(comm: WithContext, asked: BeginningCall) -> MPI.Request | None:
    """Return the request of a call on a communicator that has no context yet; None where it has one by now.

    Only all ranks together can make a context, and no call in flight may wait for that. So a thread does meanwhile. Where the MPI library
    lets no thread call it, the library's own collective serves; None where that cannot.
    """
    method, given, *_ = asked
    row, native = METHODS[method], plain(comm)
    if native == MPI.COMM_NULL:
        return None
    arguments = row.meant(given, native.rank)
    if row.gpu_arrays(arguments, native.rank):
        return None
    # to describe it asks the others
    asks = row.neighbours or (method == "Reduce_scatter" and arguments[2] is None)
    call = (
        None
        if asks
        else row.describe(Caller(native, native.rank, native.size, np.zeros(1, np.uint8)), *arguments)
    )
    if can_be_helped():
        first = asked._replace(arguments=retain_datatypes(arguments))

        def begin_first(make: Make) -> None:
            """Begin it, by the call cache where that knows one like it."""
            context = existing_context(comm)
            assert context is not None
            send, recv, op, root = FOUND_BY[method](first.arguments, context.caller)
            key = method, root, asked.algorithm, asked.segment, asked.order
            status = run_cached(context.started[context.issued % IN_FLIGHT][key], send, recv, op)
            if status == DONE:
                _issued(context)
            else:
                _go_on(context, method, first.arguments, key, status, tuple(asked[5:10]), make)

        starts = vars(comm).setdefault("_starts", PendingStarts())
        return defer(starts, lambda: comm._context, f"I{method.lower()}", begin_first)
    ordered = "op" in row.arguments and (asked.order or read_config().order) is not None
    if (
        asks
        or ordered
        or asked.algorithm is not None
        or (call is not None and (call.strict or not call.native))
    ):
        return None
    theirs = as_native(arguments, row.in_place_at if call is not None and call.aliased else None)
    element, why = (
        only_native(row, arguments, native.rank)
        if call is None
        else (str(call.element), "in flight before a blocking call")
    )
    comm.ledger.library(row.collective, element, why, native.rank).note(ledger_nbytes(call, native.size))
    return _IN_MPI[method](native, *theirs)


_to_self, _NOBODY = MPI.COMM_SELF.Isend, MPI.PROC_NULL
_IN_MPI = {
    name: getattr(MPI.Topocomm if row.neighbours else MPI.Intracomm, f"I{name.lower()}")
    for name, row in METHODS.items()
}
_BYTE = np.dtype(np.uint8)


def make_persistent(
    context: Context,
    method: str,
    arguments: tuple[Any, ...],
    algorithm: str | Algorithm | None = None,
    segment: Any = None,
    stream: Any = None,
    timeout: Time = None,
    tag: str | None = None,
    order: str | None = None,
) -> MPI.Prequest:
    """Plan a persistent call; collective, errors as in `Context.run`. One like an earlier one is not described again."""
    if context.starting:
        raise other_thread(context.rank)
    context.starting = True
    try:
        order = None if order is None else order_of(order, context.rank)
        limit_s = None if timeout is None else limit_of(timeout, context.rank)
        meant = METHODS[method].meant(arguments, context.rank)
        asked = BeginningCall(
            method, meant, "persistent", 0, None, limit_s, order, algorithm, segment, stream
        )
        return _made_persistent(context, asked, None if tag is None else regions[tag])
    finally:
        context.starting = False


def _made_persistent(context: Context, asked: BeginningCall, region: Region | None) -> MPI.Prequest:
    method, arguments, *_ = asked
    context.check(asked)
    with context.failure_scope(f"{method}_init"):
        context.resources.agree()
    given = _counted(context, method, arguments)
    arguments = retain_datatypes(given)
    send, recv, op, root = FOUND_BY[method](arguments, context.caller)
    table = context.planned.table((method, root, asked.algorithm, asked.segment, asked.order))
    if run_cached(table.address, send, recv, op) == BUSY:
        prepared, message_context, engine = _planned_before(context, table, asked, arguments)
    else:
        with context.failure_scope(method):
            alike = arguments is asked.arguments
            prepared = context.prepare(asked if alike else asked._replace(arguments=arguments))
        call, plan = prepared.call, prepared.plan
        if call is None or plan.algorithm == NATIVE:
            theirs = arguments_of(context, METHODS[method], prepared._replace(arguments=given))
            HOOKS.begins(context, BeginningCall(method, root=root, planned=True))
            made = getattr(context.resources.native, f"{method}_init")(*theirs)
            return LibraryPersistentRequest.of(
                made, partial(plan.account.note, ledger_nbytes(call, context.nranks))
            )
        with context.failure_scope(plan.title, call.count):
            message_context = prepared.context_pool.message_context()
            engine = plan.take(message_context, call)
        if may_enter(table, call, plan, send):
            enter(
                context.planner,
                table,
                method,
                arguments,
                (send, recv),
                call,
                CachedCall(engine, (plan, call._replace(keep=()))),
            )
    request = PersistentRequest() if region is None else TaggedRequest.of(region)
    compared, call = context.resources.service_collectives, prepared.call
    assert call is not None
    with context.failure_scope(prepared.plan.title, call.count):
        at_once = call.exported is not None  # its message context goes with it
        compared.begin_comparison(message_context, engine, at_once=at_once)
        compare = partial(compared.end_comparison, message_context.index)
        one_shot = prepared.call is not None and prepared.call.one_shot
        starts = (
            context.gpu.starts(asked, prepared, engine) if one_shot or prepared.on_host is not None else None
        )
        captures = context.gpu.captures(asked, prepared, engine) if one_shot else None
        request._bind(context, prepared, message_context, engine, compare, asked.limit_s, starts, captures)
    return request


def _planned_before(
    context: Context, table: CallTable, asked: BeginningCall, arguments: tuple[Any, ...]
) -> tuple[Prepared, MessageContext, HostEngine]:
    """Return the parts of the request of a call that the table has found."""
    plan, call = table.latest.plan
    (source, target, counts), kept = table.waiting, table.take_kept()
    describe = partial(context.planner.describe, METHODS[asked.method], arguments, asked)
    message_context = context.resources.message_context()
    with context.failure_scope(plan.title, call.count):
        engine = plan.take_made(message_context, counts, call.maps)
        if engine is None:
            described = describe()
            assert described is not None
            engine = plan.take(message_context, described)
    call = call._replace(send=source, recv=target, count=engine.elements, keep=(*arguments, *kept))
    return Prepared(call, plan, arguments, describe, context.resources), message_context, engine


def _counted(context: Context, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with the counts that a Reduce_scatter may leave out; collective. Describing it again then asks no other rank."""
    if method != "Reduce_scatter" or arguments[2] is not None:
        return arguments
    with context.failure_scope("Reduce_scatter_init"):
        return (
            *arguments[:2],
            every_count(arguments[0], arguments[1], context.rank, context.caller.allgather),
            arguments[3],
        )
