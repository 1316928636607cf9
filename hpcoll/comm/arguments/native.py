"""Calls that the MPI library serves: their arguments as mpi4py takes them, their form in compiled code, and the reason."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.dtypes import is_bfloat16, is_extended, kind
from hpcoll.base.errors import ArgumentError
from hpcoll.base.ops import ReduceOp
from hpcoll.comm.arguments.buffer_specs import BufferLayout, layout_of, split
from hpcoll.comm.arguments.call import is_in_place, to_native, to_ours
from hpcoll.comm.arguments.call_pattern import Sides
from hpcoll.comm.arguments.memory import memory
from hpcoll.comm.arguments.methods import NUMBERS, Method
from hpcoll.runtime.engine.call_cache import BufferPattern, MpiCall
from hpcoll.runtime.program.call_fields import ALIASED, MANY, TYPED
from hpcoll.runtime.telemetry.call_log import CallLog


def as_native(arguments: tuple[Any, ...], in_place_at: int | None = None) -> tuple[Any, ...]:
    """Return arguments as mpi4py's upper-case methods take them: bfloat16, which has no MPI type, as 16-bit integers, no floats as counts.

    Args:
        arguments: Arguments of the caller, buffers first.
        in_place_at: Position of the buffer for which MPI needs ``MPI.IN_PLACE``, because the two are one memory; or None.

    Raises:
        ArgumentError: An operator that the MPI library does not have.
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
    """Return counts and displacements as integers, any other item as it is."""
    if isinstance(item, list | tuple):
        return item if all(type(one) is int for one in item) else type(item)(_whole(one) for one in item)
    if isinstance(item, np.ndarray):
        return item if item.dtype in (np.int32, np.int64) else item.astype(np.int64)
    return int(item) if isinstance(item, float) else item


def compiled(
    row: Method,
    arguments: Sequence[Any],
    comm: MPI.Intracomm,
    found: Sides,
    sums: np.ndarray,
    nparts: int,
    log: CallLog,
) -> MpiCall | None:
    """Return the compiled form of calls like one, which needs no mpi4py; None where mpi4py must look at the arguments each time.

    Args:
        row: Row of the method.
        arguments: Arguments of the call.
        comm: Communicator of the caller.
        found: Patterns of its two sides.
        sums: Sums of a line of the ledger.
        nparts: Number of counts in this rank's message, for the ledger.
        log: Log of calls of the message context.
    """
    sent, received = found
    op, datatype, root = row.find("op", arguments), _datatype(received), row.find("root", arguments, 0)
    alike = sent.kind == ALIASED or (
        sent.size == received.size and (not (sent.derived or received.derived) or sent.type is received.type)
    )
    if (
        not row.c_arguments
        or not alike
        or not received.size
        or datatype is None
        or not (op is None or isinstance(op, MPI.Op))
    ):
        return None
    nbytes, in_place = received.size * nparts, sent.kind == ALIASED
    name, number = f"MPI_{row.name}", NUMBERS[row.name]
    return MpiCall(
        name, row.c_arguments, row.at_root, comm, root, datatype, op, in_place, sums, nbytes, log, number
    )


def _datatype(side: BufferPattern) -> MPI.Datatype | None:
    """Return the MPI datatype of a side's elements; None where MPI has none."""
    if isinstance(side.type, MPI.Datatype):
        return side.type
    if isinstance(side.type, str):
        code = side.type
    elif side.array is None:
        code = "B"
    else:
        code = np.asarray(side.array if type(side.array) is np.ndarray else memoryview(side.array)).dtype.char
    datatype = MPI.Datatype.fromcode(code)
    return None if datatype == MPI.DATATYPE_NULL else datatype


def only_native(row: Method, arguments: Sequence[Any], rank: int) -> tuple[str, str]:
    """Return the element type of a call that only the MPI library understands, and the reason, for the log and the ledger."""
    if TYPED in row.holds:
        return "", "arguments that only it understands"
    found: list[BufferLayout | None] = []
    for position, holds in zip(row.buffers(arguments, rank), row.holds, strict=True):
        if position is not None and not is_in_place(arguments[position]):
            buffer, _, _, datatype = split(arguments[position], "", vector=holds == MANY)
            known = type(buffer) is np.ndarray
            array = buffer if known else memory(buffer, datatype, "", writable=False, bare=False, stream=None)
            found.append(None if array is None else layout_of(array, datatype, ""))
    layouts = [one for one in found if one is not None]
    element = "" if not layouts else str(layouts[0].element)
    op = row.find("op", arguments)
    if op is not None and to_ours(op, rank) is None:
        return element, next(
            (name for name in _ONLY_THEIRS if getattr(MPI, name) == op), "user-defined operator"
        )
    if None in found:
        return element, "buffer that only it understands"
    if any(is_extended(one.dtype) for one in layouts):
        return element, "long double elements"
    if any(one.datatype is not None for one in layouts):
        return element, "derived datatype"
    return element, "arguments that only it understands" if all(
        kind(one.dtype) for one in layouts
    ) else "elements that are no numbers"


_ONLY_THEIRS = ("MINLOC", "MAXLOC", "REPLACE", "NO_OP")
