"""Page-locked memory under mirrors: used again, and ordinary memory where there is none."""

import gc

import pytest
from cuda_double import Double
from driver_cases import OP, arrays, both, driver

from hpcoll.runtime.gpu import device

pytestmark = pytest.mark.double(forgives=("failures",))


def test_pinned_memory_is_used_again(double: Double) -> None:
    def idle() -> list[int]:
        return [len(device._idle_pinned(driver(), size)) for size in (16384, 32768)]

    x, y = double.Array(5000), double.Array(5000)
    for _ in range(3):
        theirs, store = both("Allreduce", (x, y, OP))
        del theirs, store
        gc.collect()
    assert double.calls["cuMemHostAlloc"] == 2
    assert idle() == [0, 2]
    kept = both("Allreduce", (x[:4000], y[:4097], OP))  # sizes of the same power of two
    assert idle() == [0, 1]
    part = kept[0][1][5:]
    del kept
    gc.collect()
    assert idle() == [1, 1]  # a view keeps it
    part[:] = 1
    del part
    gc.collect()
    assert idle() == [1, 2]


def test_no_memory_to_pin(double: Double) -> None:
    x, y = arrays(double)
    double.fail("cuMemHostAlloc", 2)
    theirs, store = both("Allreduce", (x, y, OP))
    assert theirs[0].tolist() == [0, 1, 2, 3, 4, 5]
    theirs[1][:] = 4
    store()
    assert y.get().tolist() == [4] * 6
    double.fail("cuMemHostAlloc", 2)
    assert device.pinned(driver(), 100).ctypes.data % 64 == 0
