"""Memory of GPUs that do not exist: files without a name, which the host sees under another address than the GPU's.

At the GPU's address nothing may be touched, unless the memory is managed or made readable. An address is used again as soon as memory
of its size is asked for, as allocators do.
"""

import ctypes
import mmap
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from cuda_double.failures import (
    ALREADY_MAPPED,
    ALREADY_REGISTERED,
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    PEER_ACCESS_UNSUPPORTED,
    require,
)
from hpcoll.runtime.gpu.cuda import IPC_HANDLE_NBYTES, MemoryType

PAGE = mmap.PAGESIZE
ALIGNMENT = 512
_NONE, _BOTH = 0, mmap.PROT_READ | mmap.PROT_WRITE
_FIXED, _NO_RESERVE = 0x10, 0x4000
_HANDLE = struct.Struct("<7q")  # process, file, inode, address, first byte, bytes, GPU

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_ssize_t
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(address: int | None, nbytes: int, protection: int, file: int = -1) -> int:
    flags = mmap.MAP_SHARED if file >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    found: int = _libc.mmap(address, nbytes, protection, flags | (_FIXED if address else 0), file, 0)
    if found == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def host_bytes(address: int, nbytes: int) -> np.ndarray:
    """Bytes that the host may touch, as an array that does not keep them."""
    return (
        np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))
        if nbytes
        else np.empty(0, np.uint8)
    )


@dataclass(eq=False)
class Allocation:
    """A run of memory that the driver knows.

    Attributes:
        number: Differs between all allocations of a process.
        backing: Where the double reads and writes it.
        file: Behind memory of a GPU, or -1.
        handle: What it was opened with; empty for this process's own.
    """

    address: int
    nbytes: int
    kind: MemoryType
    ordinal: int
    number: int
    backing: int
    file: int = -1
    managed: bool = False
    pooled: bool = False
    pinned: bool = False
    handle: bytes = b""

    @property
    def own(self) -> bool:
        """Say whether cuMemFree frees it."""
        return self.kind is MemoryType.DEVICE and not self.handle


class Memory:
    """All memory that the driver knows.

    Args:
        gpus: Which GPU each ordinal is; processes share GPUs of one number.
        capacity: Bytes of each.
        readable: Whether the host sees memory at the GPU's addresses, as an MPI library that knows CUDA does.
        peer_access: Whether GPUs reach memory of other GPUs.
        host_pointers: Whether GPUs reach registered host memory at the host's addresses.
    """

    def __init__(
        self, gpus: tuple[int, ...], capacity: int, readable: bool, peer_access: bool, host_pointers: bool
    ) -> None:
        self.host_pointers = host_pointers
        self.gpus, self.capacity, self._readable, self.peer_access = gpus, capacity, readable, peer_access
        self._table: dict[int, Allocation] = {}
        # (length, first byte of its page) -> addresses
        self._vacant: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._numbers = count(1)

    def __iter__(self) -> Iterator[Allocation]:
        return iter(list(self._table.values()))

    def find(self, address: int) -> Allocation | None:
        """The allocation that an address lies in."""
        return next(
            (one for one in self._table.values() if one.address <= address < one.address + one.nbytes), None
        )

    def base(self, address: int, code: int) -> Allocation:
        """The allocation that starts at an address."""
        require(address in self._table, code, f"no memory starts at {address:#x}")
        return self._table[address]

    def was_freed(self, address: int) -> bool:
        """Say whether a GPU's memory was there, and is no more."""
        return any(
            one <= address < one + length for (length, _), all_ in self._vacant.items() for one in all_
        )

    def view(self, address: int, nbytes: int) -> np.ndarray:
        """Bytes at an address as the double sees them; an address it does not know is the host's."""
        one = self.find(address)
        if one is None or not nbytes:
            return host_bytes(address, nbytes)
        require(
            address + nbytes <= one.address + one.nbytes,
            ILLEGAL_ADDRESS,
            f"{nbytes} bytes at {address:#x} leave their memory",
        )
        return host_bytes(address - one.address + one.backing, nbytes)

    def check_reach(self, address: int, nbytes: int, ordinal: int) -> None:
        """Refuse what a kernel of a GPU cannot touch."""
        one = self.find(address)
        require(one, ILLEGAL_ADDRESS, f"a kernel touches {address:#x}, which no GPU can")
        assert one is not None
        require(
            one.kind is MemoryType.HOST or one.managed or one.ordinal == ordinal,
            ILLEGAL_ADDRESS,
            f"a kernel of GPU {ordinal} touches {address:#x}, memory of GPU {one.ordinal}",
        )
        registered = one.kind is MemoryType.HOST and not one.pinned
        require(
            self.host_pointers or not registered,
            ILLEGAL_ADDRESS,
            f"a kernel touches {address:#x}, an address of the host only",
        )
        self.view(address, nbytes)

    def device_address(self, address: int) -> int:
        """Return where kernels reach page-locked host memory."""
        one = self.find(address)
        require(one and one.kind is MemoryType.HOST, INVALID_VALUE, f"{address:#x} is not page-locked")
        assert one is not None
        return address if self.host_pointers or one.pinned else address ^ 1 << 46

    def can_be_exported(self, one: Allocation) -> bool:
        """Say whether other processes may open it."""
        return one.own and not one.managed and not one.pooled

    def allocate(
        self, nbytes: int, ordinal: int, *, managed: bool = False, pooled: bool = False
    ) -> Allocation:
        """Memory of a GPU."""
        require(nbytes > 0, INVALID_VALUE, "allocates nothing")
        used = sum(one.nbytes for one in self if one.own and one.ordinal == ordinal)
        require(
            used + nbytes <= self.capacity,
            OUT_OF_MEMORY,
            f"{used} bytes of {self.capacity} are used, asks for {nbytes}",
        )
        file, first = os.memfd_create("gpu"), nbytes % 7 * ALIGNMENT
        os.ftruncate(file, -(-(first + nbytes) // PAGE) * PAGE)
        one = self._place(file, first, nbytes, ordinal, self._readable or managed)
        one.managed, one.pooled = managed, pooled
        return one

    def _place(self, file: int, first: int, nbytes: int, ordinal: int, visible: bool) -> Allocation:
        length = -(-(first + nbytes) // PAGE) * PAGE
        vacant = self._vacant[length, first]
        # guards before and behind
        address = vacant.pop() if vacant else _map(None, length + 2 * PAGE, _NONE) + PAGE
        if visible:
            _map(address, length, _BOTH, file)
        backing = _map(None, length, _BOTH, file)
        one = Allocation(
            address + first, nbytes, MemoryType.DEVICE, ordinal, next(self._numbers), backing + first, file
        )
        self._table[one.address] = one
        return one

    def free(self, one: Allocation) -> None:
        """Give memory of a GPU back, or close another process's."""
        del self._table[one.address]
        first = one.address % PAGE
        length = -(-(first + one.nbytes) // PAGE) * PAGE
        _map(one.address - first, length, _NONE)
        _libc.munmap(one.backing - first, length)
        os.close(one.file)
        self._vacant[length, first].append(one.address - first)

    def empty(self) -> None:
        """Give the system back what holds this process's GPU memory; its addresses stay."""
        for one in self:
            if one.own:
                os.ftruncate(one.file, 0)
                os.ftruncate(one.file, -(-(one.address % PAGE + one.nbytes) // PAGE) * PAGE)

    def pin(self, nbytes: int, ordinal: int) -> Allocation:
        """Page-locked host memory."""
        require(nbytes > 0, INVALID_VALUE, "allocates nothing")
        one = self.register(_map(None, nbytes, _BOTH), nbytes, ordinal)
        one.pinned = True
        return one

    def unpin(self, one: Allocation) -> None:
        """Give page-locked memory back."""
        self.unregister(one)
        _libc.munmap(one.address, one.nbytes)

    def register(self, address: int, nbytes: int, ordinal: int) -> Allocation:
        """Page-lock host memory."""
        require(address and nbytes > 0, INVALID_VALUE, f"registers {nbytes} bytes at {address:#x}")
        for other in self:
            apart = other.address + other.nbytes <= address or address + nbytes <= other.address
            require(apart, ALREADY_REGISTERED, f"{nbytes} bytes at {address:#x} are registered already")
        self._table[address] = Allocation(
            address, nbytes, MemoryType.HOST, ordinal, next(self._numbers), address
        )
        return self._table[address]

    def unregister(self, one: Allocation) -> None:
        """Let host memory be ordinary again."""
        del self._table[one.address]

    def export(self, one: Allocation) -> bytes:
        """Return what other processes open memory with."""
        require(self.can_be_exported(one), INVALID_VALUE, f"memory at {one.address:#x} cannot be exported")
        words = (
            os.getpid(),
            one.file,
            os.fstat(one.file).st_ino,
            one.address,
            one.address % PAGE,
            one.nbytes,
            self.gpus[one.ordinal],
        )
        return _HANDLE.pack(*words).ljust(IPC_HANDLE_NBYTES, b"\0")

    def open(self, handle: bytes, ordinal: int) -> Allocation:
        """Another process's memory; refused while this one has open what lies there, or what was freed there."""
        process, remote, inode, there, first, nbytes, gpu = _HANDLE.unpack_from(handle)
        require(process != os.getpid(), INVALID_CONTEXT, "opens memory of its own process")
        require(
            self.peer_access or gpu == self.gpus[ordinal],
            PEER_ACCESS_UNSUPPORTED,
            f"GPU {ordinal} does not reach GPU {gpu}",
        )
        for one in self:
            if one.handle and one.ordinal == ordinal:
                other, _, _, start, _, length, _ = _HANDLE.unpack_from(one.handle)
                apart = other != process or start + length <= there or there + nbytes <= start
                require(
                    apart,
                    ALREADY_MAPPED,
                    f"opens memory at {there:#x} of process {process}, where it has some open",
                )
        try:
            file = os.open(f"/proc/{process}/fd/{remote}", os.O_RDWR)
        except OSError:
            file = -1
        known = file >= 0 and os.fstat(file).st_ino == inode
        if file >= 0 and not known:
            os.close(file)
        require(known, INVALID_HANDLE, "opens memory that is gone")
        one = self._place(file, first, nbytes, ordinal, self._readable)
        one.handle = handle
        return one

    def close(self, one: Allocation) -> None:
        """Undo `open`."""
        require(one.handle, INVALID_VALUE, f"memory at {one.address:#x} was not opened")
        self.free(one)
