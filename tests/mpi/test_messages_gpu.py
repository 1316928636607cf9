"""Messages of GPU arrays, over the driver's double: what arrives, with whom, and what stays as it was."""

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from gpu_double import made
from memory_kinds import Dlpack
from mpi4py import MPI
from reference import ensure, ensure_none, unless

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.methods import point_to_point
from hpcoll.comm.methods.point_to_point import Message

pytestmark = [pytest.mark.mpi(min_size=1), pytest.mark.double(takes=False), pytest.mark.once]
SENDS = ("Send", "Ssend", "Bsend", "Isend", "Issend", "Ibsend")
NULL = MPI.PROC_NULL


@pytest.mark.parametrize("name", SENDS)
def test_sends(name: str, either: Double) -> None:
    """By every method, to a receive of either kind, before or after it; the sender's stream is waited for."""
    comm, right, left, send, recv = made(either)
    MPI.Attach_buffer(np.empty(100_000, np.uint8)) if "bs" in name.lower() else None
    for begun in (True, False):
        stream = either.stream()
        either.later(stream, send.address, np.arange(1000) + 7.0 * comm.rank + begun)
        request = comm.Irecv(recv, left, 3) if begun or name in ("Send", "Ssend") else None
        mine = getattr(comm, name)([send, 900, MPI.DOUBLE], right, 3, stream=stream)
        status = MPI.Status()
        request.Wait(status) if request else comm.Recv(recv, left, 3, status)
        if mine is not None:
            assert type(mine) is MPI.Request
            mine.Wait()
        told = status.source, status.tag, status.Get_count(MPI.DOUBLE)
        want = np.r_[np.arange(900) + 7.0 * left + begun, np.full(100, -1)]
        ensure_none([] if (recv.get() == want).all() and told == (left, 3, 900) else [(told, recv.get()[:3])])
    MPI.Detach_buffer() if "bs" in name.lower() else None
    assert either.calls["cuStreamSynchronize"] == 0
    comm.Free()


def test_host_memory_is_passed_on_at_once(either: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for GPU arrays costs more than a message of mpi4py's, and most buffers need none; each arrives all the same."""
    comm, right, left, _, _ = made(either)
    send, recv, wrong = np.arange(4.0) + comm.rank, np.empty(4), []

    def looked() -> None:
        raise AssertionError("it was looked for GPU arrays")

    monkeypatch.setattr(point_to_point, "_buffers", looked)
    for spec in (
        send,
        send.view(np.recarray),
        [send, MPI.DOUBLE],
        (send, 4, MPI.DOUBLE),
        send.data,
        Dlpack(send),
        send.tobytes(),
    ):
        comm.Sendrecv(spec, right, 1, memoryview(recv), left, 1)
        comm.Send_init(spec, right, 1).Free()
        wrong += unless((recv == np.arange(4.0) + left).all(), spec)
    monkeypatch.undo()
    ensure_none(wrong)
    comm.Free()


def test_rsend(either: Double) -> None:
    comm, right, left, send, recv = made(either)
    for name in ("Rsend", "Irsend"):
        request = comm.Irecv(recv, left)
        comm.Barrier()
        mine = getattr(comm, name)(send, right)
        request.Wait()
        mine and mine.Wait()
        ensure((recv.get() == np.arange(1000) + left).all(), name)
        recv.fill(-1)
    comm.Free()


def test_sendrecv(either: Double) -> None:
    comm, right, left, send, recv = made(either)
    host, wrong, status = np.full(1000, -1.0), [], MPI.Status()
    comm.Sendrecv([send, 10], right, 1, recv, left, 1, status)
    wrong += unless(
        recv.get()[:11].tolist() == [*np.arange(10.0) + left, -1] and status.Get_count(MPI.DOUBLE) == 10,
        "GPU",
    )
    comm.Sendrecv(send, right, 1, host, left, 1)
    wrong += unless((host == np.arange(1000) + left).all(), "into host memory")
    comm.Sendrecv(host, right, 1, recvbuf=recv, source=left)
    wrong += unless((recv.get() == np.arange(1000) + (left - 1) % comm.size).all(), "from host memory")
    comm.Sendrecv_replace(send, right, 2, left, 2, status)
    wrong += unless((send.get() == np.arange(1000) + left).all() and status.tag == 2, "replaced")
    comm.Sendrecv_replace([send, 3, MPI.DOUBLE], NULL, source=NULL)
    wrong += unless((send.get() == np.arange(1000) + left).all(), "nothing replaced")
    ensure_none(wrong)
    comm.Free()


@pytest.mark.parametrize(
    "kind", ["float16", "bfloat16", "complex128", "bool", "managed", "dlpack", "fortran", "empty"]
)
def test_kinds_of_arrays(kind: str, either: Double) -> None:
    comm, right, left, *_ = made(either)
    dtype = {"bfloat16": ml_dtypes.bfloat16}.get(
        kind, kind if kind in ("float16", "complex128", "bool") else "float32"
    )
    shape, memory = (0,) if kind == "empty" else (6, 4), "managed" if kind == "managed" else "device"
    values = (np.arange(np.prod(shape)).reshape(shape) + comm.rank).astype(dtype)
    send, recv = (either.Array(shape, dtype, memory=memory).fill(one) for one in (values, 0))
    if kind == "fortran":
        send, recv = (one.seen_as(np.transpose) for one in (send, recv))
    given = [either.dlpack(one) if kind in ("dlpack", "bfloat16") else one for one in (send, recv)]
    MPI.Request.Waitall([comm.Irecv(given[1], left), comm.Isend(given[0], right)])
    want = (np.arange(np.prod(shape)).reshape(shape) + left).astype(dtype)
    got = recv.get().T if kind == "fortran" else recv.get()
    ensure(got.tobytes() == want.tobytes(), got)
    comm.Free()


def test_gaps_may_be_sent(either: Double) -> None:
    comm, right, left, *_ = made(either)
    x = either.Array((6, 4), np.int32).fill(np.arange(24).reshape(6, 4))
    part = either.Array((3, 2), np.int32)
    for index in (np.s_[::2, 1::2], np.s_[::-2, ::-2]):
        request = comm.Isend(x[index], right)
        comm.Recv(part, left)
        request.Wait()
        ensure_none([] if (part.get() == x.get()[index]).all() else [part.get()])
    with pytest.raises(ArgumentError, match=f"rank {comm.rank}: buf must be contiguous, got strides"):
        comm.Recv(x[:, ::2], left)
    with pytest.raises(ArgumentError, match="must be contiguous"):
        comm.Irecv(x[:, ::2], left)
    with pytest.raises(ArgumentError, match="must be writable, got a read-only Array"):
        comm.Recv(either.Array(3, readonly=True), left)
    comm.Free()


@pytest.mark.parametrize("way", ["Recv", "Irecv", "Sendrecv", "Sendrecv_replace"])
def test_derived_datatypes(way: str, either: Double) -> None:
    """What lies between the elements is never written, whatever has been queued on other streams; a message may end within an element."""
    comm, right, left, *_ = made(either)
    column = MPI.INT.Create_vector(3, 1, 4).Create_resized(0, 4).Commit()
    x = either.Array((3, 4), np.int32).fill(np.arange(12).reshape(3, 4) + 100 * comm.rank)
    send, recv = [x, (2, 1), column], [x, (2, 1), column]
    if way == "Sendrecv_replace":
        comm.Sendrecv_replace(send, right, source=left)
    else:
        recv[0] = x = either.Array((3, 4), np.int32).fill(-1)
        if way == "Sendrecv":
            comm.Sendrecv(send, right, recvbuf=recv, source=left)
        else:
            mine = comm.Isend(send, right)
            request = getattr(comm, way)(recv, left)
            if request:
                other = either.stream()
                either.later(other, x.address, np.array([-5], np.int32))
                either.finish(other)
                request.Wait()
            mine.Wait()
    before = (
        np.arange(12).reshape(3, 4) + 100 * comm.rank if way == "Sendrecv_replace" else np.full((3, 4), -1)
    )
    before[:, 1:3] = (np.arange(12).reshape(3, 4) + 100 * left)[:, 1:3]
    if way == "Irecv":
        before[0, 0] = -5
    ensure_none([] if (x.get() == before).all() else [x.get()])
    request = comm.Isend(np.array([7, 8, 9, 10], np.int32), right)  # one column and a third of the next
    comm.Recv([x, 2, column], left)
    request.Wait()
    before[:, 0], before[0, 1] = [7, 8, 9], 10
    ensure_none([] if (x.get() == before).all() else [x.get()])
    comm.Free()


def test_no_extent(comm: hpcoll.Communicator, double: Double) -> None:
    x, none = double.Array(4, np.int32), MPI.INT.Create_resized(0, 0).Commit()
    for call in (comm.Send, comm.Recv, comm.Isend, comm.Irecv):
        with pytest.raises(ArgumentError, match=f"rank {comm.rank}: buf needs a datatype of positive extent"):
            call([x, 1, none], 0)
        with pytest.raises(ArgumentError, match=f"rank {comm.rank}: buf needs 5 elements of int32, got 4"):
            call([x, 5], 0)


def test_peer_without_hpcoll(either: Double) -> None:
    """The other side uses plain mpi4py and host arrays on the same communicator."""
    comm, right, left, send, recv = made(either)
    plain, host = MPI.Intracomm(comm), np.full(1000, -1.0)
    for sends, receives in ((comm, plain), (plain, comm)):
        ours, theirs = (send, host) if sends is comm else (np.arange(1000.0) + comm.rank, recv)
        requests = [sends.Isend(ours, right, 4), receives.Irecv(theirs, left, 4)]
        MPI.Request.Waitall(requests)
        ensure(((host if theirs is host else recv.get()) == np.arange(1000) + left).all(), sends)
    comm.Free()


def test_any_source_and_probe(either: Double) -> None:
    comm, right, left, send, recv = made(either)
    status = MPI.Status()
    for way in ("Irecv", "Probe", "Mprobe", "Improbe", "Message.Irecv", "Testany"):
        recv.fill(-1)
        early = comm.Irecv(recv) if way in ("Irecv", "Testany") else None
        mine = comm.Isend([send, 5], right, 8)
        if way == "Irecv":
            early.Wait(status)
        elif way == "Testany":
            while not MPI.Request.Testany([early], status)[1]:
                pass
        elif way == "Probe":
            comm.Probe(status=status)
            comm.Recv([recv, status.Get_count(MPI.DOUBLE)], status.source, status.tag, status)
        else:
            message = comm.Improbe() if way == "Improbe" else comm.Mprobe(MPI.ANY_SOURCE, 8)
            while message is None:
                message = comm.Improbe()
            assert type(message) is Message
            message.Irecv(recv).Wait(status) if way == "Message.Irecv" else message.Recv(recv, status)
        mine.Wait()
        told = status.source, status.tag, status.Get_count(MPI.DOUBLE), recv.get()[:6].tolist()
        ensure(told == (left, 8, 5, [*np.arange(5.0) + left, -1]), (way, told))
        comm.Barrier()
    comm.Free()


def test_no_peer(either: Double) -> None:
    comm, *_, send, recv = made(either)
    status = MPI.Status()
    for name in ("Send", "Ssend"):
        getattr(comm, name)(send, NULL)
    comm.Isend(send, NULL).Wait()
    for wait in (lambda: comm.Recv(recv, NULL, status=status), lambda: comm.Irecv(recv, NULL).Wait(status)):
        wait()
        assert (status.source, status.Get_count(MPI.BYTE)) == (NULL, 0)
    assert (recv.get() == -1).all()
    assert comm.Improbe() is None
    comm.Free()
