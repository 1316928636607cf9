"""The C functions about pools, managed memory, and memory mapped to addresses by the caller, as PyTorch's expandable segments are."""

from __future__ import annotations

import os
from ctypes import POINTER, Structure, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ulonglong, c_void_p, cast
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from cuda_double.calls import Calls
from cuda_double.failures import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    require,
)

if TYPE_CHECKING:
    from cuda_double.double import Double

GRANULARITY = 2 << 20
_PINNED, _ON_DEVICE, _READ_WRITE, _FILE_DESCRIPTOR = 1, 1, 3, 1


class Properties(Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("kind", c_int),
        ("handle_types", c_int),
        ("location", c_int),
        ("ordinal", c_int),
        ("windows", c_void_p),
        ("flags", c_ubyte * 8),
    )


class Access(Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", c_int), ("ordinal", c_int), ("flags", c_int))


_A, _S = c_uint64, c_size_t
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuMemGetInfo_v2": (POINTER(_S), POINTER(_S)),
    "cuMemAllocManaged": (POINTER(_A), _S, c_uint),
    "cuMemAllocAsync": (POINTER(_A), _S, c_void_p),
    "cuMemFreeAsync": (_A, c_void_p),
    "cuMemGetAllocationGranularity": (POINTER(_S), POINTER(Properties), c_int),
    "cuMemAddressReserve": (POINTER(_A), _S, _S, _A, c_ulonglong),
    "cuMemAddressFree": (_A, _S),
    "cuMemCreate": (POINTER(_A), _S, POINTER(Properties), c_ulonglong),
    "cuMemRelease": (_A,),
    "cuMemMap": (_A, _S, _S, _A, c_ulonglong),
    "cuMemUnmap": (_A, _S),
    "cuMemSetAccess": (_A, _S, POINTER(Access), _S),
    "cuMemExportToShareableHandle": (c_void_p, _A, c_int, c_ulonglong),
}


@dataclass
class _Physical:
    """Memory without an address.

    Attributes:
        file: Behind it; closed when the handle is released and nothing is mapped.
        nmapped: How often it is mapped.
        released: Whether its handle is.
    """

    file: int
    nbytes: int
    ordinal: int
    handle_types: int
    nmapped: int = 0
    released: bool = False


class VirtualCalls(Calls):
    """Functions that allocate in order, managed, or in two steps: memory, and where it is seen."""

    def __init__(self, double: Double) -> None:
        super().__init__(double)
        self._physical: dict[int, _Physical] = {}
        self._reserved: dict[int, int] = {}  # address -> bytes
        self._mapped: dict[int, _Physical] = {}  # by address
        self._handle_numbers = count(0x54000010, 0x10)

    def cuDeviceCanAccessPeer(self, can: Any, device: int, peer: int) -> None:
        for one in (device, peer):
            require(0 <= one < len(self.memory.gpus), INVALID_DEVICE, f"no GPU {one}")
        can[0] = int(device != peer and self.memory.peer_access)

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free[0], total[0] = self.memory.capacity - self._used(self._ordinal()), self.memory.capacity

    def _used(self, ordinal: int) -> int:
        """Bytes of a GPU that are allocated, by either way."""
        physical = {
            id(one): one
            for one in (*self._physical.values(), *self._mapped.values())
            if one.ordinal == ordinal
        }
        plain = sum(one.nbytes for one in self.memory if one.own and one.ordinal == ordinal)
        return plain + sum(one.nbytes for one in physical.values())

    def cuMemAllocManaged(self, address: Any, nbytes: int, flags: int) -> None:
        require(flags in (1, 2), INVALID_VALUE, f"flags {flags}")
        address[0] = self.memory.allocate(nbytes, self._ordinal(), managed=True).address

    def cuMemAllocAsync(self, address: Any, nbytes: int, stream: int | None) -> None:
        address[0] = self.memory.allocate(nbytes, self._ordinal(), pooled=True).address

    def cuMemFreeAsync(self, address: int, stream: int | None) -> None:
        one = self.memory.base(address, INVALID_VALUE)
        require(one.own, INVALID_VALUE, f"memory at {address:#x} was not allocated here")
        self.streams.finish_all(one.ordinal)
        self.memory.free(one)

    def _check(self, properties: Any) -> Any:
        found = properties[0]
        right = found.kind == _PINNED and found.location == _ON_DEVICE
        require(right, INVALID_VALUE, f"kind {found.kind}, location {found.location}")
        require(0 <= found.ordinal < len(self.memory.gpus), INVALID_DEVICE, f"no GPU {found.ordinal}")
        return found

    def cuMemGetAllocationGranularity(self, nbytes: Any, properties: Any, option: int) -> None:
        self._check(properties)
        require(option in (0, 1), INVALID_VALUE, f"option {option}")
        nbytes[0] = GRANULARITY

    def cuMemAddressReserve(self, address: Any, nbytes: int, alignment: int, wanted: int, flags: int) -> None:
        require(
            nbytes and nbytes % GRANULARITY == 0 and not flags,
            INVALID_VALUE,
            f"reserves {nbytes} bytes, flags {flags}",
        )
        require(self.double.current() is not None, INVALID_CONTEXT, "this thread has no context")
        address[0] = self.memory.reserve(nbytes)
        self._reserved[address[0]] = nbytes

    def cuMemAddressFree(self, address: int, nbytes: int) -> None:
        require(
            self._reserved.get(address) == nbytes,
            INVALID_VALUE,
            f"{nbytes} bytes at {address:#x} are not reserved",
        )
        mapped = [one for one in self._mapped if address <= one < address + nbytes]
        require(not mapped, INVALID_VALUE, f"memory is mapped at {mapped}")
        del self._reserved[address]
        self.memory.unreserve(address, nbytes)

    def cuMemCreate(self, handle: Any, nbytes: int, properties: Any, flags: int) -> None:
        found = self._check(properties)
        require(
            nbytes and nbytes % GRANULARITY == 0 and not flags,
            INVALID_VALUE,
            f"makes {nbytes} bytes, flags {flags}",
        )
        room = self.memory.capacity - self._used(found.ordinal)
        require(nbytes <= room, OUT_OF_MEMORY, f"{room} bytes are left, asks for {nbytes}")
        require(
            found.handle_types in (0, _FILE_DESCRIPTOR), NOT_SUPPORTED, f"handle types {found.handle_types}"
        )
        file = os.memfd_create("gpu")
        os.ftruncate(file, nbytes)
        handle[0] = next(self._handle_numbers)
        self._physical[handle[0]] = _Physical(file, nbytes, found.ordinal, found.handle_types)

    def _memory_of(self, handle: int) -> _Physical:
        require(handle in self._physical, INVALID_VALUE, f"no memory has the handle {handle:#x}")
        return self._physical[handle]

    def cuMemRelease(self, handle: int) -> None:
        one = self._memory_of(handle)
        one.released = True
        del self._physical[handle]
        self._close(one)

    def _close(self, one: _Physical) -> None:
        if one.released and not one.nmapped:
            os.close(one.file)

    def cuMemMap(self, address: int, nbytes: int, offset: int, handle: int, flags: int) -> None:
        one = self._memory_of(handle)
        require(
            nbytes == one.nbytes and not offset and not flags,
            INVALID_VALUE,
            f"maps {nbytes} of {one.nbytes} bytes from {offset}",
        )
        inside = any(
            start <= address and address + nbytes <= start + length
            for start, length in self._reserved.items()
        )
        require(inside, INVALID_VALUE, f"{nbytes} bytes at {address:#x} are not reserved")
        taken = [
            at for at, other in self._mapped.items() if at < address + nbytes and address < at + other.nbytes
        ]
        require(not taken, INVALID_VALUE, f"memory is mapped at {taken}")
        one.nmapped += 1
        self._mapped[address] = one

    def cuMemSetAccess(self, address: int, nbytes: int, access: Any, number: int) -> None:
        require(
            address in self._mapped and self._mapped[address].nbytes == nbytes,
            INVALID_VALUE,
            f"{nbytes} bytes at {address:#x}",
        )
        one = self._mapped[address]
        for found in access[:number]:
            right = (
                found.location == _ON_DEVICE and found.flags == _READ_WRITE and found.ordinal == one.ordinal
            )
            require(right, INVALID_VALUE, f"access {found.flags} for {found.location}, {found.ordinal}")
        if number and not self.memory.find(address):
            self.memory.show(address, nbytes, one.file, one.ordinal)

    def cuMemUnmap(self, address: int, nbytes: int) -> None:
        require(
            address in self._mapped and self._mapped[address].nbytes == nbytes,
            INVALID_VALUE,
            f"{nbytes} bytes at {address:#x}",
        )
        one = self._mapped.pop(address)
        self.streams.finish_all(one.ordinal)
        if self.memory.find(address):
            self.memory.hide(address)
        one.nmapped -= 1
        self._close(one)

    def cuMemExportToShareableHandle(self, result: int, handle: int, handle_type: int, flags: int) -> None:
        one = self._memory_of(handle)
        require(
            handle_type == _FILE_DESCRIPTOR and not flags,
            INVALID_VALUE,
            f"handle type {handle_type}, flags {flags}",
        )
        require(one.handle_types & handle_type, INVALID_VALUE, "it was made without this handle type")
        cast(result, POINTER(c_int))[0] = os.dup(one.file)
