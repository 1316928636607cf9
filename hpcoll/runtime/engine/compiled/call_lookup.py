"""Compiled: the call cache's lookup, which finds a call like an earlier one in a table and runs it."""

from numba import njit

from hpcoll.runtime.engine.compiled.checks import wants_look
from hpcoll.runtime.engine.compiled.ffi import (
    exchange,
    load_acquire,
    pointer,
    release_gil,
    store_release,
    take_gil,
)
from hpcoll.runtime.engine.compiled.interpreter import resize, run_locked
from hpcoll.runtime.engine.compiled.mpi_ops import call_mpi
from hpcoll.runtime.engine.compiled.progress import start
from hpcoll.runtime.engine.compiled.spec_reader import (
    drop,
    has_handle,
    is_like,
    keep,
    read_blocks,
    read_elements,
)
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.program import fields as f


@njit(nogil=True)
def run_cached(table, send, recv, op):  # type: ignore[no-untyped-def]
    """Run a call like one in a table, of any size that the entry is for; the caller has the GIL, which is released while the call runs.

    The arguments are `CallTable.address` and ``id()`` of buffers and operator. The answer is one of `interpreter.run`; in a table of calls
    in flight one of `progress.start`, where `BUSY` says that others are before it or have the engine. `MISS`: no entry fits; `NATIVE`: the
    MPI library must be called. Nothing has happened then.
    """
    head = pointer(table)
    for i in range(head[c.NENTRIES]):
        at = table + 8 * (c.ENTRIES + c.ENTRY * i)
        if pointer(at)[c.OP] != op:
            continue
        status = _run_entry(table, at, send, recv)
        if status != c.MISS and status != f.UNFIT and status != f.NO_ROOM:
            head[c.LATEST] = i
            return status
    return c.MISS


@njit(nogil=True)
def _run_entry(table, at, send, recv):  # type: ignore[no-untyped-def]
    """Run the call by an entry, if it fits. Whoever runs a program takes its lock first, and notes the call's counts behind it."""
    entry, head = pointer(at), pointer(table)
    engine, starts, room = entry[c.ENGINE], head[c.STARTS], head[c.COUNTS]
    if entry[c.SIZES] == c.UNKNOWN:
        return (
            c.NATIVE
            if is_like(table, at + 8 * c.SENT, send) and is_like(table, at + 8 * c.RECEIVED, recv)
            else c.MISS
        )
    if entry[c.SIZES] == c.ALL_ALIKE:
        source, target, count = _equal(table, at, send, recv)
        if count < 0:
            return c.MISS
        if engine < 0:
            if entry[c.OP_HANDLE] and not has_handle(table, entry[c.OP], entry[c.OP_HANDLE]):
                return c.MISS
            return _run(table, at, send, recv, source, target, count)
    if engine and not starts and not exchange(pointer(engine)[f.LOCK], 0, 1):
        return f.BUSY
    if entry[c.SIZES] == c.ALL_ALIKE:
        pointer(room)[0] = count
    else:
        source, target, count = _varying(table, at, send, recv, room)
    head[c.COUNT] = count
    if (
        count >= 0
        and starts
        and engine
        and (pointer(engine)[f.HELD] or load_acquire(starts) != pointer(starts)[1])
    ):
        head[c.SOURCE], head[c.TARGET] = source, target
        drop(table, keep(table, at + 8 * c.SENT, send), True)
        drop(table, keep(table, at + 8 * c.RECEIVED, recv), True)
        return f.BUSY
    if count >= 0 and engine:
        return _run(table, at, send, recv, source, target, count)
    if engine and not starts:
        store_release(pointer(engine)[f.LOCK], 0)
    return c.NATIVE if count >= 0 else c.MISS


@njit(nogil=True, forceinline=True)
def _run(table, at, send, recv, source, target, count):  # type: ignore[no-untyped-def]
    """Run a call whose entry was found and whose arguments have been read, while other threads of Python run."""
    entry, head = pointer(at), pointer(table)
    engine, room = entry[c.ENGINE], head[c.COUNTS]
    sent, received = keep(table, at + 8 * c.SENT, send), keep(table, at + 8 * c.RECEIVED, recv)
    thread = release_gil(())
    if engine < 0:
        status = call_mpi(-engine, source, target, count)
    else:
        pointer(engine)[f.INPUT_MAP], pointer(engine)[f.OUTPUT_MAP] = entry[c.SENT_MAP], entry[c.RECEIVED_MAP]
        status = (
            _start(engine, source, target, room)
            if head[c.STARTS]
            else run_locked(engine, source, target, room)
        )
        if status == f.DONE and not head[c.STARTS] and wants_look(pointer(engine)):
            status = f.NOTED
    take_gil((thread,))
    under_way = engine > 0 and (status == f.PENDING or status == f.FAILED)
    drop(table, sent, under_way)
    drop(table, received, under_way)
    return status


@njit(nogil=True)
def _start(engine, source, target, counts):  # type: ignore[no-untyped-def]
    """Start a call of these counts; the answer is one of `resize` or of `progress.start`."""
    status = resize(engine, counts)
    return status if status != f.DONE else start(engine, source, target)


@njit(nogil=True)
def _equal(table, at, send, recv):  # type: ignore[no-untyped-def]
    """Return addresses and count of a call with one count; the count -1 where the entry does not fit."""
    entry = pointer(at)
    target, nbytes = read_elements(table, at + 8 * c.RECEIVED, recv)
    count = nbytes // entry[c.STRIDE]
    if nbytes < 0 or nbytes != count * entry[c.STRIDE] or count < entry[c.LEAST] or count > entry[c.MOST]:
        return 0, 0, -1
    if entry[c.SENT + c.KIND] == c.ALIASED:
        return target, target, count if send == pointer(table)[c.IN_PLACE] else -1
    source, sent = read_elements(table, at + 8 * c.SENT, send)
    mapped = entry[c.SENT_MAP] != 0 or entry[c.RECEIVED_MAP] != 0
    overlap = source == target if mapped else -sent < source - target < nbytes
    fits = sent == count * entry[c.SENT_STRIDE] and not overlap
    return source, target, count if fits else -1


@njit(nogil=True)
def _overlap(apart, ours, nours, theirs, ntheirs):  # type: ignore[no-untyped-def]
    """Say whether blocks share memory with others, whose displacements count from ``apart`` bytes before."""
    for i in range(nours):
        first, nbytes = apart + pointer(ours)[2 * i], pointer(ours)[2 * i + 1]
        for j in range(ntheirs):
            if -nbytes < first - pointer(theirs)[2 * j] < pointer(theirs)[2 * j + 1] and nbytes > 0:
                return True
    return False


@njit(nogil=True)
def _varying(table, at, send, recv, room):  # type: ignore[no-untyped-def]
    """Return addresses of a call whose blocks have sizes of their own, and bytes of them all, -1 where the entry does not fit.

    Its counts are written to ``room`` in the order of `hpcoll.comm.arguments.call.Call.counts`.
    """
    entry, rank = pointer(at), pointer(table)[c.RANK]
    aliased = entry[c.SENT + c.KIND] == c.ALIASED
    if aliased and send != pointer(table)[c.IN_PLACE]:
        return 0, 0, -1
    reduces = aliased and entry[c.SIZES] != c.OF_RECEIVED  # results come where their contributions lie
    if reduces:
        source, sent_nbytes, nsent = read_blocks(table, at + 8 * c.RECEIVED, recv, room)
    elif aliased:  # this rank's block, which lies among those that are received
        source, sent_nbytes, nsent = 0, 0, 1
    else:
        source, sent_nbytes, nsent = read_blocks(table, at + 8 * c.SENT, send, room)
    if nsent < 0:
        return 0, 0, -1
    received = room + 16 * nsent
    if reduces:
        target, received_nbytes, nreceived = source, sent_nbytes, 1
        pointer(received)[0], pointer(received)[1] = 0, pointer(room)[2 * rank + 1]
    else:
        target, received_nbytes, nreceived = read_blocks(table, at + 8 * c.RECEIVED, recv, received)
    if nreceived < 0:
        return 0, 0, -1
    if aliased and not reduces:
        source, pointer(room)[0], pointer(room)[1] = target, 0, pointer(received)[2 * rank + 1]
    elif nsent and nreceived and not reduces:
        if entry[c.SIZES] != c.OF_EDGES:  # both have the block that stays on this rank
            sent_own, received_own = rank if nsent > 1 else 0, rank if nreceived > 1 else 0
            if pointer(room)[2 * sent_own + 1] != pointer(received)[2 * received_own + 1]:
                return 0, 0, -1
        if entry[c.SENT + c.KIND] == c.TYPED:
            pass  # an array sends and receives, as a rule, and nobody but the caller knows that blocks share no memory
        elif -sent_nbytes < source - target < received_nbytes and _overlap(
            source - target, room, nsent, received, nreceived
        ):
            return 0, 0, -1
    sizes, n = (received, nreceived) if entry[c.SIZES] == c.OF_RECEIVED or nsent == 0 else (room, nsent)
    total = 0
    for i in range(n):
        size = pointer(sizes)[2 * i + 1]
        total += size
        if entry[c.SIZES] != c.OF_NONE and entry[c.SIZES] != c.OF_EDGES:
            pointer(received)[2 * nreceived + i] = size
    if entry[c.SIZES] == c.FILLED and total != sent_nbytes:
        return 0, 0, -1
    if entry[c.STRIDE] > 1:
        for i in range(2 * nsent + 2 * nreceived + n):
            pointer(room)[i] //= entry[c.STRIDE]
    return source, target, total if entry[c.LEAST] <= total <= entry[c.MOST] else -1
