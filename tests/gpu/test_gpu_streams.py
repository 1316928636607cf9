"""Order on streams: a call takes what its stream is still writing, its result is there for what follows on that stream, others run on."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from gpu_cases import WAYS, Maker, communicator
from mpi4py import MPI
from reference import agreed

import hpcoll
from hpcoll.base.errors import ArgumentError

pytestmark = [pytest.mark.gpu, pytest.mark.mpi(min_size=1)]
COUNTS = (5, 70_001, 3_000_017)
SLOW_S, SLOWER_S = 0.05, 1.5
_SPIN = r"""
extern "C" __global__ void spin(long long ns) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - start < ns);
}
"""

Spin = Callable[[float], None]


@pytest.fixture(scope="module")
def spin(cupy: Any) -> Spin:
    """Keeps CuPy's current stream busy for some seconds."""
    kernel = cupy.RawKernel(_SPIN, "spin")

    def run(seconds: float) -> None:
        kernel((1,), (1,), (cupy.int64(int(seconds * 1e9)),))

    return run


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("way", [None, *WAYS])
def test_in_order_on_the_callers_stream(
    way: str | None, named: bool, cupy: Any, spin: Spin, make: Maker
) -> None:
    """The stream is named by the keyword, or by the array, which CuPy makes say what is current."""
    comm, wrong = communicator(way, make), []
    stream = cupy.cuda.Stream(non_blocking=True)
    for count in COUNTS:
        x, y = cupy.full(count, -1.0), cupy.full(count, -1.0)
        cupy.cuda.Device().synchronize()
        for turn in (1, 2):
            with stream:
                spin(SLOW_S)
                x.fill(comm.rank + turn)
                if not named:
                    comm.Allreduce(x, y)
            if named:
                comm.Allreduce(x, y, stream=stream)
            with stream:
                z = y * 2
                x.fill(-5)  # what has been sent may be overwritten
            stream.synchronize()
            if not (z == 2 * sum(rank + turn for rank in range(comm.size))).all():
                wrong.append((count, turn))
    assert agreed(wrong) == []


@pytest.mark.parametrize("way", [None, *WAYS])
def test_other_streams_run_on(way: str | None, cupy: Any, spin: Spin, make: Maker) -> None:
    comm = communicator(way, make)
    mine, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    x = [cupy.ones(count) for count in COUNTS]
    cupy.cuda.Device().synchronize()
    for one in x:  # planned, compiled and mapped before
        comm.Allreduce(MPI.IN_PLACE, one, stream=mine)
    with other:
        spin(0)
    cupy.cuda.Device().synchronize()
    if comm.rank == 0:
        with other:
            spin(SLOWER_S)
    start = time.perf_counter()
    for one in x:
        comm.Allreduce(MPI.IN_PLACE, one, stream=mine)
    seconds, running = time.perf_counter() - start, not other.done
    other.synchronize()
    assert agreed([seconds] if comm.rank == 0 and (seconds > SLOWER_S or not running) else []) == []


def test_requests_wait_for_their_stream(cupy: Any, spin: Spin, make: Maker) -> None:
    comm, stream = communicator(None, make), cupy.cuda.Stream(non_blocking=True)
    wrong = []
    for count in COUNTS:
        x, y = cupy.full(count, -1.0), cupy.full(count, -1.0)
        persistent = comm.Allreduce_init(x, y, stream=stream)
        for start in (lambda x=x, y=y: comm.Iallreduce(x, y, stream=stream), persistent.Start):
            cupy.cuda.Device().synchronize()
            with stream:
                spin(SLOW_S)
                x.fill(comm.rank + 1)
            request = start() or persistent
            request.Wait()
            with stream:
                good = (y == comm.size * (comm.size + 1) / 2).all()
                y.fill(-1)
            stream.synchronize()
            wrong += [] if bool(good) else [count]
        persistent.Free()
    assert agreed(wrong) == []


def test_tensors_on_the_current_stream(torch: Any, make: Maker) -> None:
    comm, wrong = communicator(None, make), []
    stream = torch.cuda.Stream()
    for count in COUNTS:
        with torch.cuda.stream(stream):
            x = torch.full((count,), -1.0, device="cuda")
            torch.cuda._sleep(50_000_000)
            x.fill_(comm.rank + 1)
            comm.Allreduce(MPI.IN_PLACE, x)
            good = (x == comm.size * (comm.size + 1) / 2).all().item()
        wrong += [] if good else [count]
    assert agreed(wrong) == []


def test_what_is_no_stream_is_refused(cupy: Any, make: Maker) -> None:
    comm, x = communicator(None, make), cupy.ones(5)
    for bad in ("x", 1.5, -1, True, object()):
        with pytest.raises(ArgumentError, match="stream"):
            comm.Allreduce(MPI.IN_PLACE, x, stream=bad)
    captured = cupy.cuda.Stream(non_blocking=True)
    with captured:
        captured.begin_capture()
        try:
            with pytest.raises(hpcoll.ArgumentError, match="captured"):
                comm.Allreduce(MPI.IN_PLACE, x, stream=captured)
        finally:
            captured.end_capture()
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (x == comm.size).all()
