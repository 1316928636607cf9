"""The double of the CUDA driver computes what kernels are named after, and makes arrays as GPU libraries do."""

import ctypes

import numpy as np
import pytest
from cuda_double import Double, kernels
from driver_cases import N, driver, launch, ptx, queue

from hpcoll.base.errors import DeviceError

pytestmark = pytest.mark.double(forgives=("races", "failures"))


def fold(double: Double, entry: str, target: int, *sources: int, count: int = N) -> int:
    unused = [sources[-1]] * (8 - len(sources))
    return launch(double, entry, *[target] * 8, 1, *sources, *unused, len(sources), count)


def test_strided_runs_interleave_without_a_race(double: Double) -> None:
    whole, dense = double.Array((6, 4), np.int64), double.Array(6, np.int64)
    column = double.Array(5, np.int64).fill([0, 0, 8, 6, 32])
    one, stream = double.Array(1, np.int64).fill(7), driver().stream
    # the first column
    assert queue(double, "move_8", dense.address, whole.address, column.address, 1, 1, 6, 0) == 0
    driver().copy(whole[2:, 1].address, one.address, 8, stream())
    assert not double.races
    driver().copy(whole[2:, 0].address, one.address, 8, stream())
    assert len(double.races) == 1


def test_kernels_touch_what_gpus_can(double: Double) -> None:
    gpu, pinned, host = double.Array(N), double.Array(N, memory="pinned").fill(2), np.ones(N, np.float32)
    entry = "fold_sum_float32"
    assert fold(double, entry, gpu.address, pinned.address, pinned.address) == 0
    assert set(gpu.get()) == {4}
    assert fold(double, entry, gpu.address, gpu.address, host.ctypes.data) == 700
    driver().register(host.ctypes.data, host.nbytes)
    assert fold(double, entry, host.ctypes.data, gpu.address, host.ctypes.data) == 0
    assert set(host) == {5}
    assert fold(double, entry, gpu.address, pinned.address, pinned.address, count=N + 1) == 700
    # overlaps its source partly
    assert fold(double, entry, gpu.address + 4, gpu.address, pinned.address, count=N - 1) == 700
    assert fold(double, entry, gpu.address + 2, pinned.address, pinned.address, count=1) == 716
    piece = double.Array(3, np.int64).fill([0, 4, 8])
    assert launch(double, "move_8", gpu.address + 64, gpu.address, piece.address, 1, 0, 1, 0) == 716
    assert launch(double, entry, *[gpu.address] * 8, 1, *[pinned.address] * 8, 2, N, block=0) == 1
    assert launch(double, entry, *[gpu.address] * 8, 1, *[pinned.address] * 8, 1, N) == 1
    assert launch(double, entry, *[gpu.address] * 8, 0, *[pinned.address] * 8, 2, N) == 1
    assert launch(double, entry, *[gpu.address] * 7, 0, 1, *[pinned.address] * 8, 2, N) == 1
    assert fold(double, "fold_unheard_float32", gpu.address, *[pinned.address] * 2) == 1
    assert "leave their memory" in "".join(double.failures)


def test_kernels_of_hpcoll(double: Double) -> None:
    pytest.importorskip("cuda.bindings", reason="the kernels need numba-cuda and a CUDA toolkit")
    from hpcoll.base import ops
    from hpcoll.kernels import device

    float32, cc = np.dtype(np.float32), (9, 0)
    for kernel, kind in [
        (device.fold(ops.SUM, float32, cc), "fold"),
        (device.scale(float32, float32, cc), "scale"),
        (device.move(8, cc), "move"),
    ]:
        (declared,) = kernels.entries(kernel.ptx.decode()).values()
        assert len(declared) == kernels.nparams(kind)
        assert {one[1:] for one in declared} == {"64"}


def test_modules_are_read(double: Double) -> None:
    with pytest.raises(DeviceError, match="NOT_FOUND"):
        driver().function(ptx("fold_sum_float32"), "fold_sum_float64")
    with pytest.raises(DeviceError, match="INVALID_PTX"):
        driver().function(b"nothing", "fold_sum_float32")
    for declared in ([".u64"] * 5, [".u64"] * 5 + [".u32"]):
        parameters = ", ".join(f".param {one} p" for one in declared)
        text = f".version 8.0 .target sm_80 .entry scale_float32_float32({parameters})"
        assert queue(double, "scale_float32_float32", *[0] * 6, text=text.encode()) == 1
        assert "6 of 8 bytes are expected" in double.failures[-1]


def test_a_caller_works_late(double: Double) -> None:
    array, stream = double.Array(3).fill(1), double.stream()
    double.later(stream, array.address, np.float32([4, 5, 6]))
    assert array.get().tolist() == [1, 1, 1]
    assert [race.second for race in double.races] == ["the host reads"]
    driver()("cuStreamSynchronize", stream)
    assert array.get().tolist() == [4, 5, 6]
    assert len(double.races) == 1


def test_dlpack_of_gpu_memory(double: Double) -> None:
    array, stream, consumer = double.Array(N), double.stream(), double.stream()
    array.stream = stream
    double.later(stream, array.address, np.ones(N, np.float32))
    pack = double.dlpack(array)
    capsule = pack.__dlpack__(stream=consumer)
    assert pack.__dlpack_device__() == (2, 0)
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    assert ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value == array.address
    del capsule
    assert pack.nexported == 0
    assert pack.streams == [consumer]
    driver()("cuMemsetD8Async", array.address, 0, 4 * N, consumer)
    assert not double.races  # the export made the consumer's stream wait
