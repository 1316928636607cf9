"""Entries of the call cache: after a call has run, one is made that serves all calls like it, whatever their sizes."""

from typing import Any

from mpi4py import MPI

from hpcoll.analysis.cost import NEVER
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.call_pattern import Sides, opaque_sides, sides, typed_sides, whose_sizes
from hpcoll.comm.arguments.methods import METHODS, Method
from hpcoll.comm.arguments.native import compiled
from hpcoll.comm.planning.planner import Planner
from hpcoll.comm.plans.plan import Plan, Prepared
from hpcoll.comm.plans.segmentation import counts_of, ledger_nbytes, nparts
from hpcoll.runtime.engine.call_cache import MAX_COUNT, BufferPattern, CachedCall, CallTable, MpiCall
from hpcoll.runtime.program.call_fields import ALIASED, BLOCKS, OF_NONE, TYPED, UNKNOWN


def may_enter(table: CallTable, call: Call, plan: Plan, send: Any) -> bool:
    """Say whether calls like one need no description; ``send`` is the buffer that it sends.

    They need none where the plan is kept, and they work on the caller's own memory. Of two buffers that are one memory only
    ``MPI.IN_PLACE`` is looked for.
    """
    if not (call.as_given and plan.kept and (not call.aliased or send is MPI.IN_PLACE)):
        return False
    return table.wants_more()


def enter(
    planner: Planner,
    table: CallTable,
    method: str,
    arguments: tuple[Any, ...],
    buffers: tuple[Any, ...],
    call: Call,
    served: CachedCall,
    most_nbytes: int = NEVER,
) -> None:
    """Let calls like one be found in a table.

    Args:
        planner: Of the communicator.
        table: Where it was not found.
        method: mpi4py's name of the blocking method.
        arguments: Positional arguments of the program.
        buffers: Buffers as `hpcoll.runtime.engine.compiled.call_lookup.run_cached` gets them.
        call: The call.
        served: Engine that serves it, and its plan.
        most_nbytes: Most bytes of the message of such a call.
    """
    row, on = METHODS[method], planner.resources
    nblocks = _nblocks(call, on.rank, on.nranks)
    typed = TYPED in row.holds
    found = (
        typed_sides(buffers, call, nblocks)
        if typed
        else sides(row, arguments, buffers, call, on.rank, nblocks)
    )
    if found is not None:
        cell = planner.cell(call)
        _enter(
            table,
            row,
            arguments,
            found,
            call,
            served,
            (cell[0], min(cell[1], most_nbytes)),
            (on.rank, on.nranks),
        )


def _enter(
    table: CallTable,
    row: Method,
    arguments: tuple[Any, ...],
    found: Sides,
    call: Call,
    served: CachedCall,
    cell: tuple[int, int],
    who: tuple[int, int],
) -> None:
    """``cell``: least and most bytes of the messages of such calls; ``who``: rank and size."""
    sent, received = found
    if call.blocks is None:
        element = received.size if isinstance(served.by, MpiCall) else call.dtype.itemsize
        least, most = counts_of(cell, call, who[1], element)
        most = min(most, MAX_COUNT) if isinstance(served.by, MpiCall) else most
        count, nbytes = call.nbytes // element, ledger_nbytes(call, who[1])
        served = CachedCall(served.by, served.plan, (least, most), count, nbytes, maps=call.maps)
    else:
        sizes = whose_sizes(row, call, sent, received)
        if not _can_be_read(sent, received, sizes) or (sent.kind != TYPED and _told_blocks(call, who[0])):
            return
        unit = call.dtype.itemsize
        served = CachedCall(served.by, served.plan, cell, sizes=sizes, unit=unit, maps=call.maps)
    table.enter(row.find("op", arguments), sent, received, served)


def _can_be_read(sent: BufferPattern, received: BufferPattern, sizes: int) -> bool:
    """Say whether compiled code finds the blocks of both buffers: in place those that are sent lie where a gather or reduction receives."""
    return received.kind != ALIASED and (sent.kind != ALIASED or sizes != OF_NONE)


def _nblocks(call: Call | None, rank: int, nranks: int) -> tuple[int, int]:
    """Return the blocks of a send buffer and of a receive buffer that have several."""
    graph = None if call is None else call.graph
    return (nranks, nranks) if graph is None else (len(graph.targets[rank]), len(graph.sources[rank]))


def _told_blocks(call: Call, rank: int) -> bool:
    """Say whether describing a neighbourhood collective says more of blocks: their places, or that two that are one have one size."""
    if call.graph is None:
        return False
    found = call.graph.received(rank)
    twice = call.collective == "neighbor_allgather" and any(len(blocks) > 1 for blocks in found.values())
    return call.graph.lonely or twice or rank in found


def enter_native(
    planner: Planner,
    table: CallTable,
    method: str,
    arguments: tuple[Any, ...],
    buffers: tuple[Any, ...],
    prepared: Prepared,
) -> None:
    """Enter a call that the MPI library serves, as `enter`: compiled code makes a blocking one with a count, mpi4py makes others."""
    row, call, plan, on = METHODS[method], prepared.call, prepared.plan, planner.resources
    if (call is not None and call.aliased and buffers[0] is not MPI.IN_PLACE) or not table.wants_more():
        return
    if TYPED in row.holds:
        return
    op, parts = row.find("op", arguments), 0 if call is None else nparts(call, on.nranks)
    nblocks = _nblocks(call, on.rank, on.nranks)
    known = call is not None or op is not None
    found = sides(row, arguments, buffers, call, on.rank, nblocks) if known else None
    by = (
        None
        if table.starts or found is None
        else compiled(row, arguments, on.native, found, plan.account.sums, parts, on.log)
    )
    if call is not None and found is not None:
        _enter(
            table, row, arguments, found, call, CachedCall(by, plan), planner.cell(call), (on.rank, on.nranks)
        )
    elif found is not None and by is not None:
        # in place: the call counts one of them
        counted = on.nranks if row.holds[0] == BLOCKS and found[0].kind == ALIASED else 1
        table.enter(
            op, *found, CachedCall(by, plan, (0, MAX_COUNT), found[1].nbytes // (found[1].size * counted))
        )
    elif call is None and (opaque := opaque_sides(buffers)) is not None:
        table.enter(op, *opaque, CachedCall(None, plan, count=1, sizes=UNKNOWN))  # of no bytes each
