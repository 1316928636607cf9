"""Objects that export GPU memory of the driver's double, and what is found of them."""

from typing import Any

from hpcoll.runtime.gpu.arrays import DeviceArray, device_array


class Cai:
    """Exports any memory through the CUDA array interface only."""

    def __init__(self, pointer: int, shape: tuple[int, ...], typestr: str = "<f4", **changes: Any) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (pointer, False), "version": 3} | changes


def on_gpu(buffer: Any, stream: int | None = None) -> DeviceArray:
    array = device_array(buffer, stream)
    assert array is not None
    return array
