"""The planner of one communicator: it chooses an algorithm for a call, and keeps the plans for kinds of calls."""

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from hpcoll.analysis.cost import NEVER
from hpcoll.base.dtypes import type_class
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import EXACT_SUM
from hpcoll.comm.arguments.buffer_specs import Element
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.methods import METHODS, Method
from hpcoll.comm.arguments.native import only_native
from hpcoll.comm.planning.admission import Admission
from hpcoll.comm.planning.exact_sums import as_digits, travels_as_it_is
from hpcoll.comm.planning.rank_order import gathered
from hpcoll.comm.plans.engine_builder import HostEngines
from hpcoll.comm.plans.ledger import Ledger, named
from hpcoll.comm.plans.plan import MessageContext, Plan
from hpcoll.comm.plans.segmentation import message_nbytes
from hpcoll.comm.plans.signature import PARTLY_KNOWN, Purpose
from hpcoll.comm.requests.call_hooks import BeginningCall
from hpcoll.comm.team.resources import Resources
from hpcoll.comm.team.service_collectives import BuildEngine, ServiceCollectives
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.schedules.catalogue import PACKAGE, find
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.choice import Choice, Need
from hpcoll.selection.choose import SizeRanges
from hpcoll.selection.config import HOST, NATIVE, log, name_of, positive_segment

_MAX_PLANS = 1024
_ORDERED = "order='rank'"  # for the log and the ledger


class Planner:
    """The planner of one communicator: plans by kind of call and choice.

    Args:
        resources: Resources of the communicator; an attribute, too.
        ledger: Ledger, which gets a line per operation, algorithm and element type.
        forgotten: Called when all plans have been dropped.
    """

    def __init__(self, resources: Resources, ledger: Ledger, forgotten: Callable[[], None]) -> None:
        self.resources, self._ledger, self._forgotten = resources, ledger, forgotten
        self._engines = HostEngines(
            resources.topology, resources.wait_policy, resources.lock, resources.capacity
        )
        resources.service_collectives = ServiceCollectives(
            resources.nranks, resources.message_contexts[0], self._engines.build
        )
        self._admission = Admission()
        self._ranges = SizeRanges(resources.config)
        self._plans: dict[
            tuple[Any, ...], Plan
        ] = {}  # by kind of call and cell of sizes, and by kind of call and choice

    def serve(self, ledger: Ledger, forgotten: Callable[[], None]) -> None:
        """Plan for another communicator of the same ranks, to whose ledger the accounts now belong."""
        self._ledger, self._forgotten = ledger, forgotten

    def describe(self, row: Method, arguments: tuple[Any, ...], asked: BeginningCall) -> Call | None:
        """Describe a call on host arrays; arguments and errors as of `hpcoll.comm.context.context.Context.prepare`."""
        call = row.describe(self.resources.caller, *arguments)
        if call is None and self._is_ordered(row, asked):
            if asked.algorithm is not None:
                what = "only the MPI library can combine this in rank order"
                raise ArgumentError(f"rank {self.resources.rank}: {what}, got algorithm={asked.algorithm!r}")
            call = gathered(self.resources.caller, row, arguments)
        if call is not None and call.one_fold:
            return self._exact(call, asked)
        return call and self.ordered(call, row, asked)

    def _exact(self, call: Call, asked: BeginningCall) -> Call:
        """Return an exact sum as it travels; no order changes it."""
        on = self.resources
        forced = name_of(asked.algorithm, call.collective) or on.config.algorithms.get(call.collective)
        if on.nranks == 1 or not call.count:
            return call._replace(one_fold=False)
        return call if travels_as_it_is(call.collective, forced) else as_digits(call, on.rank, on.nranks)

    def ordered(self, call: Call, row: Method, asked: BeginningCall) -> Call:
        """Return a call as it is to be planned: where its results must be the canonical expression, the MPI library cannot serve it."""
        exact = call.op is EXACT_SUM  # of integers, which no order changes
        return (
            call._replace(canonical=True, native=False)
            if self._is_ordered(row, asked) and not exact
            else call
        )

    def _is_ordered(self, row: Method, asked: BeginningCall) -> bool:
        return "op" in row.arguments and (asked.order or self.resources.config.order) is not None

    def plan(
        self,
        call: Call | None,
        method: str,
        arguments: tuple[Any, ...],
        algorithm: str | Algorithm | None,
        segment: Any,
        build: BuildEngine | None = None,
        *,
        waits: bool = True,
    ) -> Plan:
        """Find how a call runs.

        Args:
            call: The call, or None where only the MPI library understands it.
            method: mpi4py's name of the blocking method.
            arguments: Positional arguments of the program.
            algorithm: The caller's ``algorithm=``.
            segment: The caller's ``segment=``.
            build: Builds engines for a new plan; None: for arrays in host memory.
            waits: The call waits for the other ranks.

        Raises:
            ArgumentError: the forced algorithm cannot serve it, or is not the same on all ranks.
            ScheduleError: an algorithm that was registered is wrong.
        """
        if call is None:
            if algorithm not in (None, NATIVE):
                raise ArgumentError(
                    f"rank {self.resources.rank}: only the MPI library can serve this call, got algorithm={algorithm!r}"
                )
            row = METHODS[method]
            return self.library(row.collective, *only_native(row, arguments, self.resources.rank))
        try:
            algorithm, forced = (
                name_of(algorithm, call.collective),
                None if segment is None else positive_segment(segment),
            )
            kind = (*call.kind, method, algorithm, forced)
            key = (*kind, self.cell(call))
            known = self._plans.get(key)
            return known or self._new_plan(
                key, kind, call, algorithm, forced, build or self._engines.build, waits=waits
            )
        except ArgumentError as error:
            raise refusal(self.resources.rank, call, error) from None

    def library(self, operation: str, element: str, why: str) -> Plan:
        """Return the plan of calls that hpcoll leaves to the MPI library; arguments as of `hpcoll.comm.plans.ledger.LedgerRow`."""
        key = NATIVE, operation, element, why
        if key not in self._plans:
            account = self._ledger.library(operation, element, why, self.resources.rank)
            self._keep(key, Plan(operation, NATIVE, account, _no_engine))
        return self._plans[key]

    def cell(self, call: Call) -> tuple[int, int]:
        """Return the least and the most bytes of the messages that are served as this one."""
        nbytes = self.known_nbytes(call)
        return (0, NEVER) if nbytes is None else self._ranges.cell(nbytes)

    def _new_plan(
        self,
        key: tuple[Any, ...],
        kind: tuple[Any, ...],
        call: Call,
        algorithm: str | None,
        segment: int | None,
        build: BuildEngine,
        *,
        waits: bool,
    ) -> Plan:
        choice = self._choose(call, algorithm, segment)
        if choice.algorithm != NATIVE and (row := find(call.collective, choice.algorithm)).key not in PACKAGE:
            gather = self.resources.service_collectives.gather_number if waits else None
            self._admission.admit(row._replace(graph=call.graph), call, self._nodes(call), gather)
        sizes = self._all_sizes(call, choice)
        why = (
            (choice.brief or choice.why) if choice.algorithm == NATIVE else _ORDERED if call.canonical else ""
        )
        alike = (*kind, choice.algorithm, choice.segment, why)
        plan = None if sizes else self._plans.get(alike)
        if plan is None:
            account = self._ledger.account(
                call.objects or call.collective, choice.algorithm, _text_of(call.element), why
            )
            account.ways.update([HOST] if call.mirrored else [])
            elements = "objects" if call.objects else f"{{}} elements of {_text_of(call.dtype)}"
            title = f"{call.objects or call.collective}/{choice.algorithm} of {elements}"
            plan = Plan(title, choice.algorithm, account, partial(build, choice, sizes, account))
        plan.kept = not sizes  # the root's counts may change from call to call without this rank knowing
        if plan.kept:
            self._keep(key, plan)
            self._plans[alike] = plan
        return plan

    def _keep(self, key: tuple[Any, ...], plan: Plan) -> None:
        if len(self._plans) >= _MAX_PLANS:
            self.forget()
        self._plans[key] = plan

    def _choose(self, call: Call, algorithm: str | None, segment: int | None) -> Choice:
        on, known = self.resources, self.known_nbytes(call)
        need = Need(
            call.collective,
            on.nranks,
            None if known is None else self._ranges.cell(known)[0],
            call.op is not None and not call.op.commutative,
            call.blocks is not None,
            call.native,
            call.strict,
            type_class(call.dtype if call.op else None),
            on.one_node,
            self._nodes(call),
            on.levels,
            call.exported is not None,
            call.gpus,
            call.one_fold,
            call.graph,
            call.canonical and call.op is not None,
            on.config.registered,
        )
        found = self._ranges.find(need, algorithm, segment)
        choice = found.choice
        if on.rank == 0 and log.isEnabledFor(logging.INFO):
            sizes = "" if known is None else f", {found.least} to {found.most} bytes"
            cut = "" if choice.segment == NEVER else f", segments of {choice.segment} bytes"
            why = f"{choice.why}; {_ORDERED}" if call.canonical else choice.why
            log.info(
                "%s%s: %s%s (%s)", named(call.collective, call.element), sizes, choice.algorithm, cut, why
            )
        return choice

    def _nodes(self, call: Call) -> Nodes:
        """Return the placement of ranks as schedules see it."""
        return self.resources.topology.parts if call.exported is None else self.resources.topology.nodes

    def known_nbytes(self, call: Call) -> int | None:
        """Return the bytes of a message, or None where a rank cannot know them."""
        unknown = call.blocks is not None and call.collective in PARTLY_KNOWN
        return None if unknown else message_nbytes(call, self.resources.nranks)

    def _all_sizes(self, call: Call, choice: Choice) -> tuple[int, ...]:
        """Return the bytes of every rank's block, told by the root, where a schedule forwards blocks that only the root knows."""
        if (
            call.blocks is None
            or call.collective not in ("gather", "scatter")
            or choice.algorithm in ("direct", NATIVE)
        ):
            return ()
        sizes = np.zeros(self.resources.nranks, np.int64)
        if self.resources.rank == call.root:
            sizes[:] = call.blocks[2]
        what = f"{call.collective.capitalize()}v, for which rank {call.root} tells the sizes of blocks"
        self.resources.service_collectives.combine(sizes, Purpose.SIZES, what)
        return tuple(sizes.tolist())

    def forget(self) -> None:
        """Drop all plans; they are made anew when needed."""
        self._plans.clear()
        self._forgotten()

    def engines(self) -> list[HostEngine]:
        """Return the engines that no call in flight has."""
        return [engine for plan in set(self._plans.values()) for engine in plan.engines()]


@lru_cache(maxsize=256)
def _text_of(element: Element) -> str:
    """Return an element type in words; NumPy takes longer for that than for a short message."""
    return str(element)


def _no_engine(call: Call, message_context: MessageContext) -> HostEngine:
    raise AssertionError("the MPI library serves it")


def refusal(rank: int, call: Call | str, error: ArgumentError) -> ArgumentError:
    """Return the error with the rank and the call."""
    what = call if isinstance(call, str) else f"{call.collective} of {call.count} elements of {call.dtype}"
    return ArgumentError(f"rank {rank}: {what}: {error}")
