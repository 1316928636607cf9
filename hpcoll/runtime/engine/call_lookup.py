"""Compiled: a call like an earlier one, found in a table and run."""

from numba import njit

from hpcoll.runtime.engine.ffi import pointer
from hpcoll.runtime.engine.interpreter import run
from hpcoll.runtime.engine.mpi_calls import call_mpi
from hpcoll.runtime.program import call_fields as c


@njit(nogil=True, inline="always")
def _count(array, dtype, flags, array_type):  # type: ignore[no-untyped-def]
    """Elements of a C-ordered array of a type; -1 for anything else."""
    fields = pointer(array)
    if fields[c.TYPE] != array_type or fields[c.DESCR] != dtype or fields[c.FLAGS] & flags != flags:
        return -1
    count, dimensions = 1, pointer(fields[c.DIMENSIONS])
    for i in range(fields[c.NDIM] & 0xFFFFFFFF):
        count *= dimensions[i]
    return count


@njit(nogil=True)
def run_cached(table, send, recv, op):  # type: ignore[no-untyped-def]
    """Run a call like one in a table.

    Args:
        table: `CallTable.address`.
        send, recv, op: ``id()`` of the buffers and of the operator.
    Returns:
        An answer of `interpreter.run`; `MISS` where no entry fits, `NATIVE` where the MPI library must be called with all
        that the caller gave: nothing has happened then.
    """
    head = pointer(table)
    array_type, in_place = head[2], head[3]
    for i in range(head[0]):
        entry = pointer(table + 8 * (4 + c.ENTRY * i))
        if entry[c.OP] != op or (entry[c.SENT_COUNT] < 0) != (send == in_place):
            continue
        if _count(recv, entry[c.DTYPE], c.CONTIGUOUS | c.ALIGNED | c.WRITEABLE, array_type) != entry[c.COUNT]:
            continue
        target = pointer(recv)[c.DATA]
        source = target
        if send != in_place:
            if _count(send, entry[c.DTYPE], c.CONTIGUOUS | c.ALIGNED, array_type) != entry[c.SENT_COUNT]:
                continue
            source = pointer(send)[c.DATA]
            if -entry[c.SENT_NBYTES] < source - target < entry[c.NBYTES]:
                continue
        head[1] = i
        if entry[c.ENGINE] < 0:
            return call_mpi(-entry[c.ENGINE], source, target)
        return run(entry[c.ENGINE], source, target, 1) if entry[c.ENGINE] else c.NATIVE
    return c.MISS
