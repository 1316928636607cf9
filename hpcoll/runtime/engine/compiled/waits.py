"""Compiled: ranks tell each other when each began its last calls; then each knows who came last, and how long it waited for that one."""

from numba import njit

from hpcoll.runtime.engine.compiled.checks import record_of
from hpcoll.runtime.engine.compiled.ffi import pointer
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import wait_fields as w

_COLLECTIVE, _ROOT = (1 << w.COLLECTIVE_BITS) - 1, (1 << w.ROOT_BITS) - 1
_ELEMENT = (1 << f.ELEMENT_BITS) - 1
_GROUP_NBYTES, _NEAR = 8 * w.GROUP_NFIELDS, 32  # the second in rows
_TICKS, _MOST_SPENT = (1 << w.TICK_BITS) - 1, (1 << 63 - w.TICK_BITS) - 1


@njit(nogil=True)
def tell(address):  # type: ignore[no-untyped-def]
    """Write the words by which a rank tells of its calls, and their base (`hpcoll.runtime.program.wait_fields`)."""
    table = pointer(address)
    log, told, first = table[w.LOG], pointer(table[w.TOLD]), table[w.FIRST]
    base, spent = pointer(record_of(log, first))[f.ITS_BEGIN], pointer(record_of(log, first))[f.ITS_SPENT]
    for i in range(table[w.NCALLS]):
        record = pointer(record_of(log, first + i))
        ticks = max(0, record[f.ITS_BEGIN] - base) >> w.TICK_SHIFT & _TICKS
        told[i] = (
            min(max(0, record[f.ITS_SPENT] - spent) >> w.SPENT_SHIFT, _MOST_SPENT) << w.TICK_BITS | ticks
        )
        spent = record[f.ITS_SPENT]
    table[w.BASE] = base
    return f.DONE


@njit(nogil=True)
def compare(address):  # type: ignore[no-untyped-def]
    """Compare the calls of a table. Service collectives are nobody's; a call that took less than LEAST has waited for nobody."""
    table, ncalls, waited_ns, moved_ns, hidden_ns = pointer(address), 0, 0, 0, 0
    log, first, in_flight, least, nranks = (
        table[w.LOG],
        table[w.FIRST],
        table[w.IN_FLIGHT],
        table[w.LEAST],
        table[w.NRANKS],
    )
    kinds, table[w.NGROUPS] = pointer(table[w.KINDS]), 0
    for i in range(table[w.NCALLS]):
        record = pointer(record_of(log, first + i))
        signature = record[0]
        kind, root = kinds[signature & _COLLECTIVE], signature >> w.ROOT_AT & _ROOT
        rooted = kind == w.FROM_ROOT or kind == w.TO_ROOT or signature >> f.ELEMENT_AT & _ELEMENT == w.OBJECT
        if root and not rooted:
            continue
        begin, took = record[f.ITS_BEGIN], record[f.ITS_END] - record[f.ITS_BEGIN]
        if in_flight:
            whole, begin, took = (
                took,
                record[f.ITS_WAIT_BEGIN],
                record[f.ITS_WAIT_END] - record[f.ITS_WAIT_BEGIN],
            )
            hidden_ns += max(0, whole - took)
        ncalls += 1
        moved_ns += took
        owner, waited = w.NOBODY, 0
        if took > least:
            owner, late = _latest(table, i, kind, root)
            waited = min(took, late - (begin - record[f.ITS_BEGIN]))
        if owner == w.NOBODY or waited <= least:
            owner, waited = w.NOBODY, 0
        else:
            _blame(table, i, owner, waited, 1 if kind == w.TO_ROOT else nranks - 1)
        waited_ns += waited
        if record[f.ITS_NAMES]:
            _group(table, record[f.ITS_NAMES], owner, waited, took)
    sums = pointer(table[w.SUMS])
    sums[w.CALLS] += ncalls
    sums[w.WAITED_NS] += waited_ns
    sums[w.MOVED_NS] += moved_ns - waited_ns
    sums[w.HIDDEN_NS] += hidden_ns
    return f.DONE


@njit(nogil=True)
def _blame(table, i, owner, waited, could_wait):  # type: ignore[no-untyped-def]
    """Add a wait for a rank, for which so many could wait."""
    pointer(table[w.OWNER])[i], pointer(table[w.WAITED])[i] = owner, waited
    spent = (
        max(0, (_word(table, owner, i) >> w.TICK_BITS) - (_word(table, table[w.RANK], i) >> w.TICK_BITS))
        << w.SPENT_SHIFT
    )
    pointer(table[w.HELD_UP])[owner] += 1
    pointer(table[w.WAITED_FOR])[owner] += waited
    pointer(table[w.CAUSED])[owner] += waited // could_wait
    pointer(table[w.INHERITED])[owner] += min(waited, spent) // could_wait


@njit(nogil=True)
def _group(table, names, owner, waited, took):  # type: ignore[no-untyped-def]
    """Add a call to the row of its names and owner, if that is among the latest ones, else to a new row."""
    at = end = table[w.GROUPS] + table[w.NGROUPS] * _GROUP_NBYTES
    first = max(table[w.GROUPS], end - _NEAR * _GROUP_NBYTES)
    row = pointer(at)
    while at > first:
        at -= _GROUP_NBYTES
        row = pointer(at)
        if row[w.ITS_NAMES] == names and row[w.ITS_OWNER] == owner:
            break
    else:
        row = pointer(end)
        row[w.ITS_NAMES], row[w.ITS_OWNER], row[w.ITS_CALLS], row[w.ITS_WAITED], row[w.ITS_MOVED] = (
            names,
            owner,
            0,
            0,
            0,
        )
        table[w.NGROUPS] += 1
    row[w.ITS_CALLS] += 1
    row[w.ITS_WAITED] += waited
    row[w.ITS_MOVED] += took - waited


@njit(nogil=True)
def _latest(table, i, kind, root):  # type: ignore[no-untyped-def]
    """Return which rank of those that this one awaits came last, and how much later than this one."""
    me, arrivals, bases = table[w.RANK], pointer(table[w.ARRIVALS]), pointer(table[w.BASES])
    begun = bases[me] + ((pointer(arrivals[me])[i] & _TICKS) << w.TICK_SHIFT)
    owner, late = w.NOBODY, 0
    for rank in range(table[w.NRANKS]):
        if rank != me:
            later = bases[rank] + ((pointer(arrivals[rank])[i] & _TICKS) << w.TICK_SHIFT) - begun
            if later > late and _awaited(table, kind, root, rank):
                owner, late = rank, later
    return owner, late


@njit(nogil=True)
def _awaited(table, kind, root, rank):  # type: ignore[no-untyped-def]
    """Say whether this rank waits for another one in a call."""
    if kind == w.FROM_ROOT:
        return rank == root
    if kind == w.TO_ROOT:
        return table[w.RANK] == root
    if kind == w.BEFORE:
        return rank < table[w.RANK]
    return kind == w.ALL or pointer(table[w.NEIGHBOURS])[rank] != 0


@njit(nogil=True)
def _word(table, rank, i):  # type: ignore[no-untyped-def]
    return pointer(pointer(table[w.ARRIVALS])[rank])[i]
