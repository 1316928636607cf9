"""Compiled: addresses, copies and reductions within one rank."""

from numba import njit

from hpcoll.runtime.engine.cross_memory import read_foreign
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
def _fold_uncached(address, destination, nsources, count, size):  # type: ignore[no-untyped-def]
    """Fold the operands into memory that is too large to stay in the caches: block by block, each streamed out."""
    state = pointer(address)
    block = f.BLOCK_NBYTES // size
    for lo in range(0, count, block):
        n = min(block, count - lo)
        _fold(state[f.KERNEL], (state[f.BLOCK], address + 8 * f.OPERANDS, nsources, n))
        copy_uncached(state, destination + lo * size, state[f.BLOCK], n * size)
        for i in range(nsources):
            state[f.OPERANDS + i] += n * size


@njit(nogil=True, forceinline=True)
def _source(state, row, i, lane):  # type: ignore[no-untyped-def]
    at = pointer(state[f.SOURCES] + 16 * (row[f.FIRST_SOURCE] + i))
    return address_of(state, at[0], at[1], lane)


@njit(nogil=True)
def _reduce(address, row, lane, destination):  # type: ignore[no-untyped-def]
    """REDUCE: at once; where sources lie in peers' own memory, piece by piece, which are read first. 1, or -1 where they cannot be."""
    state, count, nsources = pointer(address), row[f.COUNT], row[f.NSOURCES]
    size, nforeign = row[f.REDUCED_NBYTES] // count, 0
    uncached = state[f.BLOCK] != 0 and row[f.TO_BUFFER] == _OUTPUT
    for i in range(nsources):
        source = _source(state, row, i, lane)
        nforeign += source < 0
        uncached &= source != destination
    room = f.PIECES_NBYTES // max(1, nforeign) // CACHE_LINE_NBYTES * CACHE_LINE_NBYTES
    piece = min(count, room // size) if nforeign else count
    for lo in range(0, count, piece):
        n, to = min(piece, count - lo), pointer(state[f.RINGS])[f.PIECES_AT] if nforeign else 0
        for i in range(nsources):
            source = _source(state, row, i, lane) + lo * size
            if source < 0:
                if read_foreign(address, to, source, n * size) < 0:
                    return -1
                state[f.REREAD] += n * size
                source, to = to, to + room
            state[f.OPERANDS + i] = source
        if uncached:
            _fold_uncached(address, destination + lo * size, nsources, n, size)
        else:
            _fold(state[f.KERNEL], (destination + lo * size, address + 8 * f.OPERANDS, nsources, n))
    if uncached:
        fence()
    return 1


@njit(nogil=True)
def run_local(address, row, lane):  # type: ignore[no-untyped-def]
    """COPY and REDUCE, which never wait: 1, or -1 where a peer's own memory cannot be read."""
    state = pointer(address)
    if row[f.CODE] != _COPY and row[f.COUNT] == 0:
        return 1
    destination = address_of(state, row[f.TO_BUFFER], row[f.TO_DISPL], lane)
    if row[f.CODE] != _COPY:
        return _reduce(address, row, lane, destination)
    source = address_of(state, row[f.BUFFER], row[f.DISPL], lane)
    if source < 0:
        return read_foreign(address, destination, source, row[f.NBYTES])
    if state[f.BLOCK] != 0 and row[f.TO_BUFFER] == _OUTPUT:
        copy_uncached(state, destination, source, row[f.NBYTES])
        fence()
    else:
        copy(state, destination, source, row[f.NBYTES])
    return 1
