"""Compiled: ranks tell each other when each began its last calls; then it is known who came last, and how long others waited for it."""

from numba import njit

from hpcoll.runtime.engine.compiled.checks import record_of
from hpcoll.runtime.engine.compiled.ffi import pointer
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import wait_fields as w

_COLLECTIVE, _ROOT = (1 << w.COLLECTIVE_BITS) - 1, (1 << w.ROOT_BITS) - 1
_ELEMENT = (1 << f.ELEMENT_BITS) - 1
_GROUP_NBYTES, _NEAR = 8 * w.GROUP_NFIELDS, 32  # the second in rows
_RECORD_NBYTES, _FOUND_NBYTES = 8 * f.RECORD_NFIELDS, 8 * w.FOUND_NFIELDS
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


@njit(nogil=True)
def compare(address):  # type: ignore[no-untyped-def]
    """Compare the calls of a table. Service collectives are nobody's; a call that took less than LEAST has waited for nobody."""
    table, ncalls, waited_ns, moved_ns, hidden_ns = pointer(address), 0, 0, 0, 0
    kinds, in_flight, least, summed = (
        pointer(table[w.KINDS]),
        table[w.IN_FLIGHT],
        table[w.LEAST],
        table[w.FOUND] == 0,
    )
    begin_of, end_of = (f.ITS_WAIT_BEGIN, f.ITS_WAIT_END) if in_flight else (f.ITS_BEGIN, f.ITS_END)
    first, end = table[w.RANK], table[w.END]
    table[w.NGROUPS] = 0
    for i in range(table[w.NCALLS]):
        last, seen = w.NOBODY, 0  # who came last of the first ranks, and how many these are
        for rank in range(first, end):
            record = pointer(_record(table, rank, i))
            signature = record[0]
            kind, root = kinds[signature & _COLLECTIVE], signature >> w.ROOT_AT & _ROOT
            rooted = kind == w.FROM_ROOT or kind == w.TO_ROOT
            if root and not rooted and signature >> f.ELEMENT_AT & _ELEMENT != w.OBJECT:
                continue
            took, waited, owner = record[end_of] - record[begin_of], 0, w.NOBODY
            if took > least:
                if kind == w.ALL or kind == w.BEFORE or (kind == w.TO_ROOT and rank == root):
                    stop = rank if kind == w.BEFORE else table[w.NRANKS]
                    while seen < stop:
                        if last == w.NOBODY or _begin(table, seen, i) > _begin(table, last, i):
                            last = seen
                        seen += 1
                    owner = last
                elif kind == w.FROM_ROOT and root < table[w.NRANKS]:
                    owner = root
                elif kind == w.NEAR:
                    owner = _latest_source(table, i, rank)
                if owner != w.NOBODY:
                    late = _begin(table, owner, i) - _begin(table, rank, i)
                    waited = min(took, late - (record[begin_of] - record[f.ITS_BEGIN]))
                if waited > least:
                    _blame(table, i, rank, owner, waited, 1 if kind == w.TO_ROOT else table[w.NRANKS] - 1)
                else:
                    owner, waited = w.NOBODY, 0
            ncalls += 1
            waited_ns += waited
            moved_ns += took - waited
            if in_flight:
                hidden_ns += max(0, record[f.ITS_END] - record[f.ITS_BEGIN] - took)
            if summed and record[f.ITS_NAMES]:
                _group(table, record[f.ITS_NAMES], owner, waited, took)
    if summed:
        sums = pointer(table[w.SUMS])
        sums[w.CALLS] += ncalls
        sums[w.WAITED_NS] += waited_ns
        sums[w.MOVED_NS] += moved_ns
        sums[w.HIDDEN_NS] += hidden_ns


@njit(nogil=True)
def _blame(table, i, rank, owner, waited, could_wait):  # type: ignore[no-untyped-def]
    """Note the wait of a rank for another one, for which so many could wait."""
    spent = (_word(table, owner, i) >> w.TICK_BITS) - (_word(table, rank, i) >> w.TICK_BITS)
    held = min(waited, max(0, spent) << w.SPENT_SHIFT) // could_wait
    if table[w.FOUND]:
        at = (rank - table[w.RANK]) * table[w.NCALLS] + i
        found = pointer(table[w.FOUND] + at * _FOUND_NBYTES)
        found[w.OWNER], found[w.WAITED] = owner, waited
        found[w.DIVIDED], found[w.HELD] = waited // could_wait, held
    else:
        pointer(table[w.HELD_UP])[owner] += 1
        pointer(table[w.WAITED_FOR])[owner] += waited
        pointer(table[w.CAUSED])[owner] += waited // could_wait
        pointer(table[w.INHERITED])[owner] += held


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
def _latest_source(table, i, rank):  # type: ignore[no-untyped-def]
    """Return which rank came last of those from which one receives in a neighbourhood collective."""
    bounds, nearest, last = pointer(table[w.SOURCES]), pointer(table[w.NEAREST]), w.NOBODY
    for at in range(bounds[rank], bounds[rank + 1]):
        if last == w.NOBODY or _begin(table, nearest[at], i) > _begin(table, last, i):
            last = nearest[at]
    return last


@njit(nogil=True)
def _begin(table, rank, i):  # type: ignore[no-untyped-def]
    return pointer(table[w.BASES])[rank] + ((_word(table, rank, i) & _TICKS) << w.TICK_SHIFT)


@njit(nogil=True)
def _word(table, rank, i):  # type: ignore[no-untyped-def]
    return pointer(pointer(table[w.ARRIVALS])[rank])[i]


@njit(nogil=True)
def _record(table, rank, i):  # type: ignore[no-untyped-def]
    if table[w.RECORDS]:
        return table[w.RECORDS] + ((rank - table[w.RANK]) * table[w.NCALLS] + i) * _RECORD_NBYTES
    return record_of(table[w.LOG], table[w.FIRST] + i)
