"""Compiled: messages that lie in their sender's own memory, which the receiver reads with ``process_vm_readv``: copied once, by the kernel.

Linux calls it cross memory attach. Where such a message is stands for its address until it is used: a negative number, with the sender's
local rank and the address in its process.
"""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import errno_location, load_int32, pointer, process_vm_readv
from hpcoll.runtime.program import fields as f

_FOREIGN = -1 << 63
_ADDRESS = (1 << f.OFFSET_BITS) - 1
_RANK = (1 << 63 - f.OFFSET_BITS) - 1


@njit(nogil=True, forceinline=True)
def foreign(peer, where):  # type: ignore[no-untyped-def]
    """What stands for the address of a message in a peer's own memory."""
    return _FOREIGN + (peer << f.OFFSET_BITS) + (where & _ADDRESS)


@njit(nogil=True)
def _read(address, pid, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Bytes that could be read of a process's memory, or -1."""
    state = pointer(address)
    state[f.LOCAL_VECTOR], state[f.LOCAL_VECTOR + 1] = destination, nbytes
    state[f.REMOTE_VECTOR], state[f.REMOTE_VECTOR + 1] = source, nbytes
    vectors = (pid, address + 8 * f.LOCAL_VECTOR, 1, address + 8 * f.REMOTE_VECTOR, 1, 0)
    return process_vm_readv(state[f.PROCESS_VM_READV], vectors)


@njit(nogil=True)
def read_foreign(address, destination, source, nbytes):  # type: ignore[no-untyped-def]
    """Read a part of a message that `foreign` stands for: 1, or -1 when its sender has ended or has not that memory any more."""
    state = pointer(address)
    peer, done = source >> f.OFFSET_BITS & _RANK, 0
    pid = pointer(pointer(state[f.RINGS])[f.PIDS])[peer]
    while done < nbytes:
        found = _read(address, pid, destination + done, (source & _ADDRESS) + done, nbytes - done)
        if found <= 0:
            state[f.ERROR] = f.UNREADABLE + (peer << 16) + load_int32(errno_location(state[f.ERRNO_LOCATION], ()))
            return -1
        done += found
    return 1


@njit(nogil=True)
def lend_own_memory(address):  # type: ignore[no-untyped-def]
    """Let peers read the buffers of a new call where they lie, unless these are symmetric memory or nobody can read them that way."""
    state = pointer(address)
    rings = pointer(state[f.RINGS])
    pid = pointer(rings[f.PIDS])[rings[f.LOCAL_RANK]]
    for buffer in range(2):
        own = state[f.INPUT + buffer]
        if state[f.WHERE_INPUT + buffer] < 0 and _read(address, pid, address + 8 * f.REREAD, own, 1) == 1:
            state[f.WHERE_INPUT + buffer] = (f.OWN_MEMORY << f.OFFSET_BITS) + own
