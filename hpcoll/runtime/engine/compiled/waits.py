"""Compiled: for calls of which it is known when each rank began them, who came last, and how long this rank waited for it."""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import pointer
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import wait_fields as w

_COLLECTIVE, _ROOT = (1 << w.COLLECTIVE_BITS) - 1, (1 << w.ROOT_BITS) - 1
_ELEMENT = (1 << f.ELEMENT_BITS) - 1


@njit(nogil=True)
def compare(address):  # type: ignore[no-untyped-def]
    """Compare the calls of a table (`hpcoll.runtime.program.wait_fields`). Service collectives are nobody's."""
    table = pointer(address)
    for i in range(table[w.NCALLS]):
        record = pointer(table[w.RECORDS] + 8 * f.RECORD_NFIELDS * i)
        pointer(table[w.OWNER])[i], pointer(table[w.WAITED])[i] = w.NOBODY, 0
        signature = record[0]
        kind, root = pointer(table[w.KINDS])[signature & _COLLECTIVE], signature >> w.ROOT_AT & _ROOT
        rooted = kind in (w.FROM_ROOT, w.TO_ROOT) or signature >> f.ELEMENT_AT & _ELEMENT == w.OBJECT
        if rooted or root == 0:
            _compare_one(address, i, kind, root)
    return f.DONE


@njit(nogil=True)
def _compare_one(address, i, kind, root):  # type: ignore[no-untyped-def]
    table = pointer(address)
    me, nranks, record = table[w.RANK], table[w.NRANKS], pointer(table[w.RECORDS] + 8 * f.RECORD_NFIELDS * i)
    begun, sums = _arrival(table, me, i), pointer(table[w.SUMS])
    owner, latest, before, others = w.NOBODY, begun, 0, 0  # among those that this rank awaits; the latest of all others
    for rank in range(nranks):
        when = _arrival(table, rank, i)
        if rank != me:
            others = max(others, when)
        if when > latest and _awaited(table, kind, root, rank):
            owner, latest = rank, when
    first, last = record[f.ITS_BEGIN], record[f.ITS_END]
    hidden = 0
    if table[w.IN_FLIGHT]:
        hidden = last - first
        first, last = record[f.ITS_WAIT_BEGIN], record[f.ITS_WAIT_END]
        hidden = max(0, hidden - (last - first))
    waited = min(last - first, latest - begun - (first - record[f.ITS_BEGIN])) if owner != w.NOBODY else 0
    if waited <= table[w.LEAST]:
        owner, waited = w.NOBODY, 0
    sums[w.CALLS] += 1
    sums[w.WAITED_NS] += waited
    sums[w.MOVED_NS] += last - first - waited
    sums[w.HIDDEN_NS] += hidden
    awaits_me = (kind != w.FROM_ROOT or me == root) and (kind != w.TO_ROOT or me != root)
    sums[w.LAST] += awaits_me and begun - others > table[w.LEAST]
    if owner == w.NOBODY:
        return
    pointer(table[w.OWNER])[i], pointer(table[w.WAITED])[i] = owner, waited
    share = waited // (1 if kind == w.TO_ROOT else nranks - 1)
    pointer(table[w.WAITED_FOR])[owner] += waited
    pointer(table[w.CAUSED])[owner] += share
    if i:
        before = _spent(table, owner, i) - _spent(table, owner, i - 1)
    pointer(table[w.INHERITED])[owner] += min(share, before)


@njit(nogil=True)
def _awaited(table, kind, root, rank):  # type: ignore[no-untyped-def]
    """Say whether a rank waits for another one in a call."""
    if kind == w.FROM_ROOT:
        return rank == root
    if kind == w.TO_ROOT:
        return table[w.RANK] == root
    if kind == w.BEFORE:
        return rank < table[w.RANK]
    return kind == w.ALL or pointer(table[w.NEIGHBOURS])[rank] != 0


@njit(nogil=True)
def _arrival(table, rank, i):  # type: ignore[no-untyped-def]
    return pointer(pointer(table[w.ARRIVALS])[rank])[2 * i]


@njit(nogil=True)
def _spent(table, rank, i):  # type: ignore[no-untyped-def]
    return pointer(pointer(table[w.ARRIVALS])[rank])[2 * i + 1]
