"""Compiled: calls on derived datatypes, whose engine works on packed copies (`hpcoll.runtime.engine.packed` has the room for them)."""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import INT, LONG, c_function, pointer, store_release
from hpcoll.runtime.engine.compiled.interpreter import run_locked
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES

_pack = c_function(INT, LONG, INT, LONG, LONG, INT, LONG, LONG)  # source, count, datatype, copy, nbytes, position, comm
_unpack = c_function(INT, LONG, INT, LONG, LONG, INT, LONG, LONG)  # copy, nbytes, position, target, count, datatype, comm


@njit(nogil=True)
def run_packed(table, at, source, target):  # type: ignore[no-untyped-def]
    """As `interpreter.run_locked`, or `MISS` where the copies need more room or the MPI library refuses to pack.

    Args:
        table, at: Addresses of the table, whose count has been written, and of the entry.
        source, target: Of the caller's buffers.
    """
    head, entry = pointer(table), pointer(at)
    packed, engine = pointer(head[c.PACKED]), entry[c.ENGINE]
    head[c.SOURCE], head[c.TARGET] = source, target
    sent, received = _nbytes(head, entry)
    if sent + received > packed[c.PACKED_NBYTES]:
        store_release(pointer(engine)[f.LOCK], 0)
        return c.MISS
    aliased = entry[c.SENT + c.KIND] == c.ALIASED
    output = packed[c.PACKED_AT] + sent if entry[c.UNPACKS] or aliased else target
    if entry[c.PACKS]:
        copy = output if aliased else packed[c.PACKED_AT]
        side, nbytes = at + 8 * (c.RECEIVED if aliased else c.SENT), head[c.COUNT] * entry[c.STRIDE if aliased else c.SENT_STRIDE]
        packed[c.POSITION] = 0
        nelements, position = nbytes // pointer(side)[c.PACKED_SIZE], head[c.PACKED] + 8 * c.POSITION
        if _pack(packed[c.PACK], (source, nelements, pointer(side)[c.HANDLE], copy, nbytes, position, packed[c.SELF])) != 0:
            store_release(pointer(engine)[f.LOCK], 0)
            return c.MISS
        source = copy
    status = run_locked(engine, output if aliased else source, output, head[c.COUNTS])
    return _unpack_entry(head, at) if status == f.DONE else status


@njit(nogil=True)
def unpack(table):  # type: ignore[no-untyped-def]
    """Store what the call that `run_cached` found last has received, once its engine is done; `DONE`, or `FAILED` with a code in there."""
    head = pointer(table)
    return _unpack_entry(head, table + 8 * (c.ENTRIES + c.ENTRY * head[c.LATEST]))


@njit(nogil=True)
def _nbytes(head, entry):  # type: ignore[no-untyped-def]
    """Bytes of the copy of what is sent, in whole cache lines, and of what is received; 0: there is none of its own."""
    sent, received = 0, 0
    if entry[c.PACKS] and entry[c.SENT + c.KIND] != c.ALIASED:
        sent = (head[c.COUNT] * entry[c.SENT_STRIDE] + CACHE_LINE_NBYTES - 1) // CACHE_LINE_NBYTES * CACHE_LINE_NBYTES
    if entry[c.UNPACKS] or entry[c.SENT + c.KIND] == c.ALIASED:
        received = head[c.COUNT] * entry[c.STRIDE]
    return sent, received


@njit(nogil=True)
def _unpack_entry(head, at):  # type: ignore[no-untyped-def]
    entry, packed = pointer(at), pointer(head[c.PACKED])
    if entry[c.UNPACKS] == 0:
        return f.DONE
    sent, received = _nbytes(head, entry)
    side = pointer(at + 8 * c.RECEIVED)
    packed[c.POSITION] = 0
    copy, nelements, position = packed[c.PACKED_AT] + sent, received // side[c.PACKED_SIZE], head[c.PACKED] + 8 * c.POSITION
    error = _unpack(packed[c.UNPACK], (copy, received, position, head[c.TARGET], nelements, side[c.HANDLE], packed[c.SELF]))
    if error != 0:
        pointer(entry[c.ENGINE])[f.ERROR] = error
        return f.FAILED
    return f.DONE
