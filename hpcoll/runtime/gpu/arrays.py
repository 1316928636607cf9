"""Arrays in GPU memory: their place, layout, and the stream that orders them.

Both protocols by which Python libraries export such arrays are understood, and neither is believed: the CUDA driver says whose memory
a pointer is. Memory that would crash later (freed, another GPU's, or too short) is refused here.
"""

import ctypes
import errno
import operator
import sys
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.runtime.gpu import dlpack
from hpcoll.runtime.gpu.cuda import LEGACY_STREAM, Attribute, Driver, MemoryType, driver

ON_HOST = (1, 3, 11)  # DLPack's numbers of memory that the host owns: plain, pinned by CUDA, pinned by ROCm
_ON_GPU = (2, 13)  # CUDA, CUDA managed
_EPOLL_CTL_ADD = 1
_CAPTURE_ELSEWHERE = 906  # the legacy default stream would have to wait for a stream under capture


class DeviceArray(NamedTuple):
    """An array in GPU memory."""

    pointer: int  # to the first element; 0 when there is none
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # bytes per axis; None in C order without gaps
    dtype: np.dtype[Any]
    readonly: bool  # its producer forbids writing
    ordinal: int  # the GPU, by its number in this process
    owner: object  # keeps the memory alive
    stream: int | None = (
        None  # handle of the stream on which its producer orders work on it; None where it does not say
    )
    managed: bool = False  # the driver moves it between host and GPUs, and other processes cannot map it

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, gaps left out."""
        return self.size * self.dtype.itemsize

    @property
    def order(self) -> str:
        """The order of elements without gaps, ``"C"`` or ``"F"``; the empty string for elements with gaps."""
        if self.strides is None:
            return "C"
        return "F" if _is_packed(self.shape, self.strides, self.dtype.itemsize) else ""

    @property
    def span(self) -> tuple[int, int]:
        """The addresses of its first byte and after its last one, wherever its first element is."""
        if self.strides is None or not self.size:
            return self.pointer, self.pointer + self.nbytes
        reach = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        return self.pointer + sum(min(0, r) for r in reach), self.pointer + sum(
            max(0, r) for r in reach
        ) + self.dtype.itemsize


class KnownArray:
    """An array that the driver was asked about already, in place of the caller's own in the arguments of one call."""

    __slots__ = ("array",)

    def __init__(self, array: DeviceArray) -> None:
        self.array = array


def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Say whether elements follow each other without gaps, the first axis fastest."""
    steps = accumulate(shape[:-1], operator.mul, initial=itemsize)
    return all(n == 1 or stride == step for n, stride, step in zip(shape, strides, steps, strict=False))


def device_array(buffer: Any, stream: int | None = None) -> DeviceArray | None:
    """Return the array in GPU memory that an object exports; None for anything else, also for host memory behind a GPU's protocol.

    Args:
        buffer: Any object. The CUDA array interface is asked first, since it names a stream; DLPack where that has no such element type.
        stream: Handle of the stream on which the array will be used, for the producer; default: PyTorch's current one for its tensors,
            else the legacy default stream.

    Raises:
        BufferError: memory that cannot be used, and why. Exporters may also raise TypeError, ValueError and RuntimeError.
        TypeError, KeyError: a malformed CUDA array interface.
    """
    if isinstance(buffer, np.ndarray):
        return None
    if isinstance(buffer, KnownArray):
        return buffer.array
    interface = getattr(buffer, "__cuda_array_interface__", None)
    speaks_dlpack = hasattr(buffer, "__dlpack__") and hasattr(buffer, "__dlpack_device__")
    if interface is not None:
        array = _of_interface(buffer, interface)
        if array.dtype.kind != "V" or not speaks_dlpack:
            return _placed(array)
    if not speaks_dlpack or (kind := buffer.__dlpack_device__()[0]) in ON_HOST:
        return None
    if kind not in _ON_GPU:
        raise BufferError(f"memory of DLPack device type {int(kind)} is not supported")
    if driver() is None:
        raise BufferError("it lies on a GPU, and this process sees none")
    stream = stream or torch_stream(buffer) or LEGACY_STREAM
    tensor = dlpack.export(buffer, stream)
    return _placed(_array(*tensor[:5], (buffer, tensor.capsule), stream))


def _of_interface(buffer: Any, interface: Any) -> DeviceArray:
    if not isinstance(interface, dict):
        raise TypeError(f"its __cuda_array_interface__ needs a dict, got {interface!r}")
    missing = [key for key in ("data", "shape", "typestr") if key not in interface]
    if missing:
        raise KeyError(f"its __cuda_array_interface__ lacks {', '.join(missing)}")
    if interface.get("mask") is not None:
        raise BufferError("masked arrays cannot be sent")
    stream = interface.get("stream")
    if stream == 0:
        raise BufferError(
            "its stream is 0, which the CUDA array interface leaves undefined: 1 is the legacy default stream"
        )
    pointer, readonly = interface["data"]
    dtype = np.dtype(interface["typestr"])
    if pointer is None and 0 in interface["shape"]:
        pointer = 0
    return _array(
        pointer, interface["shape"], interface.get("strides"), dtype, readonly, buffer, stream and int(stream)
    )


def _array(
    pointer: int,
    shape: Any,
    strides: Any,
    dtype: np.dtype[Any],
    readonly: bool,
    owner: object,
    stream: int | None,
) -> DeviceArray:
    """Return an array of no GPU yet, without strides where they are those of C order."""
    shape = tuple(map(operator.index, shape))
    if strides is not None:
        strides = tuple(map(operator.index, strides))
        if 0 in shape or _is_packed(shape[::-1], strides[::-1], dtype.itemsize):
            strides = None
    return DeviceArray(operator.index(pointer), shape, strides, dtype, bool(readonly), 0, owner, stream)


def _placed(array: DeviceArray) -> DeviceArray | None:
    """Return the array with its GPU; None for host memory."""
    cuda = driver()
    if not array.size:
        return None if cuda is None else array._replace(pointer=0, ordinal=cuda.current_ordinal() or 0)
    first, end = array.span
    kind = MemoryType.UNKNOWN if cuda is None else cuda.attribute(array.pointer, Attribute.MEMORY_TYPE)
    if cuda is None or kind == MemoryType.UNKNOWN:
        if not (_readable(first) and _readable(end - 1)):
            raise BufferError(f"no memory is at {first:#x}: it was freed or never allocated")
        return None
    managed = cuda.attribute(array.pointer, Attribute.IS_MANAGED) != 0
    if kind == MemoryType.HOST and not managed:
        return None
    ordinal = cuda.attribute(array.pointer, Attribute.DEVICE_ORDINAL)
    current = enter(cuda, ordinal)
    if current != ordinal and not managed:
        raise BufferError(
            f"it lies on GPU {ordinal}, and this thread uses GPU {current}: use one GPU per rank, see hpcoll.local_device"
        )
    _check_range(cuda, first, end)
    return array._replace(ordinal=current, managed=managed)


def enter(cuda: Driver, ordinal: int) -> int:
    """Give a thread without a CUDA context the one that all libraries share, as the CUDA runtime would; return the current GPU."""
    current = cuda.current_ordinal()
    if current is None:
        cuda("cuCtxSetCurrent", cuda.primary_context(ordinal))
        return ordinal
    return current


def _check_range(cuda: Driver, first: int, end: int) -> None:
    """Refuse memory that is not allocated to its end; mapped memory consists of several ranges in a row."""
    reached = first
    while reached < end:
        try:
            base, nbytes = cuda.address_range(reached)
        except DeviceError:
            raise BufferError(
                f"it needs {end - first} bytes at {first:#x}, of which {reached - first} are allocated"
            ) from None
        reached = base + nbytes


@lru_cache(maxsize=1)
def _epoll_ctl() -> Any:
    return ctypes.CDLL(None, use_errno=True).epoll_ctl


def _readable(address: int) -> bool:
    """Say whether the host can read a byte: the kernel answers with an error where a load would end the process."""
    # It reads the arguments of a call that cannot succeed before it looks at the file. They are shorter than 16 bytes: all on one page.
    _epoll_ctl()(-1, _EPOLL_CTL_ADD, -1, ctypes.c_void_p(address & -16))
    return ctypes.get_errno() != errno.EFAULT


def stream_of(array: DeviceArray, stream: Any, rank: int) -> int:
    """Return the handle of the stream that orders a call on an array: earlier work on it happens before the call.

    It is the caller's ``stream=``, see `stream_handle`; else the producer's, PyTorch's current one for its tensors, or the legacy default
    stream, which waits for all that were not made to ignore it.

    Raises:
        ArgumentError: not a stream, or one under capture.
    """
    handle = (
        array.stream or torch_stream(array.owner) or LEGACY_STREAM
        if stream is None
        else stream_handle(stream, rank)
    )
    cuda = driver()
    if cuda is not None and is_capturing(cuda, handle):
        raise ArgumentError(
            f"rank {rank}: stream {handle:#x} is being captured into a CUDA graph, which can hold no collective but "
            "a persistent one by one kernel of each rank (HPCOLL_CUDA_PATH=device)"
        )
    return handle


def stream_handle(stream: Any, rank: int) -> int:
    """Return the handle of a stream: an int (0: legacy default stream), or an object of CuPy, PyTorch, Numba, or ``__cuda_stream__``."""
    try:
        handle = _handle(stream)
    except (AttributeError, IndexError, TypeError):
        handle = -1
    if handle < 0 or isinstance(stream, bool):
        raise ArgumentError(f"rank {rank}: stream needs a CUDA stream or its handle, got {stream!r}")
    return handle or LEGACY_STREAM


def _handle(stream: Any) -> int:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1].__int__())
    handle: Any = next(
        (getattr(stream, name) for name in ("cuda_stream", "ptr", "handle") if hasattr(stream, name)), stream
    )
    if isinstance(handle, ctypes.c_void_p):
        return handle.value or 0
    is_number = isinstance(handle, int | float | np.number)
    return operator.index(handle) if is_number else int(handle.__int__())


def torch_stream(owner: Any) -> int:
    """Return the handle of PyTorch's current stream for one of its tensors; 0 for anything else."""
    torch: Any = sys.modules.get("torch")
    is_tensor = isinstance(owner, getattr(torch, "Tensor", ()))
    if not is_tensor:
        return 0
    return int(torch.cuda.current_stream(owner.device).cuda_stream) or LEGACY_STREAM


def is_capturing(cuda: Driver, stream: int) -> bool:
    """Say whether a stream cannot be used because one is being captured into a CUDA graph."""
    try:
        return cuda.is_capturing(stream)
    except DeviceError as error:
        if error.code != _CAPTURE_ELSEWHERE:
            raise
        return True
