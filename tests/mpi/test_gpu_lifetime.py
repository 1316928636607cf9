"""GPU arrays of all kinds of memory, on several GPUs, freed and made anew; streams, threads, and what is given back."""

import gc
import threading
from typing import Any

import numpy as np
import pytest
from cuda_double import installed
from gpu_cases import read, write
from gpu_double import LONG, SHORT, WORLD, allreduce, communicator
from internals import context
from mpi4py import MPI
from reference import ensure, ensure_none, unless

import hpcoll
from hpcoll.runtime.gpu import device

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.double(forgives=("failures",)), pytest.mark.once]


@pytest.mark.parametrize("options", [{"ipc": False}, {"peer_access": False}], ids=str)
def test_memory_that_peers_cannot_map(options: dict[str, Any]) -> None:
    """Without CUDA IPC, and on two GPUs that do not reach each other."""
    mine = 0 if "ipc" in options else WORLD.rank % 2
    with installed(2, current=mine, forgives=("failures",), **options) as double:
        comm = communicator()
        wrong = [count for count in (LONG, SHORT) if not allreduce(comm, double, count, ordinal=mine)]
        ensure_none(wrong)
        assert not double.races
        comm.Free()


@pytest.mark.parametrize("memory", ["device", "pooled", "managed"])
def test_any_memory(memory: str, double: Any) -> None:
    """Also such as cannot be exported, and parts of allocations."""
    comm = communicator()
    whole = double.Array(3 * LONG, memory=memory).fill(-1)
    whole[LONG : 2 * LONG].fill(comm.rank + 1)
    comm.Allreduce(MPI.IN_PLACE, whole[LONG : 2 * LONG])
    found = read(whole).reshape(3, LONG)
    ensure(([-1, comm.size * (comm.size + 1) / 2, -1] == found.T).all(), found)
    assert double.failures == []  # it is not even tried to export what cannot be
    comm.Free()


def test_peers_let_go_of_freed_memory(double: Any) -> None:
    comm = communicator()
    allreduce(comm, double)
    before = sum(bool(one.handle) for one in double.memory)
    wrong = []
    for i in range(12):
        send, recv = double.Array(LONG + 3000 * i).fill(comm.rank), double.Array(LONG + 3000 * i)
        comm.Allreduce(send, recv, algorithm="direct")
        wrong += unless((read(recv) == comm.size * (comm.size - 1) / 2).all(), i)
        WORLD.Barrier()
        send.free()
        recv.free()
    after = sum(bool(one.handle) for one in double.memory)
    ensure_none(wrong)
    assert after - before <= 4 * (comm.size - 1)
    comm.Free()


def test_other_memory_at_the_same_address_on_some_ranks(double: Any) -> None:
    comm = communicator()
    send, recv = double.Array(LONG).fill(1), double.Array(LONG)
    wrong = []
    for turn in range(4):
        comm.Allreduce(send, recv, algorithm="direct")
        wrong += unless((read(recv) == comm.size).all(), turn)
        if comm.rank == turn % comm.size:
            address = send.address
            send.free()
            send = double.Array(LONG).fill(1)
            wrong += unless(send.address == address, "another address")
    ensure_none(wrong)
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_more_allocations_than_can_be_exported(double: Any) -> None:
    comm = communicator()
    allreduce(comm, double)
    directory = context(comm).gpu._routes.directory
    directory._free = directory._free[-129:]
    arrays = [double.Array(LONG).fill(comm.rank) for _ in range(3)]
    found = []
    for array in arrays:
        comm.Allreduce(MPI.IN_PLACE, array)
        found.append((read(array) == comm.size * (comm.size - 1) / 2).all())
    ensure(all(found), found)
    assert "allocations are exported already" in directory.problem
    comm.Free()


def test_an_array_over_two_allocations_is_not_exported_by_the_first(double: Any) -> None:
    comm = communicator("ipc")
    allreduce(comm, double)
    directory, array = context(comm).gpu._routes.directory, double.Array(LONG)
    assert (directory is None) == (comm.size == 1)
    if directory is not None:
        assert directory.export(array.address, array.nbytes)
        assert not directory.export(array.address, array.nbytes + 1)
        assert "one allocation" in directory.problem
    comm.Free()


def test_the_threads_gpu_is_left_as_it_was() -> None:
    with installed(2) as double:
        comm = communicator()
        send, recv = double.Array(LONG).fill(1), double.Array(LONG)
        request = comm.Iallreduce(send, recv, hpcoll.AVG)
        memory = device.Memory(device.gpu_of(0), 4096)
        double.make_current(1)
        del memory
        assert double.current() == 1
        request.Wait()
        assert double.current() == 1
        comm.Free()
        gc.collect()
        assert double.current() == 1


def balance(double: Any) -> dict[str, int]:
    """Return what is made and not given back."""
    pairs = {
        "cuEventCreate": "cuEventDestroy_v2",
        "cuMemHostRegister_v2": "cuMemHostUnregister",
        "cuStreamCreate": "cuStreamDestroy_v2",
        "cuMemAlloc_v2": "cuMemFree_v2",
        "cuIpcOpenMemHandle_v2": "cuIpcCloseMemHandle",
    }
    return {made: double.calls[made] - double.calls[freed] for made, freed in pairs.items()}


@pytest.mark.parametrize("way", ["ipc", "staged"])
def test_communicators_in_a_row_leave_nothing(way: str, double: Any) -> None:
    found, freed = [], []
    for _ in range(4):
        comm = communicator(way)
        parts = [comm.Split(comm.rank % 2), comm.Dup(), comm]
        wrong = [part.size for part in parts if not allreduce(part, double, SHORT)]
        ensure_none(wrong)
        request = comm.Allreduce_init(double.Array(SHORT).fill(1), double.Array(SHORT))
        request.Start()
        request.Wait()
        request.Free()
        freed.append(request)  # who keeps one keeps no memory
        for part in parts:
            part.Free()
        del comm, parts, part
        gc.collect()
        WORLD.Barrier()
        found.append(balance(double))
    ensure_none([] if found[1:] == [found[1]] * 3 else found)


def test_persistent_calls_in_a_row_share_streams(double: Any) -> None:
    comm = communicator("staged")
    send, recv = double.Array(SHORT).fill(1), double.Array(SHORT)
    for _ in range(40):
        request = comm.Bcast_init(send, 0) if comm.rank == 0 else comm.Bcast_init(recv, 0)
        request.Start()
        request.Wait()
        request.Free()
    assert double.calls["cuStreamCreate"] + double.calls["cuStreamCreateWithPriority"] <= 25
    comm.Free()


@pytest.mark.parametrize("count", [SHORT, LONG])
def test_a_start_follows_the_stream_of_then(count: int, double: Any) -> None:
    comm = communicator()
    send, recv = double.Array(count).fill(0), double.Array(count)
    request = comm.Allreduce_init(send, recv)
    wrong = []
    for turn in (1, 2, 3):
        send.stream = double.stream()
        double.later(send.stream, send.address, np.full(count, turn, np.float32))
        request.Start()
        request.Wait()
        wrong += unless((read(recv) == turn * comm.size).all(), turn)
    ensure_none(wrong)
    request.Free()
    comm.Free()


def test_a_start_does_not_ask_for_counts(double: Any) -> None:
    """Ranks may start persistent calls in any order."""
    comm = communicator()
    recvs = [double.Array(LONG + i) for i in range(2)]
    sends = [double.Array(comm.size * (LONG + i)).fill(1) for i in range(2)]
    requests = [comm.Reduce_scatter_init(send, recv) for send, recv in zip(sends, recvs)]
    for request in requests if comm.rank % 2 else requests[::-1]:
        request.Start()
    MPI.Request.Waitall(requests)
    ensure(all((read(recv) == comm.size).all() for recv in recvs), "wrong")
    comm.Free()


def test_two_threads_with_a_communicator_each(double: Any) -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("threads may not call MPI at once")
    comms, found = [communicator(), communicator()], []

    def work(comm: hpcoll.Communicator) -> None:
        double.make_current(0)
        found.extend(
            allreduce(comm, double, count) for count in (LONG, LONG + 1, SHORT, LONG) for _ in range(2)
        )

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ensure_none([] if found == [True] * 16 else found)
    for comm in comms:
        comm.Free()


@pytest.mark.parametrize("way", ["ipc", "staged"])
def test_few_elements_and_one_long_block(way: str, double: Any) -> None:
    comm = communicator(way)
    n, wrong = comm.size, []
    for counts in ([0] * (n - 1) + [5], [LONG * 30] + [0] * (n - 1), [0] * n):
        whole, mine = double.Array(sum(counts)).fill(-1), double.Array(counts[comm.rank])
        write(mine, np.full(counts[comm.rank], comm.rank, np.float32))
        want = np.repeat(np.arange(n), counts)
        comm.Allgatherv(mine, [whole, counts])
        wrong += unless((read(whole) == want).all(), ("Allgatherv", counts))
        back = double.Array(counts[comm.rank])
        comm.Scatterv([whole, counts] if comm.rank == 0 else None, back)
        wrong += unless((read(back) == comm.rank).all(), ("Scatterv", counts))
    ensure_none(wrong)
    comm.Free()
