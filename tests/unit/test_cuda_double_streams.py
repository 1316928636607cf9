"""The double of the CUDA driver: work is late, and races are found."""

import ctypes

import numpy as np
import pytest
from cuda_double import Double
from driver_cases import N, driver, filled, recorded, wait

pytestmark = pytest.mark.double(forgives=("races", "failures"))


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


def test_readers_do_not_race_nor_does_what_the_host_waited_for(double: Double) -> None:
    one, first = filled(double, 1), driver().stream()
    driver()("cuMemsetD8Async", one, 5, N, first)
    driver()("cuMemsetD8Async", one, 6, N, first)
    wait(double, recorded(first))
    for _ in range(3):
        target = filled(double, 0)
        driver().copy(target, one, N, driver().stream())
    double.finish()
    assert set(double.array(target, N)) == {6}  # a stream keeps its order
    driver()("cuMemsetD8Async", one, 7, N, driver().stream())
    assert not double.races


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
