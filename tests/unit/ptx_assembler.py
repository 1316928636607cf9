"""NVIDIA's assembler, which needs no GPU."""

from typing import Any


def assemble(kernel: Any, cc: tuple[int, int]) -> str:
    """Return what NVIDIA's assembler says about a kernel; it refuses instructions that the text's version does not have."""
    from cuda.bindings import nvjitlink

    handle = nvjitlink.create(2, [f"-arch=sm_{cc[0]}{cc[1]}", "-verbose"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, kernel.ptx, len(kernel.ptx), kernel.name)
        nvjitlink.complete(handle)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return log.decode()
