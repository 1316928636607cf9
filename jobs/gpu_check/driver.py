"""The CUDA driver in plain ctypes, for probes: calls that raise or return their error, a GPU whose memory is filled and read, a kernel.

Nothing of hpcoll, MPI or a CUDA package is imported: what goes wrong here is the machine's. Numbers are those of cuda.h.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

LIBRARY = "libcuda.so.1"
PORTABLE, DEVICE_MAP = 1, 2  # of cuMemHostRegister and cuMemHostAlloc
LAZY_PEER_ACCESS = 1  # of cuIpcOpenMemHandle
ATTACH_GLOBAL = 1  # of cuMemAllocManaged
PINNED, ON_DEVICE, READ_WRITE, FILE_DESCRIPTOR = 1, 1, 3, 1  # of cuMemCreate and cuMemSetAccess

DEVICE_ATTRIBUTES = {
    "multiprocessors": 16,
    "integrated": 18,
    "can map host memory": 19,
    "compute mode": 20,
    "concurrent kernels": 31,
    "copy engines": 40,
    "unified addressing": 41,
    "capability, major": 75,
    "capability, minor": 76,
    "managed memory": 83,
    "pageable memory access": 88,
    "concurrent managed access": 89,
    "can use host pointer for registered memory": 91,
    "can register host memory": 99,
    "pageable memory access by the host's tables": 100,
    "virtual memory management": 102,
    "file descriptors of memory": 103,
    "read-only registering": 113,
    "memory pools": 115,
    "GPUDirect RDMA": 116,
    "handle types of pools": 119,
    "IPC of events": 125,
    "fabric handles": 128,
    "NUMA node of the host": 134,
}
POINTER_ATTRIBUTES = {  # name -> (number, C type)
    "memory type": (2, c_uint),
    "device pointer": (3, c_uint64),
    "buffer id": (7, c_uint64),
    "is managed": (8, c_uint),
    "device ordinal": (9, c_int),
    "is legacy IPC capable": (10, c_uint),
    "range start": (11, c_uint64),
    "range bytes": (12, c_size_t),
    "is mapped": (13, c_uint),
    "allowed handle types": (14, c_uint64),
    "is GPUDirect RDMA capable": (15, c_uint),
    "access flags": (16, c_uint),
    "pool": (17, c_uint64),
}
VECTOR_ADD = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry vector_add(
    .param .u64 vector_add_param_0, .param .u64 vector_add_param_1, .param .u64 vector_add_param_2, .param .u64 vector_add_param_3)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<10>;
    ld.param.u64 %d1, [vector_add_param_0];
    ld.param.u64 %d2, [vector_add_param_1];
    ld.param.u64 %d3, [vector_add_param_2];
    ld.param.u64 %d4, [vector_add_param_3];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %d5, %r4;
    setp.ge.u64 %p1, %d5, %d4;
    @%p1 bra END;
    shl.b64 %d6, %d5, 2;
    add.u64 %d7, %d2, %d6;
    add.u64 %d8, %d3, %d6;
    add.u64 %d9, %d1, %d6;
    ld.global.u32 %r5, [%d7];
    ld.global.u32 %r6, [%d8];
    add.u32 %r7, %r5, %r6;
    st.global.u32 [%d9], %r7;
END:
    ret;
}
"""
THREADS, WORD = 256, 4  # of a block, bytes of an element


class IpcHandle(ctypes.Structure):
    """A handle by which other processes open an allocation."""

    _fields_ = (("bytes", c_ubyte * 64),)


class Properties(ctypes.Structure):
    """CUmemAllocationProp: kind of memory, in which ways it can be exported, and on which GPU it lies."""

    _fields_ = (
        ("kind", c_int),
        ("handle_types", c_int),
        ("location", c_int),
        ("ordinal", c_int),
        ("windows", c_void_p),
        ("flags", c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc: the access of a device to mapped memory."""

    _fields_ = (("location", c_int), ("ordinal", c_int), ("flags", c_int))


_P, _S, _A = c_void_p, c_size_t, c_uint64
FUNCTIONS: dict[str, tuple[Any, ...]] = {  # parameter types; all return an error code
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (_P, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(_S), c_int),
    "cuDeviceGetPCIBusId": (_P, c_int, c_int),
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(_P), c_int),
    "cuCtxSetCurrent": (_P,),
    "cuCtxGetCurrent": (POINTER(_P),),
    "cuCtxGetDevice": (POINTER(c_int),),
    "cuPointerGetAttribute": (_P, c_int, _A),
    "cuMemGetAddressRange_v2": (POINTER(_A), POINTER(_S), _A),
    "cuMemGetInfo_v2": (POINTER(_S), POINTER(_S)),
    "cuMemAlloc_v2": (POINTER(_A), _S),
    "cuMemFree_v2": (_A,),
    "cuMemAllocManaged": (POINTER(_A), _S, c_uint),
    "cuMemAllocAsync": (POINTER(_A), _S, _P),
    "cuMemFreeAsync": (_A, _P),
    "cuMemHostAlloc": (POINTER(_P), _S, c_uint),
    "cuMemFreeHost": (_P,),
    "cuMemHostGetDevicePointer_v2": (POINTER(_A), _P, c_uint),
    "cuMemHostRegister_v2": (_P, _S, c_uint),
    "cuMemHostUnregister": (_P,),
    "cuMemcpyAsync": (_A, _A, _S, _P),
    "cuMemsetD8Async": (_A, c_ubyte, _S, _P),
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
    "cuModuleLoadData": (POINTER(_P), _P),
    "cuModuleGetFunction": (POINTER(_P), _P, _P),
    "cuLaunchKernel": (_P, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, _P, _P, _P),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), _A),
    "cuIpcOpenMemHandle_v2": (POINTER(_A), IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (_A,),
    "cuMemGetAllocationGranularity": (POINTER(_S), POINTER(Properties), c_int),
    "cuMemAddressReserve": (POINTER(_A), _S, _S, _A, c_ulonglong),
    "cuMemAddressFree": (_A, _S),
    "cuMemCreate": (POINTER(_A), _S, POINTER(Properties), c_ulonglong),
    "cuMemRelease": (_A,),
    "cuMemMap": (_A, _S, _S, _A, c_ulonglong),
    "cuMemUnmap": (_A, _S),
    "cuMemSetAccess": (_A, _S, POINTER(Access), _S),
    "cuMemExportToShareableHandle": (_P, _A, c_int, c_ulonglong),
}


class DriverError(Exception):
    """A call that failed.

    Attributes:
        code: Error code.
    """

    def __init__(self, name: str, code: int, text: str) -> None:
        super().__init__(f"{name}: {text} ({code})")
        self.code = code


class Driver:
    """The driver, started; what it lacks raises AttributeError when it is called."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(LIBRARY)
        self.missing = [name for name in FUNCTIONS if not hasattr(self.library, name)]
        for name in FUNCTIONS.keys() - set(self.missing):
            function = getattr(self.library, name)
            function.argtypes, function.restype = FUNCTIONS[name], c_int
        self("cuInit", 0)

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function, and return its error code, 0 for success."""
        return int(getattr(self.library, name)(*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function; an error code is raised."""
        code = self.code(name, *arguments)
        if code:
            raise DriverError(name, code, self.error(code))

    def error(self, code: int) -> str:
        """Return the driver's name of an error."""
        text = c_char_p()
        self.code("cuGetErrorName", code, byref(text))
        return (text.value or b"an unknown error").decode()

    def value(self, kind: Any, name: str, *arguments: Any) -> int:
        """Return the value that a function stores behind its first parameter."""
        found = kind()
        self(name, byref(found), *arguments)
        return int(found.value or 0)


class Gpu(Driver):
    """A GPU, its primary context current."""

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__()
        self.device = self.value(c_int, "cuDeviceGet", ordinal)
        self("cuCtxSetCurrent", self.value(c_void_p, "cuDevicePrimaryCtxRetain", self.device))

    def allocate(self, nbytes: int) -> int:
        """Return the address of plain memory."""
        return self.value(c_uint64, "cuMemAlloc_v2", nbytes)

    def pinned(self, nbytes: int) -> int:
        """Return the address of page-locked host memory."""
        return self.value(c_void_p, "cuMemHostAlloc", nbytes, PORTABLE | DEVICE_MAP)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy between any two memories, and wait."""
        self("cuMemcpyAsync", target, source, nbytes, None)
        self("cuStreamSynchronize", None)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Store a byte everywhere, and wait."""
        self("cuMemsetD8Async", address, byte, nbytes, None)
        self("cuStreamSynchronize", None)

    def bytes_at(self, address: int, nbytes: int) -> bytes:
        """Return the contents of a GPU's memory."""
        found = (c_ubyte * nbytes)()
        self.copy(ctypes.addressof(found), address, nbytes)
        return bytes(found)

    def export(self, address: int) -> bytes:
        """Return the handle by which other processes open memory."""
        handle = IpcHandle()
        self("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle.bytes)

    def open(self, handle: bytes) -> int:
        """Return the address of another process's memory."""
        return self.value(
            c_uint64, "cuIpcOpenMemHandle_v2", IpcHandle((c_ubyte * 64)(*handle)), LAZY_PEER_ACCESS
        )

    def kernel(self, ptx: str, name: str) -> int:
        """Return a kernel of a module's text."""
        text, entry = ctypes.create_string_buffer(ptx.encode()), ctypes.create_string_buffer(name.encode())
        module = self.value(c_void_p, "cuModuleLoadData", ctypes.addressof(text))
        return self.value(c_void_p, "cuModuleGetFunction", module, ctypes.addressof(entry))

    def launch(self, kernel: int, blocks: int, threads: int, *operands: int) -> None:
        """Queue a kernel whose parameters are 8-byte words."""
        words = [c_uint64(one) for one in operands]
        parameters = (c_void_p * len(words))(*(ctypes.addressof(one) for one in words))
        self(
            "cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, ctypes.addressof(parameters), None
        )


def say(what: str, value: object, unit: str = "") -> None:
    """Print a finding, as one line of JSON."""
    print(json.dumps({"what": what, "value": value} | ({"unit": unit} if unit else {})), flush=True)


def attempt(what: str, call: Callable[[], object], unit: str = "") -> Any:
    """Print what a call returns, or the error that it raises, and return the former, or None."""
    try:
        found = call()
    except (DriverError, OSError, AttributeError, AssertionError) as error:
        say(what, f"{type(error).__name__}: {error}")
        return None
    say(what, "ok" if found is None else found, unit)
    return found
