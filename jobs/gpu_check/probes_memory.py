"""A probe of kinds of GPU memory: their attributes, and the ways in which other processes can be given them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from driver import (
    ATTACH_GLOBAL,
    FILE_DESCRIPTOR,
    ON_DEVICE,
    PINNED,
    POINTER_ATTRIBUTES,
    READ_WRITE,
    Access,
    Gpu,
    Properties,
    attempt,
    say,
)

_NBYTES = 4 << 20
_SMALL = 1000


def memory() -> None:
    """Probe plain, small plain, pooled, managed, expandable and pinned memory."""
    gpu = Gpu()
    kinds: dict[str, Callable[[], int]] = {
        "plain": lambda: gpu.allocate(_NBYTES),
        "plain, small": lambda: gpu.allocate(_SMALL),
        "of a pool": lambda: gpu.value(c_uint64, "cuMemAllocAsync", _NBYTES, None),
        "managed": lambda: gpu.value(c_uint64, "cuMemAllocManaged", _NBYTES, ATTACH_GLOBAL),
        "expandable": lambda: expandable(gpu, 0),
        "expandable, exportable": lambda: expandable(gpu, FILE_DESCRIPTOR),
        "pinned": lambda: gpu.pinned(_NBYTES),
    }
    for kind, make in kinds.items():
        address = attempt(f"{kind}: address", make)
        if address:
            describe(gpu, kind, address)
    free(gpu)


def describe(gpu: Gpu, kind: str, address: int) -> None:
    """Print the attributes of a pointer, whether it can be filled and read, and whether the legacy call exports it."""
    found: dict[str, object] = {}
    for what, (number, ctype) in POINTER_ATTRIBUTES.items():
        value = ctype()
        code = gpu.code("cuPointerGetAttribute", ctypes.addressof(value), number, address)
        found[what] = value.value if code == 0 else gpu.error(code)
    say(f"{kind}: attributes", found)
    base, nbytes = c_uint64(), c_size_t()
    attempt(f"{kind}: range", lambda: gpu("cuMemGetAddressRange_v2", byref(base), byref(nbytes), address))
    say(f"{kind}: starts before it, bytes", [address - base.value, nbytes.value])
    attempt(f"{kind}: fill", lambda: gpu.fill(address, 3, _SMALL))
    attempt(f"{kind}: read", lambda: gpu.bytes_at(address, _SMALL) == b"\3" * _SMALL)
    attempt(f"{kind}: export", lambda: gpu.export(address).hex())


def expandable(gpu: Gpu, handle_types: int) -> int:
    """Return physical memory mapped to a reserved address, as PyTorch's expandable segments are; with a file descriptor where asked."""
    properties = Properties(kind=PINNED, handle_types=handle_types, location=ON_DEVICE, ordinal=gpu.device)
    granularity = gpu.value(c_size_t, "cuMemGetAllocationGranularity", byref(properties), 0)
    say("expandable: granularity", granularity, "bytes")
    nbytes = -(-_NBYTES // granularity) * granularity
    address = gpu.value(c_uint64, "cuMemAddressReserve", 2 * nbytes, 0, 0, 0)
    handle = gpu.value(c_uint64, "cuMemCreate", nbytes, byref(properties), 0)
    gpu("cuMemMap", address, nbytes, 0, handle, 0)
    access = Access(ON_DEVICE, gpu.device, READ_WRITE)
    gpu("cuMemSetAccess", address, nbytes, byref(access), 1)

    def to_file() -> str:
        file = c_int(-1)
        gpu("cuMemExportToShareableHandle", ctypes.addressof(file), handle, FILE_DESCRIPTOR, 0)
        target = os.readlink(f"/proc/self/fd/{file.value}")
        os.close(file.value)
        return target

    attempt(f"expandable, handle types {handle_types}: file descriptor", to_file)
    gpu("cuMemRelease", handle)  # the mapping keeps the memory
    return address


def free(gpu: Gpu) -> None:
    """Give kinds of memory back, as their allocators do."""
    pooled = gpu.value(c_uint64, "cuMemAllocAsync", _NBYTES, None)
    attempt("of a pool: freed in order", lambda: gpu("cuMemFreeAsync", pooled, None))
    attempt("waited for", lambda: gpu("cuStreamSynchronize", None))
    address = expandable(gpu, 0)
    base, nbytes = c_uint64(), c_size_t()
    gpu("cuMemGetAddressRange_v2", byref(base), byref(nbytes), address)
    attempt("expandable: cuMemFree (refused)", lambda: gpu("cuMemFree_v2", address))
    attempt("expandable: unmapped", lambda: gpu("cuMemUnmap", address, nbytes.value))
    attempt("expandable: address given back", lambda: gpu("cuMemAddressFree", address, 2 * nbytes.value))
    pinned = gpu.value(c_void_p, "cuMemHostAlloc", _SMALL, 0)
    attempt("pinned: freed", lambda: gpu("cuMemFreeHost", pinned))
