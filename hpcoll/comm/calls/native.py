"""Calls that the MPI library serves: with arguments as mpi4py takes them, or from compiled code."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.dtypes import is_bfloat16, is_extended
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import ReduceOp
from hpcoll.comm.calls.call import Call, is_in_place
from hpcoll.comm.calls.exporters import memory
from hpcoll.comm.calls.methods import Method
from hpcoll.comm.calls.operators import to_native, to_ours
from hpcoll.comm.calls.specs import Layout, layout_of, split
from hpcoll.runtime.engine.mpi_collectives import MAX_COUNT, MpiCall, known
from hpcoll.runtime.program.call_fields import MANY


def as_native(arguments: tuple[Any, ...], in_place_at: int | None = None) -> tuple[Any, ...]:
    """Arguments of one of mpi4py's upper-case methods: bfloat16, which has no MPI type, as 16-bit integers, no floats as counts.

    Args:
        arguments: The caller's: buffers first.
        in_place_at: Position of the buffer that MPI wants to be told as ``MPI.IN_PLACE``, because the two are one memory; or None.
    Raises:
        ArgumentError: an operator that the MPI library does not have.
    """
    theirs = [_theirs(argument) for argument in arguments]
    if in_place_at is not None:
        theirs[in_place_at] = MPI.IN_PLACE
    return tuple(theirs)


def _theirs(argument: Any) -> Any:
    if type(argument) is np.ndarray:
        return argument.view(np.int16) if is_bfloat16(argument.dtype) else argument
    if isinstance(argument, list | tuple) and argument:
        theirs = [_theirs(argument[0]), *map(_whole, argument[1:])]
        return argument if all(one is other for one, other in zip(theirs, argument, strict=True)) else theirs
    if isinstance(argument, ReduceOp):
        found = to_native(argument)
        if found is None:
            raise ArgumentError(f"the MPI library has no operator {argument!r} for this element type")
        return found
    return argument


def _whole(item: Any) -> Any:
    """Counts and displacements as integers, anything else as it is."""
    if isinstance(item, list | tuple):
        return item if all(type(one) is int for one in item) else type(item)(_whole(one) for one in item)
    if isinstance(item, np.ndarray):
        return item if item.dtype in (np.int32, np.int64) else item.astype(np.int64)
    return int(item) if isinstance(item, float) else item


def compiled(row: Method, comm: MPI.Intracomm, call: Call, op: Any, buffers: Sequence[Any], sums: np.ndarray) -> MpiCall | None:
    """What serves calls like this one without mpi4py, or None where that must look at the arguments each time.

    Args:
        row: Of the method.
        comm: The caller's communicator.
        call: The call.
        op: The operator as the caller gives it, or None.
        buffers: What is sent, or ``MPI.IN_PLACE``, and what is received, as `hpcoll.runtime.engine.call_lookup.run_cached` gets them.
        sums: Line of the ledger.
    """
    send, recv = buffers
    if type(recv) is not np.ndarray or type(send) not in (np.ndarray, type(MPI.IN_PLACE)) or not row.c_arguments:
        return None
    count = call.nbytes // max(1, recv.itemsize)
    if count > MAX_COUNT or not known(recv.dtype, op):
        return None
    name, in_place = f"MPI_{row.name}", send is MPI.IN_PLACE
    nbytes = recv.itemsize * (comm.Get_size() if call.collective == "alltoall" else 1)
    return MpiCall(name, row.c_arguments, row.at_root, comm, call.root, recv.dtype, op, in_place, sums, nbytes)


def only_native(row: Method, arguments: Sequence[Any], rank: int) -> tuple[str, str]:
    """Element type of a call that only the MPI library understands, and why, for the log and the ledger.

    Args:
        row, arguments: Of a call that was described, and is None.
        rank: Of the caller.
    """
    found: list[Layout | None] = []
    for position, holds in zip(row.buffers(arguments, rank), row.holds, strict=True):
        if position is not None and not is_in_place(arguments[position]):
            buffer, _, _, datatype = split(arguments[position], "", vector=holds == MANY)
            array = memory(buffer, datatype, "", writable=False, bare=False, stream=None)
            found.append(None if array is None else layout_of(array, datatype, ""))
    layouts = [one for one in found if one is not None]
    element = "" if not layouts else str(layouts[0].element)
    op = row.find("op", arguments)
    if op is not None and to_ours(op, rank) is None:
        return element, next((name for name in _ONLY_THEIRS if getattr(MPI, name) == op), "user-defined operator")
    if None in found:
        return element, "buffer that only it understands"
    if any(is_extended(one.dtype) for one in layouts):
        return element, "long double elements"
    return element, "derived datatype" if any(one.datatype is not None for one in layouts) else "arguments that only it understands"


_ONLY_THEIRS = ("MINLOC", "MAXLOC", "REPLACE", "NO_OP")
