"""The context of one MPI communicator, and its blocking calls; `hpcoll.comm.context.start` has the others.

A context is made of parts: resources (message contexts, what its team knows), a planner, a call cache, the ledger, and for
calls on GPU arrays, once there are any, a GPU part. It hangs on the communicator as an attribute, so that every
`hpcoll.Communicator` over the same MPI communicator shares it and it dies with it.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.analysis.cost import NEVER
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.methods import FOUND_BY, METHODS
from hpcoll.comm.context import cache_entries, native_calls
from hpcoll.comm.planning.planner import Planner
from hpcoll.comm.plans.ledger import Ledger
from hpcoll.comm.plans.plan import Plan, Prepared
from hpcoll.comm.requests.call_hooks import HOOKS, BeginningCall, other_thread
from hpcoll.comm.requests.operation import abandon
from hpcoll.comm.status.call_site import left_alone
from hpcoll.comm.team.resources import CommunicatorCalls, Resources
from hpcoll.comm.team.team import IN_FLIGHT
from hpcoll.runtime.engine import call_cache
from hpcoll.runtime.engine.call_cache import MpiCall
from hpcoll.runtime.engine.entry import call_compiled, run_cached
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program.call_fields import MISS
from hpcoll.runtime.program.call_fields import NATIVE as NO_CALL
from hpcoll.runtime.program.copy_fields import NOT_STORED
from hpcoll.runtime.program.fields import BUSY, DONE, NOTED
from hpcoll.runtime.transports.mpi import has_persistent_collectives
from hpcoll.selection.config import EVERY_CALL, NATIVE

if TYPE_CHECKING:
    from hpcoll.comm.gpu.calls import GpuCalls

# as `hpcoll.comm.plans.plan.MessageContext.tickets`: what must wait is found and not started
_BUSY = np.array([0, 1], np.int64)


class CallCaches:
    """The call caches of a communicator.

    Args:
        rank: Rank of this process.
        nblocks: Most blocks of a buffer.
        tickets: Addresses of the tickets of each message context for calls in flight.

    Attributes:
        blocking: Of blocking calls.
        on_host: Of calls on the host copies of GPU arrays: of blocking ones, and behind them as ``started``.
        started: Of calls in flight, one for each of their message contexts.
        planned: Of persistent requests.
    """

    def __init__(self, rank: int, nblocks: int, tickets: Sequence[int]) -> None:
        self.nblocks = nblocks
        self.blocking = call_cache.CallCache(rank, nblocks, methods=METHODS)
        self.on_host = [call_cache.CallCache(rank, nblocks, one) for one in (0, *tickets)]
        self.started = [call_cache.CallCache(rank, nblocks, one) for one in tickets]
        self.planned = call_cache.CallCache(rank, nblocks, _BUSY.ctypes.data)
        self.every = (self.blocking, *self.on_host, *self.started, self.planned)

    def forget(self) -> None:
        """Forget all calls."""
        for cache in self.every:
            cache.forget()

    def change_hands(self) -> None:
        """Serve another communicator of the same ranks; its neighbours may be others."""
        for cache in self.every:
            cache.change_hands(_has_neighbours)


def _has_neighbours(method: str) -> bool:
    return METHODS[method].neighbours


# of contexts that are closed, whose caches another may have
_NO_CALLS = CallCaches(0, 1, [_BUSY.ctypes.data] * IN_FLIGHT)


class Parts(NamedTuple):
    """The parts of the context of a communicator that was freed, for another communicator of the same ranks."""

    resources: Resources
    planner: Planner
    ledger: Ledger
    caches: CallCaches


class Context(CommunicatorCalls):
    """State of one communicator; used by one thread at a time.

    Args:
        resources: Resources on which its calls run.
        ledger: Ledger that counts them.
        parts: Parts that a freed communicator left with these resources, or None.

    Attributes:
        tables: Call cache of blocking calls; ``plain`` and ``ordered`` are parts of it, at hand for methods.
        on_host: Call caches of calls on the host copies of GPU arrays: of blocking ones, and behind them as ``started``.
        started: Call caches of calls in flight, one for each of their message contexts.
        planned: Call cache of persistent requests.
        issued: Number of calls in flight that were issued, alike on all ranks.
        starting: A thread starts a call in flight, or makes a persistent request.
        token: The byte that a barrier passes round.
        exchanges: Exchanges of cells that no call has (`hpcoll.comm.objects.exchange`), by method and root; a method alone: root 0.
    """

    def __init__(self, resources: Resources, ledger: Ledger, parts: Parts | None = None) -> None:
        super().__init__(resources)
        self.token = self.caller.token
        self.ledger = ledger
        self.exchanges: defaultdict[Any, list[Any]] = defaultdict(list)
        native = self.resources.native
        most = (
            max(self.nranks, native.indegree, native.outdegree)
            if isinstance(native, MPI.Topocomm)
            else self.nranks
        )
        if parts is None or parts.caches.nblocks != most:
            tickets = [one.tickets.ctypes.data for one in resources.message_contexts[1:]]
            caches = CallCaches(self.rank, most, tickets)
        else:
            caches = parts.caches
            caches.change_hands()
        self._use(caches)
        self.planner = Planner(self.resources, self.ledger, self._forget) if parts is None else parts.planner
        if parts is not None:
            ledger.take_over(parts.ledger)
            self.planner.serve(ledger, self._forget)
        ledger.watch(lambda: [one.log for one in self.resources.every_message_context()])
        self.resources.service_collectives.serve(self)
        self.issued, self.starting = 0, False

    def _use(self, caches: CallCaches) -> None:
        self._caches = caches
        self.tables, self.on_host = caches.blocking, caches.on_host
        self.started, self.planned = caches.started, caches.planned
        self.plain, self.ordered = self.tables.plain, self.tables.ordered

    @cached_property
    def gpu(self) -> "GpuCalls":
        """The part for calls on GPU arrays; imported when there are any."""
        from hpcoll.comm.gpu.calls import GpuCalls

        return GpuCalls(self.resources, self.planner)

    def free(self) -> Parts | None:
        """End it, with nothing in flight, and return the parts that another communicator of the same ranks can use.

        It can once all ranks have called this.
        """
        parts = self.parts
        self._use(_NO_CALLS)
        self.close("the communicator was freed")
        if self.__dict__.pop("gpu", None) is None:
            return parts
        free(parts)
        return None

    @property
    def parts(self) -> Parts:
        """The parts of this context."""
        return Parts(self.resources, self.planner, self.ledger, self._caches)

    def close(self, why: str) -> None:
        """Refuse further use."""
        super().close(why)
        self.ledger.watch(tuple)
        if self.resources.message_contexts:  # else it has been freed
            self.resources.service_collectives.abandon_comparisons()
        self._forget()
        for request in self.persistent.values():
            request.close()

    def _forget(self) -> None:
        """Drop the cached calls of plans that are dropped."""
        self._caches.forget()
        if "gpu" in self.__dict__:
            self.gpu.forget()
        for unused in self.exchanges.values():
            unused.clear()

    def run(
        self,
        status: int,
        key: call_cache.Key,
        arguments: tuple[Any, ...],
        *buffers: Any,
        stream: Any = None,
        limit_s: float | None = None,
    ) -> None:
        """Run a call, or end one that was begun.

        Args:
            status: Answer of `hpcoll.runtime.engine.compiled.call_lookup.run_cached`, not `DONE`.
            key: Method, root where it tells one call from another, ``algorithm``, ``segment`` and ``order``.
            arguments: The caller's positional arguments.
            buffers: Buffers by which `run_cached` finds the call.
            stream: The caller's ``stream=``.
            limit_s: Seconds that the caller's ``timeout=`` gives.

        Raises:
            ArgumentError: the arguments or keywords are wrong, or another thread is inside this communicator.
            KernelError: the operator does not compile.
            TransportError, DeviceError: the MPI library or the GPU failed; the communicator cannot be used any more.
            mpi4py.MPI.Exception: the MPI library's own collective failed.
        """
        table = self.tables.table(key) if buffers else None
        method, root, algorithm, segment, order = call_cache.whole(key)
        if status == MISS and "gpu" in self.__dict__ and self._run_repeated(key, arguments, stream, limit_s):
            return
        if status == MISS:
            given, arguments = arguments, METHODS[method].meant(arguments, self.rank)
            if table is not None and arguments is not given:  # it may be known by what it means
                *buffers, op, _ = FOUND_BY[method](arguments, self.caller)  # type: ignore[assignment]
                status = run_cached(table.address, *buffers, op)
                if status in (DONE, NOTED):
                    HOOKS.noted(self, True)
                    return
        if status == NO_CALL and table is not None:
            table.latest.plan.account.note(table.nbytes, native_calls.call(self, method, arguments))
            return
        if status == BUSY:
            if left_alone(self) and self.resources.lock[0]:  # still
                self.break_off(f"a call before {method}")
                self.check()
            raise other_thread(self.rank)
        if status == MISS:
            limit_s = self.limit_s if limit_s is None else limit_s
            asked = BeginningCall(
                method, arguments, "blocking", 0, root, limit_s, order, algorithm, segment, stream
            )
            self._run_prepared(key, asked, table, *buffers)
            return
        assert table is not None
        if isinstance(table.latest.by, MpiCall):
            native_calls.failed(self, method, MPI.Exception(table.latest.by.error))
        self._go_on_cached(table, status, limit_s, arguments)

    def _go_on_cached(
        self, table: call_cache.CallTable, status: int, limit_s: float | None, arguments: tuple[Any, ...]
    ) -> None:
        """Run the call that a table found to its end, if it has not come there."""
        if status not in (DONE, NOTED):
            served, arguments = table.latest, (*arguments, *table.take_kept(), table.latest.maps)
            self.go_on(served.plan, served.by, status, limit_s, arguments)
        HOOKS.noted(self, True)

    def _run_repeated(
        self, key: call_cache.Key, arguments: tuple[Any, ...], stream: Any, limit_s: float | None
    ) -> bool:
        """Run a call on GPU arrays, if it is like an earlier one; say so."""
        seen = self.gpu.look(call_cache.whole(key)[0], arguments, stream)
        if seen is None:
            return False
        by_kernel = self.gpu.one_shot(key, seen)
        if by_kernel is not None:
            status = call_compiled(*by_kernel.started(seen))
            if status in (MISS, BUSY):
                return False
            if status not in (DONE, NOTED):
                self.go_on(by_kernel.plan, by_kernel.engine, status, limit_s, arguments)
            if status != DONE:
                HOOKS.noted(self, True)
            return True
        short = self.gpu.may_copy(seen)
        if not short or self.resources.config.cuda_path is not None:
            prepared = self.gpu.known(key, seen)
            if prepared is not None:
                self._run_engine(key, arguments, prepared, limit_s)
            if prepared is not None or not short:
                return prepared is not None
        table = self.on_host[0].table(key)
        copies = self.gpu.take_copies(seen, table)
        if copies is None:
            return False
        status = copies.run(seen)
        found = status not in (MISS, BUSY, NO_CALL)
        if found and status != DONE:
            if status != NOT_STORED:
                self._go_on_cached(table, status, limit_s, (*arguments, *copies.arguments))
            if status != NOTED:
                with self.failure_scope(seen.method):
                    copies.store()
        self.gpu.give_copies(seen, table, copies)
        return found

    def prepare(self, asked: BeginningCall) -> Prepared:
        """Describe a call and find how it runs.

        Raises:
            ArgumentError: the arguments are wrong or the forced algorithm cannot serve them.
            DeviceError: the GPU failed.
        """
        method, arguments, form, *_ = asked
        row = METHODS[method]
        arrays = row.gpu_arrays(arguments, self.rank)
        if arrays:
            return self.gpu.prepare(row, arguments, arrays, asked)
        describe = partial(self.planner.describe, row, arguments, asked)
        call = describe()
        # the library's request cannot serve them, or there is none
        others_have_gpus = asked.in_flight and self.resources.mixed and self.resources.has_gpus
        if call is not None and (
            others_have_gpus or (form == "persistent" and not has_persistent_collectives())
        ):
            call = call._replace(native=False)
        plan = self.planner.plan(
            call, method, arguments, asked.algorithm, asked.segment, waits=not asked.in_flight
        )
        return Prepared(call, plan, arguments, describe, self.resources)

    def _run_prepared(
        self,
        key: call_cache.Key,
        asked: BeginningCall,
        table: call_cache.CallTable | None,
        *buffers: Any,
    ) -> None:
        method, arguments, *_ = asked
        self.check(asked)
        with self.failure_scope(method):
            prepared = self.prepare(asked)
        call, plan = prepared.call, prepared.plan
        if call is None or plan.algorithm == NATIVE:
            theirs = native_calls.run(self, method, prepared)
            if (
                table is not None
                and self.resources.config.check != EVERY_CALL
                and all(map(is_, theirs, arguments))
            ):
                cache_entries.enter_native(self.planner, table, method, arguments, buffers, prepared)
            return
        engine = self._run_engine(key, arguments, prepared, asked.limit_s)
        if table is None or self.resources.config.check == EVERY_CALL:
            return
        most_nbytes = NEVER
        if "gpu" in self.__dict__:
            self.gpu.note(key, method, arguments, asked.stream, prepared, engine)
            if prepared.on_host is not None:  # it is found by the copies of its arrays
                call, arguments, table, most_nbytes = (
                    prepared.on_host,
                    prepared.arguments,
                    self.on_host[0].table(key),
                    self.gpu.short_nbytes,
                )
                buffers = FOUND_BY[method](arguments, self.caller)[:2]
        if cache_entries.may_enter(table, call, plan, buffers[0]):
            cache_entries.enter(
                self.planner,
                table,
                method,
                arguments,
                buffers,
                call,
                call_cache.CachedCall(engine, plan),
                most_nbytes,
            )

    def _run_engine(
        self, key: call_cache.Key, arguments: tuple[Any, ...], prepared: Prepared, limit_s: float | None
    ) -> HostEngine:
        """Run a call by its plan's engine."""
        call, plan = prepared.call, prepared.plan
        assert call is not None
        with self.failure_scope(plan.title, call.count):
            engine, status = plan.run(prepared.context_pool.begin(), call)
        if status == BUSY:
            self.run(status, key, arguments)
        if status or call.finish is not None:
            self.go_on(plan, engine, status, limit_s, arguments, call)
        prepared.context_pool.end()
        HOOKS.noted(self, True)
        return engine

    def go_on(
        self,
        plan: Plan,
        engine: HostEngine,
        status: int,
        limit_s: float | None,
        arguments: tuple[Any, ...],
        call: Call | None = None,
    ) -> None:
        """Run a call to its end that has not ended at once; ``arguments`` are the caller's, which it may let go of when this fails."""
        try:
            if status:
                self.run_to_end(engine, status, limit_s)
            if call is not None and call.finish is not None:
                call.finish()
        except BaseException as error:
            try:
                self.interrupted(plan.named(engine.elements), error)
            finally:
                abandon(engine, call, arguments)
            raise

    def break_off(self, what: str) -> None:
        """Close the communicator, as `interrupted`: a signal's handler has left a blocking call before Python could see how far it was."""
        try:
            self.interrupted(what, InterruptedError("a signal's handler raised an exception in it"))
        finally:
            for engine in self.planner.engines() + self.resources.service_collectives.made():
                abandon(engine, None)


def free(parts: Parts) -> None:
    """Free all plans, and the memory that only they need."""
    parts.planner.forget()
    parts.resources.free()
