"""Compiled: addresses, copies and reductions within one rank, also of messages that lie in a peer's own memory.

The receiver reads such a message with ``process_vm_readv``: the kernel copies it once. Linux calls that cross memory attach. Until then
a negative number stands for its address, with the sender's local rank and the address in its process.
"""

from time import CLOCK_MONOTONIC

from numba import njit

from hpcoll.runtime.engine.compiled import ffi
from hpcoll.runtime.engine.compiled.ffi import (
    LONG,
    VOID,
    c_function,
    copy_line,
    fence,
    memcpy,
    pointer,
    store_uncached,
)
from hpcoll.runtime.engine.compiled.mapped_ops import move
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import BUFFERS, CACHE_LINE_NBYTES, MESSAGES, PINNED, STAGING, Code

SLOW_WRITES = 16  # of what counts slow writes, from which on they are no accident
CLOCK_MONOTONIC_COARSE, CLOCK_THREAD = 6, 3  # Linux
_LONG_NBYTES = 1024  # from here on a copy goes line by line
_COPY, _STAGE, _ACK, _OUTPUT, _SCRATCH = int(Code.COPY), int(Code.STAGE), int(Code.ACK), 1, BUFFERS - 1

_FOREIGN = -1 << 63
_ADDRESS = (1 << f.OFFSET_BITS) - 1
_RANK = (1 << 63 - f.OFFSET_BITS) - 1
_fold = c_function(VOID, LONG, LONG, LONG, LONG)  # destination, sources, number of sources, count


@njit(nogil=True, forceinline=True)
def staging_slot(state, window_slot):  # type: ignore[no-untyped-def]
    """Return the staging slot of a window slot's lane in this call: short calls take all in turn, for fresh memory."""
    return (window_slot + state[f.FIRST_STAGING_SLOT]) % f.STAGING_SLOTS


@njit(nogil=True, forceinline=True)
def staging_of(state, lane):  # type: ignore[no-untyped-def]
    """Return the offset of a lane's staging memory in this rank's staging slots."""
    rings, slot = pointer(state[f.RINGS]), staging_slot(state, lane % state[f.WINDOW])
    return slot * rings[f.CAPACITY] + pointer(rings[f.USED])[3 * slot + 1]


@njit(nogil=True, forceinline=True)
def address_of(state, buffer, displ, lane):  # type: ignore[no-untyped-def]
    """Return the address of a displacement in one of the buffers, seen from a lane."""
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


@njit(nogil=True, forceinline=True)
def length(state, row, source):  # type: ignore[no-untyped-def]
    """Return the bytes of a message at an address: all that its row has, or those of a cell."""
    if state[f.FORM] & f.CELLS == 0:
        return row[f.NBYTES]
    return min(row[f.NBYTES], f.CELL_HEAD_NBYTES + (pointer(source)[0] & f.CELL_FLAG - 1))


@njit(nogil=True)
def clock(function, room, which=CLOCK_MONOTONIC):  # type: ignore[no-untyped-def]
    """Return nanoseconds on a clock that only goes forward; ``function`` is ``clock_gettime``, which needs room for two words."""
    ffi.clock_gettime(function, (which, room))
    return pointer(room)[0] * 1000000000 + pointer(room)[1]


@njit(nogil=True)
def nanoseconds(address):  # type: ignore[no-untyped-def]
    """Return `clock` for an engine."""
    state = pointer(address)
    return clock(state[f.CLOCK_GETTIME], address + 8 * f.CLOCK)


@njit(nogil=True)
def last_tick(function, room):  # type: ignore[no-untyped-def]
    """Return `clock` as the system's timer last saw it, up to 4 ms ago: 5 ns where that takes 22."""
    return clock(function, room, CLOCK_MONOTONIC_COARSE)


@njit(nogil=True)
def on_core(address):  # type: ignore[no-untyped-def]
    """Return the nanoseconds that this thread has been on a core."""
    state = pointer(address)
    return clock(state[f.CLOCK_GETTIME], address + 8 * f.CLOCK, CLOCK_THREAD)


@njit(nogil=True)
def copy(state, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy bytes that do not overlap."""
    # Not long ones by memcpy: to an unaligned destination ``rep movsb`` writes 3 to 49 GB/s, this loop 49 to 79 (Zen 4, glibc 2.36, 8 to
    # 256 KiB).
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


@njit(nogil=True, forceinline=True)
def map_of(state, buffer):  # type: ignore[no-untyped-def]
    """Return the address of a buffer's map, or 0."""
    return state[f.INPUT_MAP + buffer] if 0 <= buffer <= _OUTPUT else 0


@njit(nogil=True)
def move_mapped(state, buffer, address, packed, nbytes, unpacks):  # type: ignore[no-untyped-def]
    """Copy bytes of a buffer that has a map to a packed copy, or from there; ``address`` is where they were if it had none."""
    start = state[f.INPUT + buffer]
    move(map_of(state, buffer), start, address - start, packed, nbytes, unpacks)


@njit(nogil=True, forceinline=True)
def foreign(peer, where):  # type: ignore[no-untyped-def]
    """Return the number that stands for the address of a message in a peer's own memory."""
    return _FOREIGN + (peer << f.OFFSET_BITS) + (where & _ADDRESS)


@njit(nogil=True)
def _read(address, pid, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Read another process's memory; return how many bytes could be read, or -1."""
    state = pointer(address)
    state[f.LOCAL_VECTOR], state[f.LOCAL_VECTOR + 1] = destination, nbytes
    state[f.REMOTE_VECTOR], state[f.REMOTE_VECTOR + 1] = source, nbytes
    vectors = (pid, address + 8 * f.LOCAL_VECTOR, 1, address + 8 * f.REMOTE_VECTOR, 1, 0)
    return ffi.process_vm_readv(state[f.PROCESS_VM_READV], vectors)


@njit(nogil=True)
def read_foreign(address, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Read a part of a message that `foreign` stands for: 1, or -1 where its sender has ended or freed that memory."""
    state = pointer(address)
    peer, done = source >> f.OFFSET_BITS & _RANK, 0
    pid = pointer(pointer(state[f.RINGS])[f.PIDS])[peer]
    while done < nbytes:
        found = _read(address, pid, destination + done, (source & _ADDRESS) + done, nbytes - done)
        if found <= 0:
            state[f.ERROR] = (
                f.UNREADABLE + (peer << 16) + ffi.load_int32(ffi.errno_location(state[f.ERRNO_LOCATION], ()))
            )
            return -1
        done += found
    return 1


@njit(nogil=True)
def lend_own_memory(address):  # type: ignore[no-untyped-def]
    """Let peers read the buffers of a new call in place, unless these are symmetric memory or cannot be read that way."""
    state = pointer(address)
    rings = pointer(state[f.RINGS])
    pid = pointer(rings[f.PIDS])[rings[f.LOCAL_RANK]]
    for buffer in range(2):
        own = state[f.INPUT + buffer]
        if state[f.WHERE_INPUT + buffer] < 0 and _read(address, pid, address + 8 * f.REREAD, own, 1) == 1:
            state[f.WHERE_INPUT + buffer] = (f.OWN_MEMORY << f.OFFSET_BITS) + own


@njit(nogil=True, forceinline=True)
def reads_in_place(state, rings, row):  # type: ignore[no-untyped-def]
    """Say whether peers read a STAGE's or POST's message in place: in symmetric memory always, in this rank's own if it is long."""
    where = state[f.WHERE_INPUT + row[f.BUFFER]] if row[f.IN_PLACE] else -1
    return where >= 0 and (where < f.OWN_MEMORY << f.OFFSET_BITS or row[f.NBYTES] >= rings[f.READ_FROM])


@njit(nogil=True)
def _staged_next(state, row, lane):  # type: ignore[no-untyped-def]
    """Return where the STAGE that follows a REDUCE, behind acknowledgements, stages its result; 0 where none follows."""
    at = f.NCOLUMNS
    for _ in range(row[f.NSOURCES]):
        at += f.NCOLUMNS if row[at + f.CODE] == _ACK else 0
    alike = (
        row[at + f.BUFFER] == row[f.TO_BUFFER]
        and row[at + f.DISPL] == row[f.TO_DISPL]
        and row[at + f.NBYTES] == row[f.REDUCED_NBYTES]
    )
    if row[at + f.CODE] != _STAGE or not alike:
        return 0
    if row[at + f.IN_PLACE] and state[f.WHERE_INPUT + row[f.TO_BUFFER]] >= 0:
        return 0
    return pointer(state[f.RINGS])[f.STAGING_AT] + staging_of(state, lane) + row[at + f.STAGED_DISPL]


@njit(nogil=True)
def _fold_uncached(address, destination, nsources, count, size, staged):  # type: ignore[no-untyped-def]
    """Fold the operands into memory too large for the caches, block by block; each is written past them, and staged if wanted."""
    state = pointer(address)
    block = f.BLOCK_NBYTES // size
    slow = staged != 0 and pointer(state[f.RINGS])[f.SLOW_WRITES] >= SLOW_WRITES
    for lo in range(0, count, block):
        n = min(block, count - lo)
        _fold(state[f.KERNEL], (state[f.BLOCK], address + 8 * f.OPERANDS, nsources, n))
        copy_uncached(state, destination + lo * size, state[f.BLOCK], n * size)
        if slow:
            copy_uncached(state, staged + lo * size, state[f.BLOCK], n * size)
        elif staged != 0:
            copy(state, staged + lo * size, state[f.BLOCK], n * size)
        for i in range(nsources):
            state[f.OPERANDS + i] += n * size


@njit(nogil=True)
def _source(state, row, i, lane):  # type: ignore[no-untyped-def]
    at = pointer(state[f.SOURCES] + 16 * (row[f.FIRST_SOURCE] + i))
    return address_of(state, at[0], at[1], lane)


@njit(nogil=True)
def _reduce(address, row, lane, destination):  # type: ignore[no-untyped-def]
    """Run a REDUCE: 1, or -1 where a peer's own memory cannot be read."""
    state, nforeign = pointer(address), 0
    uncached = state[f.BLOCK] != 0 and row[f.TO_BUFFER] == _OUTPUT
    for i in range(row[f.NSOURCES]):
        source = _source(state, row, i, lane)
        state[f.OPERANDS + i] = source
        nforeign += source < 0
        uncached &= source != destination
    staged = _staged_next(state, row, lane) if uncached and nforeign == 0 else 0
    if nforeign:
        if _reduce_foreign(address, row, lane, destination, nforeign, uncached) < 0:
            return -1
    elif uncached:
        _fold_uncached(
            address, destination, row[f.NSOURCES], row[f.COUNT], row[f.REDUCED_NBYTES] // row[f.COUNT], staged
        )
        state[f.HANDED_OUT] = staged != 0
    else:
        _fold(state[f.KERNEL], (destination, address + 8 * f.OPERANDS, row[f.NSOURCES], row[f.COUNT]))
    if uncached:
        fence()
    return 1


@njit(nogil=True)
def _reduce_foreign(address, row, lane, destination, nforeign, uncached):  # type: ignore[no-untyped-def]
    """Reduce piece by piece; those in peers' own memory are read first, to where they stay in the cache."""
    state, count, nsources = pointer(address), row[f.COUNT], row[f.NSOURCES]
    size, room = (
        row[f.REDUCED_NBYTES] // count,
        f.PIECES_NBYTES // nforeign // CACHE_LINE_NBYTES * CACHE_LINE_NBYTES,
    )
    piece = room // size
    for lo in range(0, count, piece):
        n, to = min(piece, count - lo), pointer(state[f.RINGS])[f.PIECES_AT]
        for i in range(nsources):
            source = _source(state, row, i, lane) + lo * size
            if source < 0:
                if read_foreign(address, to, source, n * size) < 0:
                    return -1
                state[f.REREAD] += n * size
                source, to = to, to + room
            state[f.OPERANDS + i] = source
        if uncached:
            _fold_uncached(address, destination + lo * size, nsources, n, size, 0)
        else:
            _fold(state[f.KERNEL], (destination + lo * size, address + 8 * f.OPERANDS, nsources, n))
    return 1


@njit(nogil=True)
def _copy_mapped(address, row, destination, source):  # type: ignore[no-untyped-def]
    """Run a COPY from or to a buffer that has a map: 1, or -1 where a peer's own memory cannot be read."""
    state, nbytes = pointer(address), row[f.NBYTES]
    if map_of(state, row[f.TO_BUFFER]) == 0:
        move_mapped(state, row[f.BUFFER], source, destination, nbytes, False)
    elif map_of(state, row[f.BUFFER]) == 0 and source >= 0:
        move_mapped(state, row[f.TO_BUFFER], destination, source, nbytes, True)
    else:
        for lo in range(0, nbytes, f.BOUNCE_NBYTES):
            n = min(f.BOUNCE_NBYTES, nbytes - lo)
            if source >= 0:
                move_mapped(state, row[f.BUFFER], source + lo, state[f.BOUNCE], n, False)
            elif read_foreign(address, state[f.BOUNCE], source + lo, n) < 0:
                return -1
            move_mapped(state, row[f.TO_BUFFER], destination + lo, state[f.BOUNCE], n, True)
    return 1


@njit(nogil=True)
def run_local(address, row, lane):  # type: ignore[no-untyped-def]
    """Run a COPY or REDUCE, which never wait: 1, or -1 where a peer's own memory cannot be read."""
    state = pointer(address)
    if row[f.CODE] != _COPY and row[f.COUNT] == 0:
        return 1
    destination = address_of(state, row[f.TO_BUFFER], row[f.TO_DISPL], lane)
    if row[f.CODE] != _COPY:
        return _reduce(address, row, lane, destination)
    source = address_of(state, row[f.BUFFER], row[f.DISPL], lane)
    if map_of(state, row[f.TO_BUFFER]) or map_of(state, row[f.BUFFER]):
        return _copy_mapped(address, row, destination, source)
    if source < 0:
        return read_foreign(address, destination, source, row[f.NBYTES])
    if state[f.BLOCK] != 0 and row[f.TO_BUFFER] == _OUTPUT:
        copy_uncached(state, destination, source, row[f.NBYTES])
        fence()
    else:
        copy(state, destination, source, length(state, row, source))
    return 1
