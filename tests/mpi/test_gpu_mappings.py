"""GPU memory of other ranks is mapped once per process; shared memory is page-locked for GPUs when needed; failures are loud."""

import gc
from typing import Any

import gpu_cases
import pytest
from cuda_double import installed
from gpu_cases import read
from gpu_double import LONG, SHORT, WORLD, allreduce, communicator
from internals import resources
from reference import ensure, ensure_none, unless

from hpcoll.runtime.gpu.cuda import ALREADY_MAPPED

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.double(forgives=("failures",)), pytest.mark.once]


@pytest.mark.mpi(min_size=2)
def test_a_way_that_should_exist_is_no_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(ipc=False, forgives=("failures",)) as double:
        with pytest.raises(pytest.fail.Exception, match="HPCOLL_CUDA_PATH is ipc, but"):
            gpu_cases.communicator("ipc", double.Array)
        monkeypatch.setenv(gpu_cases.WITHOUT, "ipc,staged")
        with pytest.raises(pytest.skip.Exception, match="HPCOLL_CUDA_PATH is ipc, but"):
            gpu_cases.communicator("ipc", double.Array)


@pytest.mark.parametrize("way", ["staged", None])
def test_gpus_that_reach_host_memory_at_other_addresses(way: str | None) -> None:
    with installed(host_pointers=False) as double:
        comm = communicator(way)
        wrong = [count for count in (LONG, SHORT) if not allreduce(comm, double, count)]
        ensure_none(wrong)
        comm.Free()


def already_mapped(double: Any) -> list[str]:
    return [text for text in double.failures if "ALREADY_MAPPED" in text]


def test_communicators_share_what_is_mapped(double: Any) -> None:
    """A process may open an allocation once, whatever communicators use it, and closes it behind the last of them."""
    comms, wrong = [communicator("ipc") for _ in range(3)], []
    send, recv = double.Array(LONG).fill(1), double.Array(LONG)
    for comm in (*comms, *comms):
        comm.Allreduce(send, recv.fill(0), algorithm="direct")
        wrong += [] if (read(recv) == comm.size).all() else [len(wrong)]
    opened = [sum(bool(one.handle) for one in double.memory)]
    while comms:
        comm = comms.pop()
        comm.Allreduce(send, recv.fill(0), algorithm="direct")
        wrong += unless((read(recv) == comm.size).all(), comms)
        comm.Free()
        del comm
        gc.collect()
        opened.append(sum(bool(one.handle) for one in double.memory))
    wrong += unless(opened[0] <= 3 * (WORLD.size - 1) and opened[-1] == 0, opened)
    ensure_none(wrong + already_mapped(double))


def test_memory_that_is_open_at_first_is_tried_again(double: Any) -> None:
    """Its owner may have forgotten what hinders it since stale mappings were closed."""
    comm = communicator("ipc")
    wrong = unless(allreduce(comm, double), "first")
    double.fail("cuIpcOpenMemHandle_v2", ALREADY_MAPPED)
    send, recv = double.Array(LONG).fill(1), double.Array(LONG).fill(0)
    comm.Allreduce(send, recv, algorithm="direct")
    wrong += unless((read(recv) == comm.size).all(), "again")
    wrong += unless(comm.size == 1 or "cuIpcOpenMemHandle_v2" not in double.failing, "nothing was opened")
    ensure_none(wrong)
    comm.Free()


def test_memory_that_came_again_for_another_communicator(double: Any) -> None:
    """It lies where freed memory lay that peers have mapped for other communicators, which do not use it any more."""
    comms, wrong = [communicator("ipc") for _ in range(2)], []
    for turn in range(4):
        send, recv = double.Array(LONG).fill(turn), double.Array(LONG).fill(0)
        comms[turn % 2].Allreduce(send, recv, algorithm="direct")
        wrong += unless((read(recv) == WORLD.size * turn).all(), turn)
        WORLD.Barrier()
        if WORLD.rank != turn % 3:
            recv.free()
            send.free()  # last, so that its place is the first to be taken
    ensure_none(wrong + already_mapped(double))
    for comm in comms:
        comm.Free()


@pytest.mark.mpi(min_size=2)
def test_staging_memory_that_is_refused_is_reported(
    double: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = communicator("staged")
    node = resources(comm).node
    monkeypatch.setattr(node, "_limit", 0)
    monkeypatch.setattr(node, "refused", "an earlier refusal, which was reported")
    ensure(allreduce(comm, double), "wrong")
    texts = [
        text for text in caplog.messages if text.startswith("GPU arrays travel by MPI on this node: rank 0: ")
    ]
    told = any("of shared memory cannot be had" in text for text in texts)
    ensure(told, caplog.messages)
    comm.Free()
