"""Memory behind objects that export it, host or GPU, and whether a call may use it."""

import contextlib
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentBufferError, ArgumentError, ArgumentKeyError, ArgumentTypeError, like
from hpcoll.base.text import text_of
from hpcoll.runtime.gpu import dlpack
from hpcoll.runtime.gpu.arrays import ON_HOST, DeviceArray, KnownArray, device_array
from hpcoll.runtime.gpu.cuda import driver

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
# what exporters raise
UNREADABLE = (
    TypeError,
    ValueError,
    BufferError,
    RuntimeError,
    LookupError,
    AttributeError,
)


def buffer_of(spec: Any) -> Any:
    """Return the buffer of a spec."""
    return spec[0] if isinstance(spec, (list, tuple)) and spec else spec


def with_buffer(spec: Any, buffer: Any) -> Any:
    """Return a spec with another buffer, as a list or a plain tuple: the spec may be a named tuple."""
    if isinstance(spec, list):
        return [buffer, *spec[1:]]
    return (buffer, *spec[1:]) if isinstance(spec, tuple) else buffer


def memory(
    buffer: object, datatype: object, subject: str, *, writable: bool, bare: bool, stream: int | None
) -> Array | DeviceArray | None:
    """Return an array over a buffer's memory, or None for a buffer that hpcoll does not know; arguments and errors as of `gpu_memory`."""
    if buffer is None:
        if datatype is None:
            raise ArgumentTypeError(
                f"{subject} needs a buffer, got None: write [None, 0, datatype] for no elements"
            )
        return np.empty(0, np.uint8)
    if not isinstance(buffer, np.ndarray):
        gpu = gpu_memory(buffer, subject, writable=writable, bare=bare, stream=stream)
        if gpu is not None:
            return gpu
    try:
        array = host_array(buffer)
    except UNREADABLE as error:
        raise _unreadable(buffer, subject, error) from error
    if array is None:
        return None
    flags = array.flags
    if array.dtype.hasobject:
        raise ArgumentKeyError(
            f"{subject} needs numbers, got Python objects (dtype {array.dtype}): use the lower-case method"
        )
    if not flags.forc:
        raise _not_contiguous(array, subject, "numpy.ascontiguousarray")
    if writable and not flags.writeable:
        raise _read_only(buffer, subject)
    return array


def gpu_memory(
    buffer: object, subject: str, *, writable: bool, bare: bool, stream: int | None
) -> DeviceArray | None:
    """Return an array in GPU memory that a call may use; None for any other buffer.

    Args:
        buffer: The buffer of a spec.
        subject: Rank and name of the argument, for error texts.
        writable: The call stores into the buffer.
        bare: The buffer is the whole spec. Then an array that is sent may have gaps.
        stream: Handle of the stream that orders the call, for the array's producer; None where the producer may choose.

    Raises:
        ArgumentError: Memory that cannot be used, not contiguous, read-only.
    """
    try:
        array = device_array(buffer, stream)
    except UNREADABLE as error:
        raise _unreadable(buffer, subject, error) from error
    if array is None:
        return None
    if not array.order and (writable or not bare):
        raise _not_contiguous(array, subject, "cupy.ascontiguousarray or torch's contiguous()")
    if writable and array.readonly:
        raise _read_only(array.owner if isinstance(buffer, KnownArray) else buffer, subject)
    return array


def find_gpu_array(argument: Any) -> DeviceArray | None:
    """Return the GPU array in a buffer argument, or None; describing the call finds what is wrong with it."""
    buffer = buffer_of(argument)
    if isinstance(buffer, np.ndarray) or buffer is None or buffer is MPI.IN_PLACE or driver() is None:
        return None
    try:
        return device_array(buffer)
    except UNREADABLE:
        return None


def _unreadable(buffer: object, subject: str, error: Exception) -> ArgumentError:
    return like(
        error,
        f"{subject} needs memory that can be read here, got a {type(buffer).__name__}: {text_of(error)}",
    )


def _not_contiguous(array: Array | DeviceArray, subject: str, how: str) -> ArgumentError:
    got = f"strides {array.strides} for shape {array.shape} {array.dtype}"
    return ArgumentBufferError(f"{subject} must be contiguous, got {got}: copy it with {how} first")


def _read_only(buffer: object, subject: str) -> ArgumentError:
    return ArgumentBufferError(f"{subject} must be writable, got a read-only {type(buffer).__name__}")


def host_array(buffer: Any) -> Array | None:
    """Return a NumPy array over an exporter's host memory, asked in mpi4py's order: buffer protocol, DLPack, CUDA array interface.

    The caller has found by `hpcoll.runtime.gpu.arrays.device_array` that it is no GPU memory.
    """
    if isinstance(buffer, np.ndarray):
        return np.asarray(buffer)
    if buffer is MPI.BOTTOM or buffer is MPI.IN_PLACE:  # these export an empty buffer
        return None
    try:  # `contextlib.suppress` takes as long as the rest
        return np.asarray(memoryview(buffer))
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(buffer, "__dlpack__"):
        return _of_dlpack(dlpack.export(buffer))
    if not hasattr(buffer, "__cuda_array_interface__"):
        return None
    return np.asarray(
        SimpleNamespace(__array_interface__=buffer.__cuda_array_interface__ | {"version": 3}, owner=buffer)
    )


def surroundings(array: Array | DeviceArray) -> tuple[int, int]:
    """Return the bytes before an array, and behind it, that belong to the object of which it is a view."""
    if isinstance(array, DeviceArray):
        return 0, 0
    whole = array
    while isinstance(
        owner := whole.base.obj if isinstance(whole.base, memoryview) else whole.base, np.ndarray
    ):
        whole = owner
    with contextlib.suppress(TypeError, ValueError):  # None, or an owner that exports no memory
        whole = np.asarray(memoryview(owner))  # type: ignore[arg-type]
    before = array.ctypes.data - whole.ctypes.data if whole.flags.forc else 0
    return before, max(0, whole.nbytes - before - array.nbytes)


def as_array(spec: Any) -> Any:
    """Return a spec with an array in place of a buffer that exports its host memory by DLPack only, so that compiled code can read it.

    A buffer that cannot be read, or not as a call may need it, stays as it is: describing the call says what is wrong.
    """
    buffer = buffer_of(spec)
    if isinstance(buffer, np.ndarray) or not hasattr(buffer, "__dlpack_device__"):
        return spec
    try:
        memoryview(buffer)
        return spec
    except UNREADABLE:
        pass
    with contextlib.suppress(*UNREADABLE):
        if buffer.__dlpack_device__()[0] in ON_HOST:
            array = _of_dlpack(dlpack.export(buffer))
            if array.flags.c_contiguous and array.flags.writeable:
                return with_buffer(spec, array)
    return spec


def _of_dlpack(tensor: dlpack.Tensor) -> Array:
    """Return a NumPy array that keeps a capsule, whose memory is given back with it; `numpy.from_dlpack` would consume it."""
    interface = {
        "version": 3,
        "shape": tensor.shape,
        "typestr": tensor.dtype.str,
        "strides": tensor.strides,
        "data": (tensor.pointer, tensor.readonly),
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=tensor.capsule)).view(tensor.dtype)
