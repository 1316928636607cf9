"""Arrays of gradients and parameters as NumPy arrays in host memory, checked: NumPy's own, DLPack's, and copies of GPU arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.host_mirror import Mirror
from hpcoll.comm.arguments.memory import gpu_memory
from hpcoll.runtime.gpu.arrays import stream_of
from hpcoll.training.agreement import difference
from hpcoll.training.shards import ShardLayout

Array = NDArray[Any]
_NO_NUMBERS = "biuOSUMm"  # kinds of element types that gradients cannot be of


def layouts_of(arrays: Mapping[str, Array]) -> tuple[ShardLayout, ...]:
    """Name, shape and element type of host arrays."""
    return tuple(ShardLayout(name, array.shape, array.dtype.name) for name, array in arrays.items())


def readable(arrays: Mapping[str, Any], what: str, rank: int) -> dict[str, Array]:
    """Host arrays with the contents of arrays of any kind.

    Raises:
        ArgumentError: not a mapping of names to arrays of floating-point numbers that this rank can read.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"rank {rank}: {what}s need a dict of arrays by name, got {type(arrays).__name__}")
    found = {name: _readable(array, f"rank {rank}: {what} of parameter {name!r}", rank) for name, array in arrays.items()}
    for name, array in found.items():
        if array.dtype.kind in _NO_NUMBERS or array.dtype.names:
            raise ArgumentError(f"rank {rank}: {what} of parameter {name!r} needs floating-point numbers, got {array.dtype}")
    return found


def _readable(array: Any, subject: str, rank: int) -> Array:
    mirror = _mirror(array, subject, rank, writable=False)
    if mirror is not None:
        mirror.fetch()
        return np.asarray(mirror.arguments[0])
    try:
        return np.ascontiguousarray(_as_numpy(array)).reshape(np.shape(array))
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ArgumentError(f"{subject} needs an array, got {type(array).__name__}: {error}") from error


def writable(arrays: Mapping[str, Any], rank: int) -> tuple[dict[str, Array], Callable[[], None]]:
    """Host arrays to write to, and what then brings their contents to the arrays of other memory.

    Raises:
        ArgumentError: an array that cannot be written in place: read-only, not contiguous, on another GPU.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"rank {rank}: pull needs a dict of arrays by name, got {type(arrays).__name__}")
    found, mirrors = {}, []
    for name, array in arrays.items():
        subject = f"rank {rank}: array for parameter {name!r}"
        mirror = _mirror(array, subject, rank, writable=True)
        if mirror is not None:
            mirrors.append(mirror)
        one = np.asarray(mirror.arguments[0]) if mirror is not None else _as_numpy(array)
        if not (isinstance(one, np.ndarray) and one.flags.c_contiguous and one.flags.writeable):
            raise ArgumentError(f"{subject} needs contiguous memory that can be written, got {type(array).__name__}")
        found[name] = one

    def store() -> None:
        for mirror in mirrors:
            mirror.store()

    return found, store


def _as_numpy(array: Any) -> Any:
    """The same memory as NumPy's array, where it is host memory."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    return np.from_dlpack(array.detach() if hasattr(array, "detach") else array)


def _mirror(array: Any, subject: str, rank: int, *, writable: bool) -> Mirror | None:
    """Host memory for a GPU array; None for arrays in host memory."""
    found = gpu_memory(array, subject, writable=writable, bare=True, stream=None)
    if found is None:
        return None
    streams = {stream_of(found, None, rank)}
    return Mirror((array,), {0: found}, 0 if writable else None, {0} if writable else set(), streams)


def check_like(found: Sequence[ShardLayout], expected: Sequence[ShardLayout], what: str, rank: int) -> None:
    """Refuse a list of arrays that is not like the parameters.

    Raises:
        ArgumentError: with the first parameter that differs.
    """
    wrong = difference(found, expected)
    if wrong:
        raise ArgumentError(f"rank {rank}: {what} {wrong}")


def check_nan(arrays: Mapping[str, Array], rank: int) -> None:
    """Refuse gradients with a NaN.

    Raises:
        ArgumentError: with parameter, index and how many there are.
    """
    for name, array in arrays.items():
        nan = np.isnan(array)
        if nan.any():
            index = tuple(int(i) for i in np.argwhere(nan)[0])
            raise ArgumentError(f"rank {rank}: gradient of parameter {name!r} has {nan.sum()} NaN, the first at {index}")
