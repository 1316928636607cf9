"""Calls on GPU arrays like an earlier one: right with new data, arrays and sizes, in place; refused as the first one."""

import weakref
from typing import Any

import numpy as np
import pytest
from gpu_cases import read
from gpu_double import LONG, WORLD, communicator
from mpi4py import MPI
from reference import ensure_none, raised

from hpcoll.base.errors import ArgumentError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.double(forgives=("failures",))]
RANK, P = WORLD.rank, WORLD.size


def test_results_and_what_is_asked(double: Any) -> None:
    """From the second call on the driver is not asked what kind of memory the arrays are."""
    comm, found = communicator(), []
    total, asked = P * (P + 1) / 2, []
    for turn, count in enumerate((20, 20, 19, 21, 18)):
        asked.append(double.calls["cuPointerGetAttribute"])
        send, recv = double.Array(count).fill(turn + RANK + 1), double.Array(count).fill(-1)
        comm.Allreduce(send, recv)
        found.append(bool((read(recv) == total + turn * P).all()))
        comm.Allreduce(MPI.IN_PLACE, send)
        found.append(bool((read(send) == total + turn * P).all()))
        comm.Allreduce(send, recv, op=MPI.MAX)
        comm.Reduce(send, recv, MPI.SUM, 1)
        found.append(bool((read(recv) == (total + turn * P) * (P if RANK == 1 else 1)).all()))
        told = double.Array(count).fill(turn if RANK == 1 else -1)
        comm.Bcast(told, 1)
        found.append(bool((read(told) == turn).all()))
        every, mine = double.Array(P * count).fill(-1), double.Array(count).fill(turn * P + RANK)
        comm.Allgather(mine, every)
        found.append(bool((read(every).reshape(P, count) == turn * P + np.arange(P)[:, None]).all()))
        comm.Alltoall(every, other := double.Array(P * count).fill(-1))
        found.append(bool((read(other) == turn * P + RANK).all()))
        comm.Scan(mine, recv)
        found.append(bool((read(recv) == sum(turn * P + rank for rank in range(RANK + 1))).all()))
    found.append(asked[1:] == asked[-1:] * 4)
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    comm.Free()


def test_the_same_refusals_and_other_kinds(double: Any) -> None:
    """Read-only, freed, gaps, host arrays: as if there had been no call like it."""
    comm, found = communicator(), []
    send, recv = double.Array(6).fill(1), double.Array(6).fill(0)
    for _ in range(3):
        comm.Allreduce(send, recv)
    host = np.zeros(6, read(recv).dtype)
    comm.Allreduce(send, host)
    comm.Allreduce(host, recv)
    found += [bool((host == P).all()), bool((read(recv) == P * P).all())]
    for bad in (double.Array(6, readonly=True), object()):
        try:
            comm.Allreduce(send, bad)
            found.append(False)
        except (ArgumentError, TypeError):
            found.append(True)
    comm.Allreduce(send, recv)
    found.append(bool((read(recv) == P).all()))
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    comm.Free()


def test_longer_calls_on_the_same_arrays(double: Any) -> None:
    """They are known by their memory, and no array is kept alive; other arrays, also shorter ones, are others."""
    comm, found, asked = communicator(), [], []
    send, recv = double.Array(LONG).fill(RANK + 1), double.Array(LONG).fill(0)
    for turn in range(4):
        asked.append(double.calls["cuPointerGetAttribute"])
        comm.Allreduce(send, recv)
        comm.Allreduce(send, recv, op=MPI.MAX)
        found.append(bool((read(recv) == P + turn).all()))
        send.fill(RANK + 2 + turn)
    found.append(asked[2] - asked[1] == asked[3] - asked[2] < asked[1] - asked[0])
    gone = weakref.ref(send)
    del send
    found.append(gone() is None)
    for count in (LONG, LONG // 2):
        other = double.Array(count).fill(RANK + 7)
        comm.Allreduce(other, result := double.Array(count).fill(0))
        found.append(bool((read(result) == P * (P - 1) / 2 + 7 * P).all()))
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    comm.Free()


def _forms(comm: Any, arrays: Any) -> dict[str, Any]:
    """A sum of the first array into the second: blocking, in flight, persistent."""
    planned = comm.Allreduce_init(*arrays)

    def started() -> None:
        planned.Start()
        planned.Wait()

    return {
        "blocking": lambda: comm.Allreduce(*arrays),
        "in flight": lambda: comm.Iallreduce(*arrays).Wait(),
        "persistent": started,
    }


def test_two_copies_and_no_kernel(double: Any) -> None:
    """Of a short call like an earlier one, in every form, behind the work that its stream has; what it reads is what that work leaves."""
    comm, found, stream = communicator(), [], double.stream()
    arrays = [double.Array(100, stream=stream).fill(0) for _ in range(2)]
    for form, run in _forms(comm, arrays).items():
        for turn in range(12):
            double.later(stream, arrays[0].address, np.full(100, RANK + turn, np.float32))
            before = double.calls.copy()
            run()
            made = double.calls - before
            right = read(arrays[1]) == P * (P - 1) / 2 + P * turn
            settled = turn < 9 or (made["cuMemcpyAsync"], made["cuLaunchKernel"]) == (2, 0)
            settled = settled and (turn < 9 or not made["cuPointerGetAttribute"])
            found.append((form, turn, bool(right.all()), settled))
    ensure_none([one for one in found if not all(one[2:])])
    comm.Free()


def test_several_in_flight(double: Any) -> None:
    """Each has copies of its own until it has ended, whatever order they are waited for in; new arrays are as good as known ones."""
    comm, found = communicator(), []
    for turn in range(4):
        arrays = [[double.Array(50).fill(RANK + i + turn), double.Array(50).fill(-1)] for i in range(12)]
        requests = [comm.Iallreduce(*pair) for pair in arrays]
        for request in requests[::-1]:
            request.Wait()
        sums = [read(received) == P * (P - 1) / 2 + P * (i + turn) for i, (_, received) in enumerate(arrays)]
        found += [bool(one.all()) for one in sums]
        told = [double.Array(50).fill(i if i % P == RANK else -1) for i in range(12)]
        MPI.Request.Waitall([comm.Ibcast(one, i % P) for i, one in enumerate(told)])
        found += [bool((read(one) == i).all()) for i, one in enumerate(told)]
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    comm.Free()


def test_a_second_start(double: Any) -> None:
    """It is refused before anything is copied over what the first one works on."""
    comm, arrays = communicator(), [double.Array(100).fill(RANK) for _ in range(2)]
    planned, found = comm.Allreduce_init(*arrays), []
    for turn in range(4):
        arrays[0].fill(RANK + turn)
        planned.Start()
        arrays[0].fill(-99)
        found.append("not waited for yet" in _refusal(planned.Start))
        planned.Wait()
        found.append(bool((read(arrays[1]) == P * (P - 1) / 2 + P * turn).all()))
    ensure_none([(i, one) for i, one in enumerate(found) if not one])
    comm.Free()


def test_a_persistent_request_whose_memory_goes(double: Any) -> None:
    """A start on freed memory is refused on every rank as the first one would be; one under capture too."""
    comm, found, stream = communicator(), [], double.stream()
    arrays = [double.Array(100, stream=stream).fill(RANK) for _ in range(2)]
    run = _forms(comm, arrays)["persistent"]
    run()
    double.capture(stream)
    found.append(_refusal(run))
    double.capture(stream, capturing=False)
    run()
    found.append("" if (read(arrays[1]) == P * (P - 1) / 2).all() else "a wrong sum")
    arrays[0].free()
    found.append(_refusal(run))
    assert "captured" in found[0]
    assert found[1] == ""
    assert "freed or never allocated" in found[2]
    comm.Free()


def _refusal(call: Any) -> str:
    try:
        call()
    except ArgumentError as error:
        return str(error)
    return ""


def test_by_the_host_alone(double: Any) -> None:
    """Where all calls take the host's way, long ones are found by their copies, too: two copies, and nobody asks what memory it is."""
    comm, found = communicator("host"), []
    arrays = [double.Array(LONG).fill(0) for _ in range(2)]
    for form, run in _forms(comm, arrays).items():
        for turn in range(12):
            arrays[0].fill(RANK + turn)
            before = double.calls.copy()
            run()
            made = double.calls - before
            right = (read(arrays[1]) == P * (P - 1) / 2 + P * turn).all()
            counts = made["cuMemcpyAsync"], made["cuPointerGetAttribute"]
            found.append((form, turn, bool(right), turn < 9 or form != "blocking" or counts == (2, 0)))
    ensure_none([one for one in found if not all(one[2:])])
    comm.Free()


def test_a_copy_that_fails(double: Any) -> None:
    """To the host, once: the call is described, and made. Back, always: a DeviceError on this rank, and the communicator is closed."""
    comm, found = communicator(), []
    arrays = [double.Array(100).fill(RANK) for _ in range(2)]
    for form, run in _forms(comm, arrays).items():
        for _ in range(10):
            run()
        arrays[1].fill(-1)
        double.fail("cuMemcpyAsync", 700)
        run()
        found.append((form, (read(arrays[1]) == P * (P - 1) / 2).all(), not double.failing))
    ensure_none([one for one in found if not all(one[1:])])
    double.failing = _ForGood({"cuMemcpyAsync": (1, 700)})
    try:
        error = raised(lambda: comm.Allreduce(*arrays))
    finally:
        double.failing = {}
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in str(error)
    assert "cannot be used" in str(raised(lambda: comm.Allreduce(*arrays)))


class _ForGood(dict[str, Any]):
    """Failures that do not end."""

    def pop(self, name: str) -> Any:  # type: ignore[override]
        return self[name]
