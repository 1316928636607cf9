"""Functions of the C library that compiled code calls by address."""

import ctypes
from functools import cache


@cache
def function_address(name: str) -> int:
    """Address of a function of the C library."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address is not None
    return address
