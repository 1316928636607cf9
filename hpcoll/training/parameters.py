"""Arrays of NumPy, CuPy, PyTorch and others for training, and the agreement of all ranks on them and on settings.

Gradient buckets work on views of arrays, parameter servers on host arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcoll.base.agreement import agreed
from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.text import meant
from hpcoll.comm.arguments.memory import gpu_memory
from hpcoll.comm.gpu.mirror import Mirror
from hpcoll.runtime.gpu.arrays import stream_of
from hpcoll.training.shards import ShardLayout

Array = NDArray[Any]
_NO_NUMBERS = "biuOSUMm"  # kinds of element types that gradients cannot have

# --- views, of gradient buckets


def as_array(given: Any) -> Any:
    """Return an array, or a PyTorch tensor, as an array over the same memory: NumPy's, or CuPy's for GPU memory.

    ArgumentTypeError: it is neither, or it is in GPU memory and CuPy is not installed.
    """
    if isinstance(given, np.ndarray):
        return given
    if hasattr(given, "detach"):
        given = given.detach()
    if hasattr(given, "__cuda_array_interface__"):
        try:
            return importlib.import_module("cupy").asarray(given)
        except ImportError as error:
            raise ArgumentTypeError(f"training with GPU arrays needs CuPy: {error}") from error
    if not hasattr(given, "__array__"):
        raise ArgumentTypeError(f"expected an array, got {type(given).__name__}")
    return np.asarray(given)


def module_of(array: Any) -> Any:
    """Return the array's module: NumPy or CuPy."""
    return np if isinstance(array, np.ndarray) else importlib.import_module("cupy")


def device_of(array: Any) -> str:
    """Return "cpu" or "cuda"."""
    return "cpu" if isinstance(array, np.ndarray) else "cuda"


def type_of(name: Any) -> np.dtype:
    """Return the element type that gradients are sent with; ArgumentError where it is no floating-point type."""
    if name == "bfloat16":
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    try:
        element = np.dtype(name)
    except TypeError:
        element = np.dtype(np.uint8)
    if element.kind != "f" and element.name != "bfloat16":
        raise ArgumentError(f"wire must be a floating-point type, got {name!r}")
    return element


# --- host arrays, of parameter servers


def layouts_of(arrays: Mapping[str, Array]) -> tuple[ShardLayout, ...]:
    """Return names, shapes and element types of host arrays."""
    return tuple(ShardLayout(name, array.shape, array.dtype.name) for name, array in arrays.items())


def readable(arrays: Mapping[str, Any], what: str, rank: int) -> dict[str, Array]:
    """Return host arrays with the content of arrays in host or GPU memory.

    ArgumentError: not a mapping of names to arrays of floating-point numbers that this rank can read.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(
            f"rank {rank}: {what}s need a dict of arrays by name, got {type(arrays).__name__}"
        )
    hosts = {}
    for name, given in arrays.items():
        subject = f"rank {rank}: {what} of parameter {name!r}"
        hosts[name] = array = _readable(given, subject, rank)
        if array.dtype.kind in _NO_NUMBERS or array.dtype.names:
            raise ArgumentError(f"{subject} needs floating-point numbers, got {array.dtype}")
    return hosts


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
    """Return host arrays to write to, and a function that then copies those of GPU arrays to the GPU.

    ArgumentError: an array cannot be written in place: it is read-only, not contiguous, or on another GPU.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"rank {rank}: pull needs a dict of arrays by name, got {type(arrays).__name__}")
    hosts = {}
    mirrors = []
    for name, array in arrays.items():
        subject = f"rank {rank}: array for parameter {name!r}"
        mirror = _mirror(array, subject, rank, writable=True)
        if mirror is not None:
            mirrors.append(mirror)
        one = np.asarray(mirror.arguments[0]) if mirror is not None else _as_numpy(array)
        if not (isinstance(one, np.ndarray) and one.flags.c_contiguous and one.flags.writeable):
            raise ArgumentError(
                f"{subject} needs contiguous memory that can be written, got {type(array).__name__}"
            )
        hosts[name] = one

    def store() -> None:
        for mirror in mirrors:
            mirror.store()

    return hosts, store


def _as_numpy(array: Any) -> Any:
    """Return a host array as NumPy's over the same memory."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    return np.from_dlpack(array.detach() if hasattr(array, "detach") else array)


def _mirror(array: Any, subject: str, rank: int, *, writable: bool) -> Mirror | None:
    """Return host memory for a GPU array; None for a host array."""
    memory = gpu_memory(array, subject, writable=writable, bare=True, stream=None)
    if memory is None:
        return None
    streams = {stream_of(memory, None, rank)}
    return Mirror((array,), {0: memory}, 0 if writable else None, {0} if writable else set(), streams)


def check_nan(arrays: Mapping[str, Array], rank: int) -> None:
    """Refuse gradients with a NaN; the ArgumentError names parameter and first index, and says how many there are."""
    for name, array in arrays.items():
        nan = np.isnan(array)
        if nan.any():
            index = tuple(int(i) for i in np.argwhere(nan)[0])
            raise ArgumentError(
                f"rank {rank}: gradient of parameter {name!r} has {nan.sum()} NaN, the first at {index}"
            )


# --- agreement of all ranks


def agree(comm: MPI.Intracomm, wrong: str, facts: dict[str, Any], layouts: Sequence[ShardLayout]) -> None:
    """Compare settings and layouts of parameters with rank 0's; collective.

    ``wrong`` is the text of the error that this rank has found by itself, or "". Where some rank's arguments are wrong or differ, all ranks
    raise ArgumentError, which names the rank and the argument or parameter.
    """
    everyone = agreed(comm.allgather, wrong, facts, tuple(layouts))
    expected = everyone[0]
    for rank, theirs in enumerate(everyone):
        text = difference(theirs, expected)
        if text or [layout.name for layout in theirs] != [layout.name for layout in expected]:
            raise ArgumentError(
                f"rank {rank}: the list of parameters, compared with rank 0's, {text or 'is in another order'}"
            )


def difference(theirs: Sequence[ShardLayout], expected: Sequence[ShardLayout]) -> str:
    """Return the first difference between lists of arrays in words, whatever their order; the empty string for none."""
    have, need = ({layout.name: layout for layout in layouts} for layouts in (theirs, expected))
    for name in [*need, *have]:
        if name not in have:
            return f"lacks parameter {name!r}"
        if name not in need:
            return f"has parameter {name!r}, which there is not: {', '.join(need)}{meant(need, name)}"
        if have[name] != need[name]:
            one = need[name]
            other = have[name]
            return f"of parameter {name!r} needs {one.dtype} of shape {one.shape}, got {other.dtype} of shape {other.shape}"
    return ""


def check_like(arrays: Mapping[str, Array], expected: Sequence[ShardLayout], what: str, rank: int) -> None:
    """Refuse arrays that are not like the parameters; the ArgumentError names the first parameter that differs."""
    wrong = difference(layouts_of(arrays), expected)
    if wrong:
        raise ArgumentError(f"rank {rank}: {what} {wrong}")


def agreed_parameters(
    comm: MPI.Intracomm, given: Mapping[str, Any] | Sequence[Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parameters by name, after checking that all ranks have the same, and the same settings; collective.

    Arrays without names have numbers. All ranks raise ArgumentError if a rank's parameters cannot be used, or anything differs.
    """
    parameters = dict[str, Any]()
    problem = ""
    try:
        parameters = _parameters(given)
    except ArgumentError as error:
        problem = f"rank {comm.rank}: {error}"
    layouts = [
        ShardLayout(name, tuple(array.shape), f"{array.dtype} on {device_of(array)}")
        for name, array in parameters.items()
    ]
    agree(comm, problem, dict(settings), layouts)
    return parameters


def _parameters(given: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    named = given if isinstance(given, Mapping) else dict(enumerate(given))
    parameters = {str(name): as_array(array) for name, array in named.items()}
    for name, array in parameters.items():
        first = next(iter(parameters))
        device = device_of(array)
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise ArgumentError(f"parameter {name!r} must have floating-point elements, got {array.dtype}")
        if device != device_of(parameters[first]):
            raise ArgumentError(
                f"parameter {name!r} must be on {device_of(parameters[first])} as {first!r} is, got {device}"
            )
    if not parameters:
        raise ArgumentError("expected parameters, got none")
    return parameters
