"""Mirrors of GPU arrays on the host: which copies wait for what, on which lanes, and when results are stored."""

import threading
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from driver_cases import OP, address, arrays, both, copies, mirrored

from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.comm.arguments.memory import gpu_memory
from hpcoll.comm.gpu import mirror
from hpcoll.comm.gpu.mirror import Mirror

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


def test_results_from_another_thread(double: Double) -> None:
    x, y = arrays(double)
    theirs, store = both("Allreduce", (x, y, OP))
    theirs[1][:] = 5
    thread = threading.Thread(target=store)
    thread.start()
    thread.join()
    assert y.get().tolist() == [5] * 6


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


def test_streams_are_finished(double: Double) -> None:
    """Those that are named, and no others."""
    first, second, third = double.stream(), double.stream(), double.stream()
    spots = [double.Array(6).fill(0) for _ in range(3)]
    for stream, spot in zip((first, second, third), spots):
        double.later(stream, spot.address, np.ones(6, np.float32))
    mirror.finish_streams(0, {first, second})
    assert [spot.get().tolist() for spot in spots[:2]] == [[1] * 6] * 2
    assert len(double.pending()) == 1
    double.finish()
