"""Compiled: addresses, copies and reductions within one rank."""

from numba import njit

from hpcoll.runtime.engine.ffi import LONG, VOID, c_function, clock_gettime, copy_line, fence, memcpy, pointer, store_uncached
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import BUFFERS, CACHE_LINE_NBYTES, MESSAGES, PINNED, STAGING, Code

_LONG_NBYTES = 1024  # from here on a copy goes line by line
_COPY, _OUTPUT, _SCRATCH = int(Code.COPY), 1, BUFFERS - 1

_fold = c_function(VOID, LONG, LONG, LONG, LONG)  # destination, sources, number of sources, count


@njit(nogil=True, forceinline=True)
def staging_slot(state, window_slot):  # type: ignore[no-untyped-def]
    """Which staging slot the lane of a window slot uses in this call: short calls take all in turn, for fresh memory."""
    return (window_slot + state[f.FIRST_STAGING_SLOT]) % f.STAGING_SLOTS


@njit(nogil=True, forceinline=True)
def staging_of(state, lane):  # type: ignore[no-untyped-def]
    """Offset of a lane's staging memory in this rank's staging slots."""
    rings, slot = pointer(state[f.RINGS]), staging_slot(state, lane % state[f.WINDOW])
    return slot * rings[f.CAPACITY] + pointer(rings[f.USED])[3 * slot + 1]


@njit(nogil=True, forceinline=True)
def address_of(state, buffer, displ, lane):  # type: ignore[no-untyped-def]
    """Address of a displacement in one of the buffers, seen from a lane."""
    window_slot = lane % state[f.WINDOW]
    if buffer == _SCRATCH:
        return state[f.SCRATCH] + window_slot * state[f.SCRATCH_PER_LANE] + displ
    if buffer >= MESSAGES:
        return pointer(state[f.LANDED])[window_slot * state[f.NMESSAGES] + buffer - MESSAGES] + displ
    if buffer == STAGING:
        return pointer(state[f.RINGS])[f.STAGING_AT] + staging_of(state, lane) + displ
    if buffer == PINNED:
        gpu = pointer(state[f.GPU])
        return gpu[f.PINNED] + window_slot * gpu[f.PINNED_PER_LANE] + displ
    return state[f.INPUT + buffer] + pointer(state[f.LANES])[3 * lane + 2] + displ


@njit(nogil=True)
def clock(function, room):  # type: ignore[no-untyped-def]
    """Nanoseconds on a clock that only goes forward; ``function`` is ``clock_gettime``, which needs room for two words."""
    clock_gettime(function, (1, room))
    return pointer(room)[0] * 1000000000 + pointer(room)[1]


@njit(nogil=True)
def nanoseconds(address):  # type: ignore[no-untyped-def]
    """The clock, for an engine."""
    state = pointer(address)
    return clock(state[f.CLOCK_GETTIME], address + 8 * f.CLOCK)


@njit(nogil=True)
def copy(state, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy bytes that do not overlap. Not long ones by memcpy: with ``rep movsb`` it writes 3 to 49 GB/s to an unaligned destination
    where this loop writes 49 to 79 (Zen 4, glibc 2.36, 8 to 256 KiB).
    """
    body = nbytes - nbytes % CACHE_LINE_NBYTES if nbytes >= _LONG_NBYTES else 0
    for at in range(0, body, CACHE_LINE_NBYTES):
        copy_line(destination + at, source + at)
    memcpy(state[f.MEMCPY], (destination + body, source + body, nbytes - body))


@njit(nogil=True)
def copy_uncached(state, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy past the caches."""
    head = min(nbytes, -destination % CACHE_LINE_NBYTES)
    tail = (nbytes - head) % CACHE_LINE_NBYTES
    memcpy(state[f.MEMCPY], (destination, source, head))
    for at in range(head, nbytes - tail, CACHE_LINE_NBYTES):
        store_uncached(destination + at, source + at)
    memcpy(state[f.MEMCPY], (destination + nbytes - tail, source + nbytes - tail, tail))


@njit(nogil=True)
def _fold_uncached(address, destination, row):  # type: ignore[no-untyped-def]
    """REDUCE into memory that is too large to stay in the caches: block by block, each streamed out."""
    state = pointer(address)
    operands = address + 8 * f.OPERANDS
    nbytes, count, nsources = row[f.REDUCED_NBYTES], row[f.COUNT], row[f.NSOURCES]
    block = f.BLOCK_NBYTES // (nbytes // count)
    for lo in range(0, count, block):
        n = min(block, count - lo)
        _fold(state[f.KERNEL], (state[f.BLOCK], operands, nsources, n))
        copy_uncached(state, destination + lo * (nbytes // count), state[f.BLOCK], n * (nbytes // count))
        for i in range(nsources):
            state[f.OPERANDS + i] += n * (nbytes // count)


@njit(nogil=True)
def run_local(address, row, lane):  # type: ignore[no-untyped-def]
    """COPY and REDUCE, which never wait: 1."""
    state = pointer(address)
    if row[f.CODE] != _COPY and row[f.COUNT] == 0:
        return 1
    destination = address_of(state, row[f.TO_BUFFER], row[f.TO_DISPL], lane)
    uncached = state[f.BLOCK] != 0 and row[f.TO_BUFFER] == _OUTPUT
    if row[f.CODE] == _COPY:
        source = address_of(state, row[f.BUFFER], row[f.DISPL], lane)
        if uncached:
            copy_uncached(state, destination, source, row[f.NBYTES])
        else:
            copy(state, destination, source, row[f.NBYTES])
    else:
        sources = pointer(state[f.SOURCES])
        for i in range(row[f.NSOURCES]):
            at = 2 * (row[f.FIRST_SOURCE] + i)
            state[f.OPERANDS + i] = address_of(state, sources[at], sources[at + 1], lane)
            uncached &= state[f.OPERANDS + i] != destination
        if uncached:
            _fold_uncached(address, destination, row)
        else:
            _fold(state[f.KERNEL], (destination, address + 8 * f.OPERANDS, row[f.NSOURCES], row[f.COUNT]))
    if uncached:
        fence()
    return 1
