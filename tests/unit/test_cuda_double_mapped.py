"""The double of the CUDA driver: pools, managed and mapped memory are refused as by the driver; work is late, and races are found."""

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint64

import cuda_double
import numpy as np
import pytest
from cuda_double import Double, installed
from cuda_double.calls_virtual import GRANULARITY, Access, Properties
from cuda_double.failures import INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY
from driver_cases import N, driver, filled, recorded, wait

from hpcoll.runtime.gpu.cuda import Attribute

pytestmark = pytest.mark.double(forgives=("races", "failures"))


def properties(**other: int) -> Properties:
    return Properties(**{"kind": 1, "location": 1, "ordinal": 0, **other})


def value(double: Double, name: str, *arguments: object) -> int:
    found = c_uint64()
    double(name, byref(found), *arguments)
    return found.value


class Mapped:
    """Memory that is mapped, and may be touched."""

    def __init__(self, double: Double, handle_types: int = 0) -> None:
        self.handle = value(
            double, "cuMemCreate", GRANULARITY, byref(properties(handle_types=handle_types)), 0
        )
        self.address = value(double, "cuMemAddressReserve", 2 * GRANULARITY, 0, 0, 0)
        double("cuMemMap", self.address, GRANULARITY, 0, self.handle, 0)


def allow(double: Double, one: Mapped, **other: int) -> int:
    access = Access(**{"location": 1, "ordinal": 0, "flags": 3, **other})
    code: int = double.library.cuMemSetAccess(one.address, GRANULARITY, byref(access), 1)
    return code


def copied(double: Double, address: int) -> int:
    source = driver().allocate(8)
    code: int = double.library.cuMemcpyAsync(source, address, 8, None)
    driver()("cuMemFree_v2", source)
    return code


def test_mapped_memory_holds_what_is_written_and_is_not_freed_as_plain_memory_is(double: Double) -> None:
    one = Mapped(double)
    assert allow(double, one) == 0
    double.array(one.address, GRANULARITY)[:] = 7
    assert double.array(one.address + GRANULARITY - 1, 1)[0] == 7
    assert driver().attribute(one.address, Attribute.CAN_BE_EXPORTED) == 0
    assert double.library.cuMemFree_v2(one.address) == INVALID_VALUE
    assert double.library.cuIpcGetMemHandle(driver_handle(), one.address) == INVALID_VALUE
    assert double.library.cuMemAddressFree(one.address, 2 * GRANULARITY) == INVALID_VALUE
    double("cuMemRelease", one.handle)
    assert double.array(one.address, 1)[0] == 7  # the mapping keeps it
    before = len(os.listdir("/proc/self/fd"))
    double("cuMemUnmap", one.address, GRANULARITY)
    assert len(os.listdir("/proc/self/fd")) == before - 2
    assert double.library.cuMemUnmap(one.address, GRANULARITY) == INVALID_VALUE
    double("cuMemAddressFree", one.address, 2 * GRANULARITY)


def driver_handle() -> object:
    from hpcoll.runtime.gpu.cuda import IpcHandle

    return byref(IpcHandle())


def test_mapped_memory_is_known_only_with_access(double: Double) -> None:
    one = Mapped(double)
    assert driver().attribute(one.address, Attribute.MEMORY_TYPE) == 0
    assert allow(double, one, ordinal=1) == allow(double, one, flags=1) == INVALID_VALUE
    assert allow(double, one) == 0
    assert driver().attribute(one.address, Attribute.MEMORY_TYPE) == 2
    assert copied(double, one.address) == 0


@pytest.mark.parametrize(
    ("other", "nbytes", "code"),
    [
        ({}, GRANULARITY + 1, INVALID_VALUE),
        ({}, 0, INVALID_VALUE),
        ({"kind": 0}, GRANULARITY, INVALID_VALUE),
        ({"location": 2}, GRANULARITY, INVALID_VALUE),
        ({"ordinal": 1}, GRANULARITY, INVALID_DEVICE),
        ({"handle_types": 8}, GRANULARITY, NOT_SUPPORTED),
    ],
)
def test_memory_that_cannot_be_made(other: dict[str, int], nbytes: int, code: int, double: Double) -> None:
    assert double.library.cuMemCreate(byref(c_uint64()), nbytes, byref(properties(**other)), 0) == code


def test_mapped_memory_takes_room_until_it_is_released_and_unmapped(double: Double) -> None:
    free, total = c_size_t(), c_size_t()

    def used() -> int:
        double("cuMemGetInfo_v2", byref(free), byref(total))
        return total.value - free.value

    one = Mapped(double)
    assert used() == GRANULARITY
    double("cuMemRelease", one.handle)
    assert used() == GRANULARITY
    assert double.library.cuMemCreate(byref(c_uint64()), total.value, byref(properties()), 0) == OUT_OF_MEMORY
    double("cuMemUnmap", one.address, GRANULARITY)
    assert used() == 0
    value(double, "cuMemCreate", total.value, byref(properties()), 0)


@pytest.mark.parametrize("reaches", [False, True])
def test_whether_gpus_reach_each_other_is_told(reaches: bool) -> None:
    with installed(2, peer_access=reaches) as one:
        found = c_int(-1)
        one("cuDeviceCanAccessPeer", byref(found), 0, 1)
        assert found.value == reaches


def test_mappings_that_do_not_fit(double: Double) -> None:
    one = Mapped(double)
    for address, nbytes in (
        (one.address, GRANULARITY),
        (one.address + GRANULARITY, 1),
        (one.address + 2 * GRANULARITY, GRANULARITY),
    ):
        assert double.library.cuMemMap(address, nbytes, 0, one.handle, 0) == INVALID_VALUE
    assert (
        double.library.cuMemMap(one.address + GRANULARITY, GRANULARITY, 0, one.handle + 1, 0) == INVALID_VALUE
    )
    double("cuMemMap", one.address + GRANULARITY, GRANULARITY, 0, one.handle, 0)  # the same memory twice
    assert double.library.cuMemAddressReserve(byref(c_uint64()), 1, 0, 0, 0) == INVALID_VALUE


@pytest.mark.parametrize(("handle_types", "code"), [(0, INVALID_VALUE), (1, 0)])
def test_a_file_descriptor_only_where_it_was_asked_for(handle_types: int, code: int, double: Double) -> None:
    one, file = Mapped(double, handle_types), c_int(-1)
    assert double.library.cuMemExportToShareableHandle(ctypes.addressof(file), one.handle, 1, 0) == code
    assert (file.value >= 0) is (code == 0)
    if code == 0:
        assert os.fstat(file.value).st_size == GRANULARITY
        os.close(file.value)


def test_pools_and_managed_memory(double: Double) -> None:
    pooled, managed = value(double, "cuMemAllocAsync", 100, None), value(double, "cuMemAllocManaged", 100, 1)
    assert [driver().attribute(address, Attribute.IS_MANAGED) for address in (pooled, managed)] == [0, 1]
    assert [bool(driver().attribute(address, Attribute.MEMPOOL_HANDLE)) for address in (pooled, managed)] == [
        True,
        False,
    ]
    assert [driver().attribute(address, Attribute.CAN_BE_EXPORTED) for address in (pooled, managed)] == [0, 0]
    assert double.library.cuMemAllocManaged(byref(c_uint64()), 100, 0) == INVALID_VALUE
    free, total = c_size_t(), c_size_t()
    double("cuMemGetInfo_v2", byref(free), byref(total))
    assert total.value - free.value == 200
    double("cuMemFreeAsync", pooled, None)
    assert double.library.cuMemFreeAsync(pooled, None) == INVALID_VALUE


def test_work_is_late(double: Double) -> None:
    source, target, stream = filled(double, 7), filled(double, 1), driver().stream()
    driver().copy(target, source, N, stream)
    event = recorded(stream)
    driver()("cuMemsetD8Async", source, 9, N, stream)
    assert double.array(target, N).max() == 1
    wait(double, event)
    assert double.array(target, N).min() == 7
    assert double.array(source, N).max() == 7  # behind the event, and nobody has asked
    double.finish(stream)
    assert double.array(source, N).min() == 9
    assert not double.races


def test_an_event_is_not_ready_at_first(double: Double) -> None:
    stream = driver().stream()
    times = []
    for _ in range(40):
        driver()("cuMemsetD8Async", filled(double, 0), 1, N, stream)
        times.append(wait(double, recorded(stream)))
    assert set(times) == {0, 1, 2, 3}
    assert double.library.cuEventQuery(driver().event()) == 0  # never recorded


def test_a_stream_keeps_its_order(double: Double) -> None:
    one, stream = filled(double, 0), driver().stream()
    for value in range(1, 20):
        driver()("cuMemsetD8Async", one, value, N, stream)
    wait(double, recorded(stream))
    assert set(double.array(one, N)) == {19}
    assert not double.races


@pytest.mark.parametrize("ordered", [True, False])
def test_streams_wait_for_events_only(double: Double, ordered: bool) -> None:
    one, two, first, second = filled(double, 1), filled(double, 2), driver().stream(), driver().stream()
    driver()("cuMemsetD8Async", one, 5, N, first)
    if ordered:
        driver()("cuStreamWaitEvent", second, recorded(first), 0)
    driver().copy(two, one, N, second)
    wait(double, recorded(second))
    assert set(double.array(two, N)) == ({5} if ordered else {1})
    assert double.pending() == ([] if ordered else [f"fill on stream {first:#x}"])
    assert [(race.lo, race.hi) for race in double.races] == ([] if ordered else [(one, one + N)])


@pytest.mark.parametrize(("lo", "hi", "races"), [(0, 10, 1), (599, 700, 1), (600, 700, 0)])
def test_races_are_of_the_same_bytes(double: Double, lo: int, hi: int, races: int) -> None:
    one = filled(double, 1)
    driver()("cuMemsetD8Async", one, 5, 600, driver().stream())
    driver()("cuMemsetD8Async", one + lo, 6, hi - lo, driver().stream())
    assert len(double.races) == races


def test_readers_do_not_race(double: Double) -> None:
    one = filled(double, 1)
    for _ in range(3):
        driver().copy(filled(double, 0), one, N, driver().stream())
    assert not double.races


def test_what_the_host_waited_for_races_with_nothing(double: Double) -> None:
    one, first = filled(double, 1), driver().stream()
    driver()("cuMemsetD8Async", one, 5, N, first)
    wait(double, recorded(first))
    driver()("cuMemsetD8Async", one, 6, N, driver().stream())
    assert not double.races


def test_what_only_happened_to_be_done_races() -> None:
    double = cuda_double.install(eager=1)
    one = filled(double, 1)
    driver()("cuMemsetD8Async", one, 5, N, driver().stream())
    assert double.array(one, N).min() == 5
    driver()("cuMemsetD8Async", one, 6, N, driver().stream())
    assert len(double.races) == 1
    double.uninstall()


def test_races_are_refused_where_strict() -> None:
    double = cuda_double.install(strict=True)
    one = filled(double, 1)
    driver()("cuMemsetD8Async", one, 5, N, driver().stream())
    assert double.library.cuMemsetD8Async(one, 6, N, driver().stream()) == 700
    double.uninstall()


def test_the_host_races_too(double: Double) -> None:
    one, two, stream = filled(double, 1, "pinned"), filled(double, 1), driver().stream()
    driver().copy(two, one, N, stream)
    double.touch(one, N, False)
    assert not double.races
    double.touch(one + N - 1, 1, True)
    double.touch(two, 1, False)
    assert [race.second for race in double.races] == ["the host writes", "the host reads"]
    wait(double, recorded(stream))
    double.touch(one, N, True)
    assert len(double.races) == 2


@pytest.mark.parametrize(("blocking", "default"), [(True, 0), (True, 1), (False, 0), (False, 1)])
def test_the_legacy_stream_and_blocking_streams_wait_for_each_other(
    double: Double, blocking: bool, default: int
) -> None:
    handle = ctypes.c_void_p()
    driver()("cuStreamCreate", ctypes.byref(handle), 0 if blocking else 1)
    stream, one = handle.value, filled(double, 0)
    driver()("cuMemsetD8Async", one, 1, N, stream)
    driver()("cuMemsetD8Async", one, 2, N, default)
    driver()("cuMemsetD8Async", one, 3, N, stream)
    assert len(double.races) == (0 if blocking else 2)
    driver()("cuMemsetD8Async", one, 4, N, 2)  # the thread's default stream blocks
    assert len(double.races) == (1 if blocking else 4)  # streams that block do not wait for each other
    double.finish()


def test_memory_is_freed_behind_its_work(double: Double) -> None:
    one, two = filled(double, 1), filled(double, 2)
    driver().copy(two, one, N, driver().stream())
    driver()("cuMemFree_v2", one)
    assert double.array(two, N).max() == 1
    assert double.library.cuMemcpyAsync(two, one, N, 0) == 1  # nobody's any more


def test_pageable_memory_is_copied_at_once(double: Double) -> None:
    one, stream = filled(double, 1), driver().stream()
    host = np.full(N, 3, np.uint8)
    driver().copy(one, host.ctypes.data, N, stream)
    host[:] = 9
    assert double.array(one, N).max() == 1
    driver().copy(host.ctypes.data, one, N, stream)
    assert set(host) == {3}
