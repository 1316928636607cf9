"""The bits of results on GPU arrays are those of host arrays: as cases that run anywhere, like `gpu_cases`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from exact_reference import hard_numbers
from gpu_cases import REDUCING, Maker, agreed, read, write

import hpcoll


def numbers(dtype: str, comm: Any, count: int) -> np.ndarray:
    """Return this rank's numbers, which are hard to add, but all finite: the bits of NaN are the hardware's, but for exact sums."""
    x = hard_numbers(
        dtype.replace("complex64", "float32"), comm.size, 2 * count, np.random.default_rng(count)
    )
    found: np.ndarray = x[comm.rank].view(dtype)[:count].copy()
    found[~np.isfinite(found)] = 1
    return found


def check_bits(comm: hpcoll.Communicator, make: Maker, count: int) -> None:
    """Sums in rank order and exact sums, by the algorithm that is picked and by others."""
    wrong: list[object] = []
    exact, ordered = {"op": hpcoll.EXACT_SUM}, {"order": "rank"}
    asked: list[tuple[str, dict[str, Any]]] = [
        (method, one) for method in REDUCING for one in (ordered, exact)
    ]
    for method, options in [*asked, ("Allreduce", {**exact, "algorithm": "ring"})]:
        for dtype in (
            ("float64", "float32", "float16", "complex64") if count < 100 else ("float64", "complex64")
        ):
            host = numbers(dtype, comm, count * comm.size)
            found, send, recv = np.zeros_like(host), make(host.size, host.dtype), make(host.size, host.dtype)
            write(send, host)
            write(recv, found)
            blocks = method == "Reduce_scatter_block"
            getattr(comm, method)(host, found[: count if blocks else None], **options)
            getattr(comm, method)(send, recv[: count if blocks else None], **options)
            if read(recv, host.dtype).tobytes() != found.tobytes():
                wrong.append((method, dtype, str(options)))
    assert agreed(wrong) == []


class View:
    """Part of an array on the GPU, of any shape and strides."""

    def __init__(self, array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self._array = array  # is kept alive
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "shape": shape, "strides": strides}


def _pairs(make: Maker, host: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
    """Yield host arrays of two axes, and arrays on the GPU with the same elements: as they lie, with gaps, transposed."""
    array = make(host.size, host.dtype)
    write(array, host)
    whole = host.reshape(-1, 6)
    for part in (whole, whole[:, ::2], whole[::3].T):
        yield part, View(array, part.shape, part.strides)


def check_exact_arrays(comm: hpcoll.Communicator, make: Maker) -> None:
    """Exact sums, means, norms and products of distributed arrays, along every axis."""
    wrong: list[object] = []
    for dtype in ("float64", "float32", "float16", "complex64", "int32"):
        host = numbers(dtype, comm, 180) if dtype != "int32" else numbers("float64", comm, 90).view(dtype)
        for part, given in _pairs(make, host):
            for function in (hpcoll.exact_sum, hpcoll.exact_mean, hpcoll.exact_norm):
                for axis in (None, 0, 1):
                    found, wanted = function(comm, given, axis), function(comm, part, axis)
                    wrong += [] if _same(found, wanted) else [(function.__name__, dtype, part.strides, axis)]
            found, wanted = hpcoll.exact_dot(comm, given, given), hpcoll.exact_dot(comm, part, part)
            wrong += [] if _same(found, wanted) else [("exact_dot", dtype, part.strides)]
    assert agreed(wrong) == []


def _same(one: Any, other: Any) -> bool:
    """Say whether type, shape and bits are."""
    one, other = np.asarray(one), np.asarray(other)
    return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
