"""Mirrors of GPU arrays on the host: which copies wait for what, on which lanes, and when results are stored."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from driver_cases import OP, address, arrays, both, copies, driver, mirrored

from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.comm.arguments import host_mirror
from hpcoll.comm.arguments.host_mirror import Mirror, mirror_of
from hpcoll.comm.arguments.memory import gpu_memory

pytestmark = pytest.mark.double(forgives=("failures",))


def test_stream_must_be_one(double: Double) -> None:
    x, y = arrays(double)
    with pytest.raises(ArgumentError, match="rank 4: stream needs a CUDA stream or its handle, got 'x'"):
        mirrored("Allreduce", (x, y, OP), "x", 4)
    stream = double.stream()
    double.capture(stream)
    with pytest.raises(ArgumentError, match=f"rank 4: stream {stream:#x} is being captured"):
        mirrored("Allreduce", (x, y, OP), stream, 4)


@pytest.mark.parametrize("given", [False, True])
def test_ordering(double: Double, given: bool) -> None:
    """What the caller queued before is waited for, on every array's own stream; nothing else is."""
    mine, other, third = double.stream(), double.stream(), double.stream()
    x, y = double.Array(6, stream=None if given else mine), double.Array(6, stream=None if given else other)
    double.later(mine, x.address, np.arange(6, dtype=np.float32))
    double.later(mine if given else other, y.address, np.ones(6, np.float32))
    double.later(third, double.Array(6).address, np.ones(6, np.float32))
    theirs, store = both("Allreduce", (x, y, OP), mine if given else None)
    assert len(double.pending()) == 1  # the third stream's
    assert theirs[0].tolist() == [0, 1, 2, 3, 4, 5]
    theirs[1][:] = 7
    store()
    assert y.get().tolist() == [7] * 6  # the copy has ended, and what was queued before it
    assert double.calls["cuStreamSynchronize"] == 0
    assert len(double.pending()) == 1


def test_dlpack_producer_is_told_the_stream(double: Double) -> None:
    producer, ours = double.stream(), double.stream()
    x = double.Array(6, stream=producer)
    double.later(producer, x.address, np.arange(6, dtype=np.float32))
    exported = double.dlpack(x)
    assert both("Bcast", (exported, 0), ours)[0][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert exported.streams == [ours]


def test_again_and_again(double: Double) -> None:
    """As a persistent request uses it."""
    x, y = arrays(double)
    one = mirror_of("Allreduce", (x, y, OP), None, 0)
    assert isinstance(one, Mirror)
    assert copies(double) == 0
    for turn in range(3):
        x.fill(turn)
        one.fetch()
        np.add(one.arguments[0], 1, out=one.arguments[1])
        one.store()
        assert y.get().tolist() == [turn + 1] * 6
    assert double.calls["cuMemHostAlloc"] == 2
    assert double.calls["cuStreamCreate"] == 1


def test_results_from_another_thread(double: Double) -> None:
    x, y = arrays(double)
    theirs, store = both("Allreduce", (x, y, OP))
    theirs[1][:] = 5
    thread = threading.Thread(target=store)
    thread.start()
    thread.join()
    assert y.get().tolist() == [5] * 6


def test_threads_do_not_share_lanes(double: Double) -> None:
    x, y = arrays(double)
    first = host_mirror._take(driver(), 0)
    both("Allreduce", (x, y, OP))
    idle = host_mirror._idle(driver(), 0)
    assert len(idle) == 1
    assert not set(first) & set(idle[0])


def test_driver_fails(double: Double) -> None:
    x, y = arrays(double)
    for name in ("cuMemcpyAsync", "cuEventRecord", "cuEventSynchronize"):
        double.fail(name, 999)
        with pytest.raises(DeviceError, match=f"{name} failed with CUDA_ERROR_UNKNOWN"):
            mirrored("Allreduce", (x, y, OP), None, 0)
    assert both("Allreduce", (x, y, OP))[0][0].tolist() == [0, 1, 2, 3, 4, 5]


# --- as messages use it


def one_to_receive(double: Double, x: Any, stream: int | None = None) -> Mirror:
    array = gpu_memory(x, "x", writable=True, bare=True, stream=None)
    assert array is not None
    return Mirror((x,), {0: array}, 0, {0}, {1 if stream is None else stream})


def test_only_what_has_come_is_stored(double: Double) -> None:
    x, _ = arrays(double)
    mine = one_to_receive(double, x)
    mine.follow()
    assert copies(double) == 0
    host = mine.arguments[0]
    host[:] = 9
    at = address(host)
    mine.store([(at + 4, at + 12), (at + 20, at + 24)])
    assert x.get().tolist() == [0, 9, 9, 3, 4, 9]
    assert copies(double) == 2
    mine.store([])
    assert copies(double) == 2


def test_following_does_not_wait(double: Double) -> None:
    """What is stored comes after what was queued before, and the lane is for others again, also when nothing comes."""
    stream = double.stream()
    x, _ = arrays(double)
    double.later(stream, x.address, np.zeros(6, np.float32))
    mine = one_to_receive(double, x, stream)
    mine.follow()
    assert len(double.pending()) >= 1
    assert host_mirror._idle(driver(), 0) == []
    mine.arguments[0][:] = 9
    mine.store()
    assert x.get().tolist() == [9] * 6
    assert len(host_mirror._idle(driver(), 0)) == 1
    mine.follow()
    del mine
    gc.collect()
    assert len(host_mirror._idle(driver(), 0)) == 1
    assert double.calls["cuStreamCreate"] == 1


def test_everything_is_fetched_on_demand(double: Double) -> None:
    x, _ = arrays(double)
    mine = one_to_receive(double, x)
    mine.fetch()
    assert copies(double) == 0
    mine.fetch(everything=True)
    assert mine.arguments[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_streams_are_finished(double: Double) -> None:
    """Those that are named, and no others."""
    first, second, third = double.stream(), double.stream(), double.stream()
    spots = [double.Array(6).fill(0) for _ in range(3)]
    for stream, spot in zip((first, second, third), spots):
        double.later(stream, spot.address, np.ones(6, np.float32))
    host_mirror.finish_streams(0, {first, second})
    assert [spot.get().tolist() for spot in spots[:2]] == [[1] * 6] * 2
    assert len(double.pending()) == 1
    double.finish()
