"""What is put into the call cache behind a call: entries for all calls like it, whatever their sizes."""

from typing import Any

from mpi4py import MPI

from hpcoll.analysis.cost import NEVER
from hpcoll.comm.calls.call import Call
from hpcoll.comm.calls.methods import METHODS
from hpcoll.comm.calls.native import compiled
from hpcoll.comm.calls.recognised import opaque_sides, sides, whose_sizes
from hpcoll.comm.cut import counts_of, ledger_nbytes
from hpcoll.comm.plan import Plan
from hpcoll.comm.planner import Planner
from hpcoll.comm.prepared import Prepared
from hpcoll.runtime.engine.call_cache import CallTable, Served
from hpcoll.runtime.engine.mpi_collectives import MAX_COUNT, MpiCall
from hpcoll.runtime.program.call_fields import ALIASED, UNKNOWN


def may_enter(call: Call, plan: Plan, send: Any) -> bool:
    """Whether calls like one need no description: it works on the caller's own memory, by a plan that is kept; ``send`` is what it sends.

    Of two buffers that are one memory only ``MPI.IN_PLACE`` is looked for.
    """
    return call.as_given and plan.kept and (not call.aliased or send is MPI.IN_PLACE)


def enter(
    planner: Planner, table: CallTable, method: str, arguments: tuple[Any, ...], buffers: tuple[Any, ...], call: Call, served: Served,
    most_nbytes: int = NEVER,
) -> None:  # fmt: skip
    """Let calls like one be found in a table.

    Args:
        planner: Of the communicator.
        method, arguments, call: The call.
        buffers: As `hpcoll.runtime.engine.call_lookup.run_cached` gets them.
        served: What serves it, and its plan.
        most_nbytes: Most bytes of the message of such a call.
    """
    row, on, cell = METHODS[method], planner.resources, planner.cell(call)
    cell = cell[0], min(cell[1], most_nbytes)
    found = sides(row, arguments, buffers, on.rank, on.nranks)
    if found is None:
        return
    if call.blocks is None:
        element = found[1].element if isinstance(served.by, MpiCall) else call.dtype.itemsize
        least, most = counts_of(cell, call, on.nranks, element)
        most = min(most, MAX_COUNT) if isinstance(served.by, MpiCall) else most
        served = served._replace(cell=(least, most), count=call.nbytes // element, nbytes=ledger_nbytes(call, on.nranks))
    elif ALIASED not in (found[0].kind, found[1].kind):
        served = served._replace(cell=cell, sizes=whose_sizes(row, call), unit=call.dtype.itemsize)
    else:
        return
    table.enter(row.find("op", arguments), *found, served)


def enter_native(
    planner: Planner, table: CallTable, method: str, arguments: tuple[Any, ...], buffers: tuple[Any, ...], prepared: Prepared
) -> None:  # fmt: skip
    """As `enter`, for a call that the MPI library serves: a blocking one with a count is made from compiled code, others by mpi4py."""
    row, call, plan = METHODS[method], prepared.call, prepared.plan
    if call is None:
        found = opaque_sides(buffers)
        if found is not None:
            table.enter(row.find("op", arguments), *found, Served(None, plan, count=1, sizes=UNKNOWN))  # of no bytes each
    elif not call.aliased or buffers[0] is MPI.IN_PLACE:
        native, op = planner.resources.native, row.find("op", arguments)
        by = None if table.starts else compiled(row, native, call, op, buffers, plan.account.sums)
        enter(planner, table, method, arguments, buffers, call, Served(by, plan))
