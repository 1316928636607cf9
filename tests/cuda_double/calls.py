"""The C functions about devices and contexts, and what all of them share."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from cuda_double.failures import INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NAMES, require
from hpcoll.runtime.gpu.cuda import DeviceAttribute

if TYPE_CHECKING:
    from cuda_double.double import Double

_CONTEXT = 0x50000000  # plus the ordinal
_MULTIPROCESSORS, _CAPABILITY = 4, (9, 0)


class Calls:
    """Functions as methods of their names; they give None or an error code, or raise `Failure`."""

    def __init__(self, double: Double) -> None:
        self.double, self.memory, self.streams = double, double.memory, double.streams
        self.started = False

    def _ordinal(self) -> int:
        found = self.double.current()
        require(found is not None, INVALID_CONTEXT, "this thread has no context")
        assert found is not None
        return found

    def cuInit(self, flags: int) -> None:
        require(flags == 0, INVALID_VALUE, f"flags {flags}")
        self.started = True

    def cuDriverGetVersion(self, version: Any) -> None:
        version[0] = self.double.version[0] * 1000 + self.double.version[1] * 10

    def cuGetErrorName(self, code: int, name: Any) -> None:
        require(code in NAMES, INVALID_VALUE, f"no error {code}")
        name[0] = NAMES[code]

    def cuDeviceGetCount(self, number: Any) -> None:
        number[0] = len(self.memory.gpus)

    def cuDeviceGet(self, device: Any, ordinal: int) -> None:
        device[0] = self._device(ordinal)

    def _device(self, ordinal: int) -> int:
        require(0 <= ordinal < len(self.memory.gpus), INVALID_DEVICE, f"no GPU {ordinal}")
        return ordinal

    def _text(self, text: bytes, address: int, room: int) -> None:
        require(len(text) < room, INVALID_VALUE, f"{text!r} needs more than {room} bytes")
        ctypes.memmove(address, text + b"\0", len(text) + 1)

    def cuDeviceGetName(self, name: int, room: int, device: int) -> None:
        self._text(f"Double {self.memory.gpus[self._device(device)]}".encode(), name, room)

    def cuDeviceGetPCIBusId(self, name: int, room: int, device: int) -> None:
        self._text(f"0000:{16 + self.memory.gpus[self._device(device)]:02x}:00.0".encode(), name, room)

    def cuDeviceTotalMem_v2(self, nbytes: Any, device: int) -> None:
        self._device(device)
        nbytes[0] = self.memory.capacity

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> None:
        self._device(device)
        values = dict(
            zip(
                DeviceAttribute,
                (_MULTIPROCESSORS, *_CAPABILITY, int(self.memory.host_pointers), 1, int(self.double.mps)),
            )
        )
        require(attribute in values, INVALID_VALUE, f"device attribute {attribute}")
        value[0] = values[DeviceAttribute(attribute)]

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:
        context[0] = _CONTEXT + self._device(device)

    def cuCtxSetCurrent(self, context: int | None) -> None:
        self.double.make_current(None if context is None else self._device(context - _CONTEXT))

    def cuCtxGetCurrent(self, context: Any) -> None:
        ordinal = self.double.current()
        context[0] = None if ordinal is None else _CONTEXT + ordinal

    def cuCtxGetDevice(self, device: Any) -> None:
        device[0] = self._ordinal()
