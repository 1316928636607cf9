"""The C functions about memory: of GPUs, of the host, of other processes."""

from ctypes import POINTER, c_int, c_uint, c_uint64, cast
from typing import Any

from cuda_double.calls import Calls
from cuda_double.failures import INVALID_VALUE, NOT_FOUND, NOT_REGISTERED, NOT_SUPPORTED, require
from hpcoll.runtime.gpu.cuda import Attribute, IpcHandle, MemoryType

_TYPES: dict[int, Any] = {
    Attribute.MEMORY_TYPE: c_uint,
    Attribute.IS_MANAGED: c_uint,
    Attribute.DEVICE_ORDINAL: c_int,
    Attribute.CAN_BE_EXPORTED: c_int,
    Attribute.BUFFER_ID: c_uint64,
    Attribute.MEMPOOL_HANDLE: c_uint64,
}


class MemoryCalls(Calls):
    """Functions that allocate, register, open and describe memory."""

    def cuPointerGetAttribute(self, value: int, attribute: int, address: int) -> None:
        one = self.memory.find(address)
        require(one is not None, INVALID_VALUE, f"{address:#x} is not known")
        assert one is not None
        known = {
            Attribute.MEMORY_TYPE: one.kind,
            Attribute.IS_MANAGED: one.managed,
            Attribute.BUFFER_ID: one.number,
            Attribute.DEVICE_ORDINAL: one.ordinal,
            Attribute.CAN_BE_EXPORTED: self.memory.can_be_exported(one),
            Attribute.MEMPOOL_HANDLE: 0x53000000 * one.pooled,
        }
        require(attribute in known, INVALID_VALUE, f"pointer attribute {attribute}")
        cast(value, POINTER(_TYPES[attribute]))[0] = int(known[Attribute(attribute)])

    def cuMemGetAddressRange_v2(self, base: Any, nbytes: Any, address: int) -> None:
        one = self.memory.find(address)
        require(one, NOT_FOUND, f"{address:#x} is not known")
        assert one is not None
        if base:
            base[0] = one.address
        if nbytes:
            nbytes[0] = one.nbytes

    def cuMemAlloc_v2(self, address: Any, nbytes: int) -> None:
        address[0] = self.memory.allocate(nbytes, self._ordinal()).address

    def cuMemFree_v2(self, address: int) -> None:
        if address:
            one = self.memory.base(address, INVALID_VALUE)
            require(one.own, INVALID_VALUE, f"memory at {address:#x} was not allocated here")
            self.streams.finish_all(one.ordinal)
            self.memory.free(one)

    def cuMemHostAlloc(self, address: Any, nbytes: int, flags: int) -> None:
        require(flags < 8, INVALID_VALUE, f"flags {flags}")
        address[0] = self.memory.pin(nbytes, self._ordinal()).address

    def cuMemFreeHost(self, address: int | None) -> None:
        one = self.memory.base(address or 0, INVALID_VALUE)
        require(one.pinned, INVALID_VALUE, f"memory at {address or 0:#x} was not allocated here")
        self.streams.finish_all()
        self.memory.unpin(one)

    def cuMemHostGetDevicePointer_v2(self, pointer: Any, address: int | None, flags: int) -> None:
        require(flags == 0, INVALID_VALUE, f"flags {flags}")
        pointer[0] = self.memory.device_address(address or 0)

    def cuMemHostRegister_v2(self, address: int | None, nbytes: int, flags: int) -> None:
        self.memory.register(address or 0, nbytes, self._ordinal())

    def cuMemHostUnregister(self, address: int | None) -> None:
        one = self.memory.base(address or 0, NOT_REGISTERED)
        require(
            one.kind is MemoryType.HOST and not one.pinned,
            NOT_REGISTERED,
            f"memory at {address or 0:#x} was not registered",
        )
        self.streams.finish_all()
        self.memory.unregister(one)

    def cuIpcGetMemHandle(self, handle: Any, address: int) -> None:
        require(self.double.ipc, NOT_SUPPORTED, "IPC")
        handle[0] = IpcHandle.from_buffer_copy(self.memory.export(self.memory.base(address, INVALID_VALUE)))

    def cuIpcOpenMemHandle_v2(self, address: Any, handle: IpcHandle, flags: int) -> None:
        require(self.double.ipc, NOT_SUPPORTED, "IPC")
        require(flags == 1, INVALID_VALUE, f"flags {flags}")
        address[0] = self.memory.open(bytes(handle.bytes), self._ordinal()).address

    def cuIpcCloseMemHandle(self, address: int) -> None:
        one = self.memory.base(address, INVALID_VALUE)
        self.streams.finish_all(one.ordinal)
        self.memory.close(one)
