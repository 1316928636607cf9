"""The CUDA driver, as far as hpcoll needs it: a C library, whose functions compiled code calls through their addresses.

Another object with functions of these names may stand for it (`use`).
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from enum import IntEnum
from functools import lru_cache
from typing import Any

from hpcoll.base.errors import DeviceError

IPC_HANDLE_NBYTES = 64
OUT_OF_MEMORY = 2
ALREADY_MAPPED = (
    208  # by cuIpcOpenMemHandle: this process has it open, or has freed memory open that lay there
)
NOT_READY = 600  # what cuEventQuery and cuStreamQuery answer while work is under way
LEGACY_STREAM = 1  # CU_STREAM_LEGACY; 2 is the per-thread default stream

_NO_TIMING, _NON_BLOCKING = 2, 1
_REGISTER_PORTABLE_MAPPED = 1 | 2
_IPC_LAZY_PEER_ACCESS = 1


class IpcHandle(ctypes.Structure):
    """A name of an allocation for other processes of the node."""

    _fields_ = (("bytes", c_ubyte * IPC_HANDLE_NBYTES),)


class MemoryType(IntEnum):
    """The kind of memory behind a pointer."""

    UNKNOWN = 0  # the driver has never seen it: ordinary host memory, or freed
    HOST = 1
    DEVICE = 2
    ARRAY = 3
    UNIFIED = 4


class Attribute(IntEnum):
    """Attributes of a pointer, and their C types."""

    MEMORY_TYPE = 2  # uint
    IS_MANAGED = 8  # uint
    BUFFER_ID = 7  # uint64, differs between allocations of a process, also one after another at one address
    DEVICE_ORDINAL = 9  # int
    CAN_BE_EXPORTED = 10  # int, IS_LEGACY_CUDA_IPC_CAPABLE
    MEMPOOL_HANDLE = 17  # pointer; not null for memory of a stream-ordered pool


class DeviceAttribute(IntEnum):
    """Attributes of a GPU."""

    MULTIPROCESSORS = 16
    MAJOR = 75
    MINOR = 76
    CAN_USE_HOST_POINTER = 91  # for registered memory: kernels reach it at the host's address
    CAN_REGISTER_HOST_MEMORY = 99
    HAS_MPS = 133  # processes share it by MPS; older drivers do not know this


_P, _S = c_void_p, c_size_t
# Parameter types by function; all return an error code.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(_P), c_int),
    "cuCtxSetCurrent": (_P,),
    "cuCtxGetCurrent": (POINTER(_P),),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuPointerGetAttribute": (_P, c_int, c_uint64),
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(_S), c_uint64),
    "cuMemAlloc_v2": (POINTER(c_uint64), _S),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (POINTER(_P), _S, c_uint),
    "cuMemFreeHost": (_P,),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), _P, c_uint),
    "cuMemHostRegister_v2": (_P, _S, c_uint),
    "cuMemHostUnregister": (_P,),
    "cuMemcpyAsync": (c_uint64, c_uint64, _S, _P),
    "cuMemsetD8Async": (c_uint64, c_ubyte, _S, _P),
    "cuStreamCreate": (POINTER(_P), c_uint),
    "cuStreamCreateWithPriority": (POINTER(_P), c_uint, c_int),
    "cuCtxGetStreamPriorityRange": (POINTER(c_int), POINTER(c_int)),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamWaitEvent": (_P, _P, c_uint),
    "cuStreamIsCapturing": (_P, POINTER(c_int)),
    "cuEventCreate": (POINTER(_P), c_uint),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuStreamQuery": (_P,),
    "cuEventQuery": (_P,),
    "cuEventSynchronize": (_P,),
    "cuModuleLoadData": (POINTER(_P), c_char_p),
    "cuModuleGetFunction": (POINTER(_P), _P, c_char_p),
    "cuLaunchKernel": (_P, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, _P, _P, _P),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
}


class Driver:
    """The driver, started, with calls that raise; ``library`` has the functions of `FUNCTIONS`."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, types in FUNCTIONS.items():
            function = getattr(library, name)
            if function.argtypes is None:
                function.argtypes, function.restype = types, c_int
        self("cuInit", 0)
        self.count = self._answer(c_int, "cuDeviceGetCount")  # GPUs that this process sees

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function; a DeviceError names it and the error."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceError(f"{name} failed with {self.error_name(code)} ({code})", code=code)

    def address(self, name: str) -> int:
        """Return the address of a function, for compiled code."""
        return int(ctypes.cast(getattr(self._library, name), c_void_p).value or 0)

    def error_name(self, code: int) -> str:
        """Return the driver's name of an error."""
        text = c_char_p()
        self._library.cuGetErrorName(code, byref(text))
        return (text.value or b"an unknown error").decode()

    def _answer(self, kind: Any, name: str, *arguments: Any) -> int:
        """Return what a function writes to its first argument, a number or handle of a C type."""
        value = kind()
        self(name, byref(value), *arguments)
        return int(value.value or 0)

    def _device(self, ordinal: int) -> int:
        return self._answer(c_int, "cuDeviceGet", ordinal)

    def _text(self, name: str, ordinal: int) -> str:
        text = ctypes.create_string_buffer(256)
        self(name, text, len(text), self._device(ordinal))
        return text.value.decode()

    def version(self) -> tuple[int, int]:
        """Return the newest CUDA that the driver serves, as (major, minor)."""
        number = self._answer(c_int, "cuDriverGetVersion")
        return number // 1000, number % 1000 // 10

    def device_name(self, ordinal: int) -> str:
        """Return the name of a GPU, as "NVIDIA H200"."""
        return self._text("cuDeviceGetName", ordinal)

    def bus_id(self, ordinal: int) -> str:
        """Return the PCI bus id of a GPU, as "0000:17:00.0": equal in all processes, whatever their ordinals."""
        return self._text("cuDeviceGetPCIBusId", ordinal)

    def device_attribute(self, ordinal: int, attribute: DeviceAttribute) -> int:
        """Return the value of an attribute of a GPU."""
        return self._answer(c_int, "cuDeviceGetAttribute", int(attribute), self._device(ordinal))

    def device_nbytes(self, ordinal: int) -> int:
        """Return the bytes of a GPU's memory."""
        return self._answer(c_size_t, "cuDeviceTotalMem_v2", self._device(ordinal))

    def primary_context(self, ordinal: int) -> int:
        """Return the context that CuPy, PyTorch and the CUDA runtime share; it is kept for the life of the process."""
        return self._answer(c_void_p, "cuDevicePrimaryCtxRetain", self._device(ordinal))

    def current_context(self) -> int:
        """Return the handle of this thread's context, 0 while it has none."""
        return self._answer(c_void_p, "cuCtxGetCurrent")

    def current_ordinal(self) -> int | None:
        """Return the GPU of this thread's context, or None while it has none."""
        return self._answer(c_int, "cuCtxGetDevice") if self.current_context() else None

    def attribute(self, pointer: int, attribute: Attribute) -> int:
        """Return the value of an attribute of a pointer; 0 for one that the driver does not know."""
        value = c_uint64()
        code = self._library.cuPointerGetAttribute(byref(value), int(attribute), pointer)
        return 0 if code else value.value

    def address_range(self, pointer: int) -> tuple[int, int]:
        """Return address and bytes of the allocation that a pointer lies in."""
        base, nbytes = c_uint64(), c_size_t()
        self("cuMemGetAddressRange_v2", byref(base), byref(nbytes), pointer)
        return base.value, nbytes.value

    def allocate(self, nbytes: int) -> int:
        """Return new memory of the current GPU, which `export` can name to other processes."""
        return self._answer(c_uint64, "cuMemAlloc_v2", nbytes)

    def allocate_pinned(self, nbytes: int) -> int:
        """Return new page-locked host memory that every GPU reads and writes at the same address."""
        return self._answer(c_void_p, "cuMemHostAlloc", nbytes, _REGISTER_PORTABLE_MAPPED)

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock host memory, so that every GPU reads and writes it at the same address; DeviceError where that cannot be."""
        self("cuMemHostRegister_v2", address, nbytes, _REGISTER_PORTABLE_MAPPED)
        there = self._answer(c_uint64, "cuMemHostGetDevicePointer_v2", address, 0)
        if there != address:
            self("cuMemHostUnregister", address)
            raise DeviceError(f"kernels reach host memory at {address:#x} only at {there:#x}")

    def stream(self) -> int:
        """Return a new stream that does not wait for the legacy default stream."""
        return self._answer(c_void_p, "cuStreamCreate", _NON_BLOCKING)

    def urgent_stream(self) -> int:
        """Return a new stream whose work goes before that of other streams."""
        lowest, highest = c_int(), c_int()
        self("cuCtxGetStreamPriorityRange", byref(lowest), byref(highest))
        return self._answer(c_void_p, "cuStreamCreateWithPriority", _NON_BLOCKING, highest.value)

    def event(self) -> int:
        """Return a new event without time stamps."""
        return self._answer(c_void_p, "cuEventCreate", _NO_TIMING)

    def is_idle(self, stream: int) -> bool:
        """Say whether nothing is under way that later work on a stream would wait for, which for some includes the default stream's."""
        for handle in {stream, 0}:
            try:
                self("cuStreamQuery", handle)
            except DeviceError as error:
                if error.code != NOT_READY:
                    raise
                return False
        return True

    def is_capturing(self, stream: int) -> bool:
        """Say whether a stream is being captured into a CUDA graph."""
        value = c_int()
        self("cuStreamIsCapturing", stream, byref(value))
        return value.value != 0

    def function(self, ptx: bytes, name: str) -> int:
        """Load a module from its text and return the handle of a kernel in it."""
        return self._answer(
            c_void_p, "cuModuleGetFunction", self._answer(c_void_p, "cuModuleLoadData", ptx), name.encode()
        )

    def export(self, base: int) -> bytes:
        """Return the name by which other processes open an allocation; ``base`` is its start."""
        handle = IpcHandle()
        self("cuIpcGetMemHandle", byref(handle), base)
        return bytes(handle.bytes)

    def open(self, handle: bytes) -> int:
        """Map another process's allocation; return its address here."""
        return self._answer(
            c_uint64,
            "cuIpcOpenMemHandle_v2",
            IpcHandle((c_ubyte * IPC_HANDLE_NBYTES)(*handle)),
            _IPC_LAZY_PEER_ACCESS,
        )

    def copy(self, destination: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any two memories, in order on a stream."""
        if nbytes:
            self("cuMemcpyAsync", destination, source, nbytes, stream)


_library: list[Any] = []
# of Linux, of Windows under it, of Jetson boards
_DEVICE_FILES = (
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/nvhost-gpu",
)
_FOUND = list(filter(os.path.exists, _DEVICE_FILES))
signs: list[Any] = list(_FOUND)  # of a GPU; without any, no memory in this process is a GPU's


def use(library: Any) -> None:
    """Let an object stand for the driver in this process; before anything has asked for it."""
    _library[:] = [library]
    signs.append(library)
    driver.cache_clear()


def is_likely() -> bool:
    """Say whether this process is likely to have a GPU, without starting the driver, which takes a while."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return bool(_library) or (visible not in ("", "-1") and bool(_FOUND))


@lru_cache(maxsize=1)
def driver() -> Driver | None:
    """Return the driver, or None where there is none or it has no GPU."""
    try:
        library = _library[0] if _library else ctypes.CDLL("libcuda.so.1")
        made = Driver(library)
    except (OSError, AttributeError, DeviceError):
        return None
    return made if made.count else None
