"""The names of `hpcoll.kernels.vectors` for CUDA's simulator, which has no intrinsics and no libdevice.

A pointer is an array here, a vector a tuple of its elements.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.np.numpy_support import as_dtype


class SimulatedAccess:
    """Vectors of ``nlanes`` elements of an array."""

    def __init__(self, nlanes: int) -> None:
        self.nlanes = nlanes

    def load(self, array: Any, index: int) -> tuple[Any, ...]:
        """Vector number ``index``."""
        return tuple(array[index * self.nlanes + lane] for lane in range(self.nlanes))

    def store(self, array: Any, index: int, values: tuple[Any, ...]) -> None:
        """Write vector number ``index``."""
        for lane, value in enumerate(values):
            array[index * self.nlanes + lane] = value

    def split(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Elements of a vector."""
        return values

    join = split


def access(element: Any, nlanes: int) -> SimulatedAccess:
    """Stand in for `hpcoll.kernels.vectors.access`."""
    return SimulatedAccess(nlanes)


def calls(function: Callable[..., Any], signature: Any) -> Any:
    """Stand in for `hpcoll.kernels.vectors.calls`."""
    result = as_dtype(signature.return_type).type
    return lambda *values: result(function(*values))


def lanewise(function: Callable[..., Any], signature: Any, nlanes: int) -> Any:
    """Stand in for `hpcoll.kernels.vectors.lanewise`."""
    called = calls(function, signature)

    def call(*given: Any) -> tuple[Any, ...]:
        return tuple(
            called(*lane)
            for lane in zip(
                *(one if isinstance(one, tuple) else (one,) * nlanes for one in given), strict=True
            )
        )

    return call


def address(array: Any) -> int:
    """Return the address of an array."""
    return int(array.ctypes.data)


def ahead(array: Any, count: int) -> Any:
    """Stand in for `hpcoll.kernels.vectors.ahead`."""
    return array[count:]


def copier(itemsize: int) -> Callable[..., None]:
    """Stand in for `hpcoll.kernels.vectors.copier`."""

    def copy(dst: Any, dst_offset: int, src: Any, src_offset: int) -> None:
        for byte in range(itemsize):
            dst[dst_offset + byte] = src[src_offset + byte]

    return copy


def float_bits(value: Any) -> Any:
    """Bits of a float32."""
    return np.float32(value).view(np.uint32)


def float_of_bits(bits: Any) -> Any:
    """The float32 of some bits."""
    return np.uint32(bits).view(np.float32)


def float_of_half(bits: Any) -> Any:
    """The float32 of a float16's bits."""
    return np.float32(np.uint16(bits).view(np.float16))


def half_of_float(value: Any) -> Any:
    """Bits of the float16 nearest to a float32."""
    return np.float16(value).view(np.uint16)
