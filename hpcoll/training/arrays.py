"""Arrays of NumPy, CuPy and PyTorch as what a training computes with: NumPy's on hosts, CuPy's on GPUs, without a copy."""

import importlib
from typing import Any

import numpy as np

from hpcoll.base.errors import ArgumentError, ArgumentTypeError


def as_array(given: Any) -> Any:
    """An array over the same memory: NumPy's, or CuPy's for what is in GPU memory.

    Args:
        given: An array, or a PyTorch tensor, whose gradient is not followed.

    Raises:
        ArgumentTypeError: neither of NumPy, CuPy nor PyTorch, or a GPU array where CuPy is not installed.
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
    """NumPy, or CuPy."""
    return np if isinstance(array, np.ndarray) else importlib.import_module("cupy")


def type_of(name: Any) -> np.dtype:
    """An element type that travels.

    Raises:
        ArgumentError: not a floating-point type.
    """
    if name == "bfloat16":
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    try:
        found = np.dtype(name)
    except TypeError:
        found = np.dtype(np.uint8)
    if found.kind != "f" and found.name != "bfloat16":
        raise ArgumentError(f"wire must be a floating-point type, got {name!r}")
    return found
