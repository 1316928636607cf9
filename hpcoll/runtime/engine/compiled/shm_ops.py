"""Compiled: messages between local peers (`hpcoll.runtime.transports.rings` draws their memory)."""

from numba import njit

from hpcoll.runtime.engine.compiled import local_ops
from hpcoll.runtime.engine.compiled.checks import CHECK_BITS
from hpcoll.runtime.engine.compiled.ffi import fence, load_acquire, madvise, memcpy, pointer, store_release
from hpcoll.runtime.engine.compiled.gpu_ops import address_at, where_of
from hpcoll.runtime.engine.compiled.local_ops import (
    SLOW_WRITES,
    address_of,
    length,
    reads_in_place,
    staging_of,
    staging_slot,
)
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES, INLINE_NBYTES, STAGING, Code
from hpcoll.schedules.ir import RING_SLOTS

_STAGE, _POST, _AWAIT, _ACK, _DRAIN, _UNREAD = (
    int(c) for c in (Code.STAGE, Code.POST, Code.AWAIT, Code.ACK, Code.DRAIN, Code.UNREAD)
)
# The word that announces a message: its number, which the slot has not held before; a check of the call; and its length.
_LENGTH_BITS = 28
_NUMBER_AT = _LENGTH_BITS + CHECK_BITS
_NUMBERS, _CHECKS = (1 << 63 - _NUMBER_AT) - 1, (1 << CHECK_BITS) - 1

# A core writes five times faster to memory than to lines in the cache of a core with which it shares none; to a shared cache it writes
# twice as fast. So a writer times what it writes in the caches, and when that was slow, only tries again at times.
_UNCACHED_NBYTES = 4096  # shorter pieces stay in the cache
_PROBE_NBYTES = 16384  # of a message worth timing
_FAST_BYTES_PER_NS = 8
_SLOW = 8  # what a slow write counts against a fast one
_INTERRUPTED = 30  # times as long: the system let another process run meanwhile
_TRIAL = 32  # lanes
# Where writes are slow, reading in the sender's own memory may be faster: calls of a kind try both ways, and again after so many calls.
_TRIALS, _TURNS, _READ_GAIN, _NOT_TIMED = 8, 1024, 0.95, 1 << 40
_NEAR_NBYTES = 16384  # of a slot: short messages go beyond only while those before still hold messages
_MOST_AHEAD_NBYTES = 256 << 10  # of a slot: longer ones are given pages as they need them
_REFUSED = -1  # the system had no pages for all slots


@njit(nogil=True, forceinline=True)
def _acks(rings, reader, writer):  # type: ignore[no-untyped-def]
    """Return the address of the cache line in which a reader acknowledges the messages of a writer."""
    return rings[f.ACKS_AT] + (reader * rings[f.NLOCAL] + writer) * CACHE_LINE_NBYTES


@njit(nogil=True, forceinline=True)
def _unread(rings, peer, slot):  # type: ignore[no-untyped-def]
    """Return how many of the messages posted to a peer in this slot it has not yet used."""
    at = slot * rings[f.NLOCAL] + peer
    sent, acked = pointer(rings[f.SENT])[at], pointer(rings[f.ACKED])
    if acked[at] < sent:
        acked[at] = load_acquire(_acks(rings, peer, rings[f.LOCAL_RANK]) + 8 * slot)
    return sent - acked[at]


@njit(nogil=True, forceinline=True)
def _ring_slot(rings, source, destination, slot, number):  # type: ignore[no-untyped-def]
    """Return the address of the ring slot of a numbered message."""
    nlocal = rings[f.NLOCAL]
    return (
        rings[f.SLOTS_AT]
        + (((slot * nlocal + source) * nlocal + destination) * RING_SLOTS + number % RING_SLOTS)
        * CACHE_LINE_NBYTES
    )


@njit(nogil=True, forceinline=True)
def _is_inline(state, nbytes):  # type: ignore[no-untyped-def]
    """Say whether a message travels in its ring slot; no GPU reads or writes there."""
    return nbytes <= INLINE_NBYTES and state[f.GPU] == 0


@njit(nogil=True)
def _post(state, rings, row, lane, slot):  # type: ignore[no-untyped-def]
    """Run a POST; 0 while all ring slots to the peer hold messages that it has not used."""
    peer, at = row[f.LOCAL_PEER], slot * rings[f.NLOCAL] + row[f.LOCAL_PEER]
    sent = pointer(rings[f.SENT])
    number = sent[at]
    if number - pointer(rings[f.ACKED])[at] >= RING_SLOTS and _unread(rings, peer, slot) >= RING_SLOTS:
        return 0
    ring_slot = _ring_slot(rings, rings[f.LOCAL_RANK], peer, slot, number)
    source, nbytes = address_of(state, row[f.BUFFER], row[f.DISPL], lane), row[f.NBYTES]
    if state[f.FORM]:
        nbytes = length(state, row, source)
    if state[f.GPU] and row[f.IN_PLACE]:
        where = where_of(state, source)
        if where < 0:
            state[f.ERROR] = f.UNMAPPED
            return -1
        pointer(ring_slot)[1] = where
    elif _is_inline(state, nbytes):
        memcpy(state[f.MEMCPY], (ring_slot + 8, source, nbytes))
    elif reads_in_place(state, rings, row):
        pointer(ring_slot)[1] = (
            state[f.WHERE_INPUT + row[f.BUFFER]] + pointer(state[f.LANES])[3 * lane + 2] + row[f.DISPL]
        )
    else:
        pointer(ring_slot)[1] = rings[f.STAGING_WHERE] + staging_of(state, lane) + row[f.STAGED_DISPL]
    store_release(
        ring_slot, ((number + 1 & _NUMBERS) << _NUMBER_AT) + (state[f.CHECKED] << _LENGTH_BITS) + nbytes
    )
    sent[at] = number + 1
    return 1


@njit(nogil=True)
def _await(state, rings, row, lane, slot):  # type: ignore[no-untyped-def]
    """Run an AWAIT; 0 while the message is not there, -1 when it is of another call, or has another length."""
    taken, at = pointer(rings[f.TAKEN]), slot * rings[f.NLOCAL] + row[f.LOCAL_PEER]
    number = taken[at]
    ring_slot = _ring_slot(rings, row[f.LOCAL_PEER], rings[f.LOCAL_RANK], slot, number)
    announced = load_acquire(ring_slot)
    if announced >> _NUMBER_AT != number + 1 & _NUMBERS:
        return 0
    if announced >> _LENGTH_BITS & _CHECKS != state[f.CHECKED]:
        state[f.ERROR] = f.MISMATCH
        return -1
    nbytes = announced & ((1 << _LENGTH_BITS) - 1)
    if nbytes != row[f.NBYTES] and not (state[f.FORM] & f.CELLS and nbytes < row[f.NBYTES]):
        state[f.ERROR], state[f.CAME], state[f.AWAITED] = state[f.TRUNCATED], nbytes, row[f.NBYTES]
        return -1
    data, where = ring_slot + 8, pointer(ring_slot)[1]
    if not _is_inline(state, nbytes):
        if where >> f.OFFSET_BITS < f.FIRST_SLOT:
            data = pointer(rings[f.BASES])[where >> f.OFFSET_BITS] + (where & ((1 << f.OFFSET_BITS) - 1))
        elif where >> f.OFFSET_BITS == f.OWN_MEMORY:
            data = local_ops.foreign(row[f.LOCAL_PEER], where)
        else:
            data = address_at(state, row[f.LOCAL_PEER], where) if state[f.GPU] else 0
    if data == 0:
        state[f.ERROR] = f.UNMAPPED
        return -1
    pointer(state[f.LANDED])[lane % state[f.WINDOW] * state[f.NMESSAGES] + row[f.MESSAGE_SLOT]] = data
    taken[at] = number + 1
    return 1


@njit(nogil=True)
def _stage(address, rings, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy into a staging slot, past the caches where that is better."""
    state = pointer(address)
    if rings[f.SLOW_WRITES] >= SLOW_WRITES and nbytes >= _UNCACHED_NBYTES and rings[f.STAGED] % _TRIAL:
        local_ops.copy_uncached(state, destination, source, nbytes)
        fence()
    elif nbytes < _PROBE_NBYTES:
        local_ops.copy(state, destination, source, nbytes)
    else:
        start = local_ops.nanoseconds(address)
        local_ops.copy(state, destination, source, nbytes)
        elapsed, fast = local_ops.nanoseconds(address) - start, nbytes // _FAST_BYTES_PER_NS
        if elapsed > _INTERRUPTED * fast:
            return
        slow = elapsed > fast
        rings[f.SLOW_WRITES] = (
            min(rings[f.SLOW_WRITES] + _SLOW, 4 * SLOW_WRITES) if slow else max(rings[f.SLOW_WRITES] - 1, 0)
        )


@njit(nogil=True)
def _reserve(state, rings, slot):  # type: ignore[no-untyped-def]
    """Run a RESERVE: take the next free bytes of the slot; from its start again only when all that was staged there has been used.

    Short messages go round in a few pages, since the first touch of a page costs more than they do. Longer ones gain from memory that is in
    no other core's cache. -1: the system has no memory.
    """
    used = pointer(rings[f.USED] + 24 * slot)
    nbytes = state[f.STAGING_OF_LANE]
    end = used[0] + nbytes
    far = nbytes >= _UNCACHED_NBYTES and state[f.FORM] & f.CELLS == 0  # cells are short, as a rule
    most = rings[f.CAPACITY] if far else _NEAR_NBYTES
    if end > most and used[0] > 0:
        unread = 0
        for peer in range(rings[f.NLOCAL]):
            unread += _unread(rings, peer, slot)
        if unread == 0:
            used[0] = 0
        elif end > rings[f.CAPACITY]:
            return 0
    used[1] = used[0]
    used[0] += nbytes
    rings[f.STAGED] += 1
    return 1 if max(used[0], most) <= used[2] else _populate(state, rings, slot, most)


@njit(nogil=True)
def _populate(state, rings, slot, most):  # type: ignore[no-untyped-def]
    """Give a staging slot pages up to its lane's end, and some more: 1, or -1 where the system has none.

    Where lanes go round in ``most`` bytes a second time, all slots get so many at once, so that no later call pays for its own.
    """
    end, asked = pointer(rings[f.USED] + 24 * slot)[0], rings[f.ASKED_PAGES]
    if _NEAR_NBYTES < most <= _MOST_AHEAD_NBYTES and asked != _REFUSED:
        rings[f.ASKED_PAGES] = max(asked, most)
        if asked >= most:
            for each in range(f.STAGING_SLOTS):
                if not _give_pages(state, rings, each, most):
                    rings[f.ASKED_PAGES] = _REFUSED
    end = min(rings[f.CAPACITY], -(-end // rings[f.POPULATED_AT_ONCE]) * rings[f.POPULATED_AT_ONCE])
    if _give_pages(state, rings, slot, end):
        return 1
    state[f.ERROR] = f.FULL
    return -1


@njit(nogil=True)
def _give_pages(state, rings, slot, end):  # type: ignore[no-untyped-def]
    """Give a staging slot pages up to an end; say whether it has them."""
    used = pointer(rings[f.USED] + 24 * slot)
    first = rings[f.STAGING_AT] + slot * rings[f.CAPACITY] + used[2]
    if used[2] < end and madvise(state[f.MADVISE], (first, end - used[2], f.MADV_POPULATE_WRITE)) == 0:
        used[2] = end
    return used[2] >= end


@njit(nogil=True)
def _takes_reading(state):  # type: ignore[no-untyped-def]
    """Say whether peers read a call's messages in its own memory: tried in turns with staging at times, else if it is faster."""
    turn = state[f.TURNS] % _TURNS
    if turn == 0:
        state[f.STAGED_NS] = state[f.READ_NS] = _NOT_TIMED
    state[f.TURNS] += 1
    return turn % 2 if turn < _TRIALS else int(state[f.READ_NS] < _READ_GAIN * state[f.STAGED_NS])


@njit(nogil=True)
def end_shm(state, elapsed):  # type: ignore[no-untyped-def]
    """Note how many nanoseconds a call took, read in place or staged."""
    route = f.READ_NS if state[f.READS] else f.STAGED_NS
    state[route] = min(state[route], 4096 * elapsed // max(1, state[f.LEDGER_NBYTES]))


@njit(nogil=True)
def begin_shm(address):  # type: ignore[no-untyped-def]
    """Take the staging slots of a new call, and decide whether peers may read its buffers in place."""
    state = pointer(address)
    rings = pointer(state[f.RINGS])
    state[f.FIRST_STAGING_SLOT] = pointer(state[f.LOG])[f.CALLS] % f.STAGING_SLOTS
    state[f.WHERE_INPUT] = state[f.WHERE_OUTPUT] = -1
    ranges = pointer(rings[f.RANGES])
    for i in range(pointer(rings[f.NRANGES])[0]):
        for buffer in range(2):
            offset = state[f.INPUT + buffer] - ranges[3 * i]
            if offset >= 0 and state[f.INPUT + buffer] < ranges[3 * i + 1]:
                state[f.WHERE_INPUT + buffer] = ranges[3 * i + 2] + offset
    slow = state[f.LEDGER_NBYTES] >= rings[f.READ_FROM_SLOW] and rings[f.SLOW_WRITES] >= SLOW_WRITES
    state[f.READS] = _takes_reading(state) if slow else 0
    rings[f.READ_FROM] = rings[f.READ_FROM_SLOW] if state[f.READS] else rings[f.READ_FROM_USUALLY]
    if state[f.LEDGER_NBYTES] >= rings[f.READ_FROM]:
        local_ops.lend_own_memory(address)
    state[f.REREAD] = 0


@njit(nogil=True)
def run_shm(address, row, lane):  # type: ignore[no-untyped-def]
    """Run an operation on shared memory: 0 while it has to wait, -1 when it failed."""
    state = pointer(address)
    rings, slot, code = pointer(state[f.RINGS]), staging_slot(state, lane % state[f.WINDOW]), row[f.CODE]
    if state[f.FORM] == f.PART and code <= _ACK and row[f.NBYTES] == 0:
        return 1
    if code == _POST:
        return _post(state, rings, row, lane, slot)
    if code == _AWAIT:
        return _await(state, rings, row, lane, slot)
    if code == _ACK:
        at = _acks(rings, rings[f.LOCAL_RANK], row[f.LOCAL_PEER]) + 8 * slot
        store_release(at, pointer(at)[0] + 1)
    elif code == _STAGE:
        if state[f.HANDED_OUT]:
            state[f.HANDED_OUT] = 0
        elif not reads_in_place(state, rings, row):
            source = address_of(state, row[f.BUFFER], row[f.DISPL], lane)
            nbytes = length(state, row, source)
            staged = address_of(state, STAGING, row[f.STAGED_DISPL], lane)
            if local_ops.map_of(state, row[f.BUFFER]):
                local_ops.move_mapped(state, row[f.BUFFER], source, staged, row[f.NBYTES], False)
            elif state[f.FORM] & f.CELLS == 0 or nbytes > INLINE_NBYTES:
                _stage(address, rings, staged, source, nbytes)
    elif code == _DRAIN:
        return int(state[f.WHERE_INPUT + row[f.BUFFER]] < 0 or _unread(rings, row[f.LOCAL_PEER], slot) == 0)
    elif code == _UNREAD:
        return int(_unread(rings, row[f.LOCAL_PEER], slot) <= row[f.ALLOWED])
    else:
        return _reserve(state, rings, slot)
    return 1
