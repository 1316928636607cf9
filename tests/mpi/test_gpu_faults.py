"""GPU arrays when something fails: the driver, mapping, the caller; and what is refused."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_double import installed
from gpu_cases import read
from gpu_double import LONG, SHORT, WORLD, allreduce, communicator
from mpi4py import MPI
from reference import ensure, ensure_none, raised, unless

import hpcoll
from hpcoll.base.errors import ArgumentError, DeviceError, PeerFailed
from hpcoll.runtime.engine import host_engine

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.double(forgives=("failures",)), pytest.mark.once]


@pytest.fixture
def failing() -> Iterator[Any]:
    """A double whose work may be left undone."""
    with installed(forgives=("races", "failures")) as made:
        yield made


def call(comm: hpcoll.Communicator, start: str, *arguments: Any, **options: Any) -> None:
    """An Allreduce of one of three kinds."""
    if start == "blocking":
        comm.Allreduce(*arguments, **options)
    elif start == "nonblocking":
        comm.Iallreduce(*arguments, **options).Wait()
    else:
        request = comm.Allreduce_init(*arguments, **options)
        request.Start()
        request.Wait()


STARTS = ("blocking", "nonblocking", "persistent")
FAILURES = [
    *(("cuMemcpyAsync", "native", SHORT, one) for one in STARTS[:1]),
    *(
        (name, "two_shot", LONG, one)
        for one in STARTS
        for name in ("cuStreamWaitEvent", "cuEventRecord", "cuEventQuery", "cuLaunchKernel")
    ),
    *((name, None, SHORT, one) for one in STARTS for name in ("cuMemcpyAsync", "cuEventSynchronize")),
]


def heard(error: BaseException | None) -> bool:
    """Say whether it is that of another rank, which was faster."""
    return isinstance(error, PeerFailed) and " gave up: DeviceError: " in str(error)


@pytest.mark.parametrize(("name", "algorithm", "count", "start"), FAILURES)
def test_an_error_of_the_driver(
    name: str, algorithm: str | None, count: int, start: str, failing: Any
) -> None:
    """It is named with the rank and the collective, and ends the communicator."""
    if name == "cuLaunchKernel" and WORLD.size == 1:
        pytest.skip("one rank has nothing to add up")
    comm = communicator()
    if count == LONG:
        assert allreduce(comm, failing)
    send, recv = failing.Array(count).fill(1), failing.Array(count)
    WORLD.Barrier()
    failing.fail(name, 719 if name == "cuLaunchKernel" else 700)
    error = raised(lambda: call(comm, start, send, recv, algorithm=algorithm))
    text = f"rank {comm.rank}: [Aa]llreduce.*, {comm.size} ranks: .*"
    found = isinstance(error, DeviceError) and error.code in (700, 719) and re.match(text, str(error))
    wrong = unless(found or heard(error), repr(error))
    again = raised(lambda: comm.Allreduce(np.ones(3), np.ones(3)))
    wrong += unless(isinstance(again, ArgumentError) and "cannot be used" in str(again), repr(again))
    ensure_none(wrong)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("start", STARTS[1:])
def test_an_error_at_the_end(start: str, failing: Any) -> None:
    """What remains to be done when the ranks are through, here a division."""
    comm = communicator()
    assert allreduce(comm, failing)
    send, recv = failing.Array(LONG).fill(1), failing.Array(LONG)
    failing.fail("cuEventSynchronize", 700)
    error = raised(lambda: call(comm, start, send, recv, hpcoll.AVG))
    assert heard(error) or (
        isinstance(error, DeviceError) and str(error).startswith(f"rank {comm.rank}: allreduce/")
    )
    with pytest.raises(ArgumentError, match="cannot be used"):
        comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_an_error_at_the_end_of_waitall(failing: Any) -> None:
    comm = communicator()
    send, recv = failing.Array(LONG).fill(1), failing.Array(LONG)
    request = comm.Iallreduce(send, recv, hpcoll.AVG)
    failing.fail("cuEventSynchronize", 700)
    with pytest.raises(MPI.Exception):
        MPI.Request.Waitall([request])
    with pytest.raises(ArgumentError, match="cannot be used"):
        comm.Barrier()


def test_results_are_there_after_waitall(double: Any) -> None:
    """Averages, half types, factors and host arrays, whose results need more than the collective."""
    comm, n = communicator(), WORLD.size
    half, single = np.float16, np.float32
    mine, there = double.Array(4 * LONG, half).fill(comm.rank), double.Array(4 * LONG, half)
    average = double.Array(LONG).fill(comm.rank)
    scaled, host_engine = double.Array(LONG).fill(1), np.zeros(LONG, single)
    requests = [
        comm.Iallreduce(mine, there),
        comm.Iallreduce(MPI.IN_PLACE, average, hpcoll.AVG),
        comm.Iallreduce(scaled, host_engine, hpcoll.premul_sum(3)),
    ]
    MPI.Request.Waitall(requests)
    assert (read(there) == n * (n - 1) / 2).all()
    assert (read(average) == (n - 1) / 2).all()
    assert (host_engine == 3 * n).all()
    comm.Free()


def test_memory_of_a_call_that_failed_is_not_used_again(failing: Any) -> None:
    """Work on it may still be under way."""
    comms = [communicator(), communicator()]
    send, recv = failing.Array(LONG).fill(1), failing.Array(LONG)
    assert allreduce(comms[1], failing)
    failing.fail("cuEventQuery", 700, after=2 * (WORLD.size > 1))
    error = raised(lambda: comms[0].Allreduce(send, recv, hpcoll.premul_sum(2), algorithm="direct"))
    assert isinstance(error, DeviceError) or heard(error)
    failing.races.clear()
    other, there = failing.Array(LONG).fill(1), failing.Array(LONG)
    comms[1].Allreduce(other, there, hpcoll.premul_sum(3))
    ensure_none(list(failing.races))
    ensure((read(there) == 3 * WORLD.size).all(), "wrong")


@pytest.mark.mpi(min_size=2)
def test_mapping_fails(failing: Any) -> None:
    comm = communicator()
    assert allreduce(comm, failing)
    send, recv = failing.Array(LONG + 1).fill(1), failing.Array(LONG + 1)
    failing.fail("cuIpcOpenMemHandle_v2", 2)
    why = "cuIpcOpenMemHandle_v2 failed with CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises((DeviceError, PeerFailed), match=f"rank {comm.rank}: .*cannot be mapped: {why}"):
        comm.Allreduce(send, recv, algorithm="direct")


def test_the_way_that_is_forced_does_not_exist() -> None:
    """All ranks are told, and host arrays are still served."""
    if WORLD.size == 1:
        pytest.skip("one rank needs no way")
    with installed(ipc=False, forgives=("races", "failures")) as double:
        comm = communicator("ipc")
        error = raised(lambda: allreduce(comm, double))
        texts = WORLD.allgather(str(error))
        assert isinstance(error, ArgumentError)
        assert len(set(texts)) == 1
        assert "cuIpcGetMemHandle failed with CUDA_ERROR_NOT_SUPPORTED" in texts[0]
        assert comm.allreduce(1) == comm.size
        comm.Barrier()
        comm.Free()


@pytest.mark.mpi(min_size=2)
def test_ways_that_differ_between_ranks(double: Any) -> None:
    text = str(raised(lambda: communicator("ipc" if WORLD.rank else "staged")))
    assert "must be equal on all ranks" in text
    assert len(set(WORLD.allgather(text))) == 1


def test_an_array_of_another_gpu() -> None:
    with installed(2, forgives=("races", "failures")) as double:
        comm = communicator()
        assert allreduce(comm, double)
        double.make_current(1)
        with pytest.raises(
            ArgumentError, match=f"rank {comm.rank}: this communicator uses GPU 0, got an array on GPU 1"
        ):
            allreduce(comm, double, ordinal=1)
        double.make_current(0)
        ensure(allreduce(comm, double), "wrong")
        comm.Free()


def test_an_array_that_was_freed(double: Any) -> None:
    """Also beside one that was not."""
    comm = communicator()
    assert allreduce(comm, double)
    send, recv = double.Array(LONG), double.Array(LONG)
    recv.free()
    for arguments, name in (((send, recv), "recvbuf"), ((recv, send), "sendbuf")):
        with pytest.raises(
            ArgumentError, match=f"rank {comm.rank}: {name} needs memory that can be read here"
        ):
            comm.Allreduce(*arguments)
    ensure(allreduce(comm, double), "wrong")
    comm.Free()


def test_arrays_of_two_streams(double: Any) -> None:
    comm = communicator()
    one, other = double.stream(), double.stream()
    send, recv = double.Array(LONG, stream=one), double.Array(LONG, stream=other)
    double.later(one, send.address, np.full(LONG, 2, np.float32))
    double.later(other, recv.address, np.full(LONG, -1, np.float32))
    comm.Allreduce(send, recv)
    ensure((read(recv) == 2 * comm.size).all(), "wrong")
    for stream in ("1", -3, True, object()):
        with pytest.raises(
            ArgumentError, match=f"rank {comm.rank}: stream needs a CUDA stream or its handle"
        ):
            comm.Allreduce(send, recv, stream=stream)
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_ctrl_c(failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when Python has its turn; in the double's own Python nothing could be raised."""
    comm = communicator()
    assert allreduce(comm, failing)
    send, recv = failing.Array(LONG).fill(1), failing.Array(LONG)
    WORLD.Barrier()
    problem = ""
    if comm.rank == 0:  # nobody else comes

        def interrupted(*arguments: int) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(host_engine, "call_compiled", interrupted)
        with pytest.raises(KeyboardInterrupt):
            comm.Allreduce(send, recv)
        error = raised(lambda: comm.Allreduce(send, recv))
        problem = "" if isinstance(error, ArgumentError) and "cannot be used" in str(error) else repr(error)
    ensure_none([problem] if problem else [])
