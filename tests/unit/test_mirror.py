"""Mirrors of GPU arrays on the host: what is copied, what is shared, what is refused."""

from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from driver_cases import MPI, OP, address, arrays, both, copies, mirrored

from hpcoll.base.errors import ArgumentError


def test_no_gpu_array(double: Double) -> None:
    x = np.zeros(3)
    assert mirrored("Allreduce", (x, x, OP), 7, 0) is None  # a rank without a GPU among others
    assert mirrored("Barrier", (), None, 0) is None
    assert mirrored("Bcast", ([None, 0, MPI.INT], 0), None, 0) is None
    assert mirrored("Gather", (x, double.Array(3), 1), None, 0) is None  # ignored here
    assert mirrored("Allgather", (MPI.IN_PLACE, [x, 1]), None, 0) is None


# Method, arguments behind the buffers, root's rank or None; GPU arrays read and written at the root and elsewhere.
SEND, RECV, BOTH = (0,), (1,), (0, 1)
ROWS: list[tuple[str, tuple[Any, ...], int, tuple[int, ...], int | None]] = [
    ("Allreduce", (OP,), 0, SEND, 1),
    ("Reduce", (OP, 0), 0, SEND, 1),
    ("Reduce", (OP, 1), 0, SEND, None),
    ("Reduce_scatter_block", (OP,), 0, SEND, 1),
    ("Reduce_scatter", ([3, 3], OP), 0, BOTH, 1),
    ("Scan", (OP,), 0, SEND, 1),
    ("Exscan", (OP,), 0, BOTH, 1),  # rank 0's is left as it is
    ("Allgather", (), 0, SEND, 1),
    ("Allgatherv", (), 0, BOTH, 1),
    ("Gather", (0,), 0, SEND, 1),
    ("Gather", (), 0, SEND, 1),  # root 0, unsaid
    ("Gather", (1,), 0, SEND, None),
    ("Gatherv", (0,), 0, BOTH, 1),
    ("Gatherv", (1,), 0, SEND, None),
    ("Scatter", (0,), 0, SEND, 1),
    ("Scatter", (1,), 0, (), 1),
    ("Scatterv", (0,), 0, BOTH, 1),
    ("Scatterv", (1,), 0, RECV, 1),
    ("Alltoall", (), 0, SEND, 1),
    ("Alltoallv", (), 0, BOTH, 1),
    ("Alltoallw", (), 0, BOTH, 1),
    ("Neighbor_allgather", (), 0, BOTH, 1),
    ("Neighbor_allgatherv", (), 0, BOTH, 1),
    ("Neighbor_alltoall", (), 0, BOTH, 1),
    ("Neighbor_alltoallv", (), 0, BOTH, 1),
    ("Neighbor_alltoallw", (), 0, BOTH, 1),
]


@pytest.mark.parametrize(("method", "more", "rank", "read", "written"), ROWS)
def test_methods(
    double: Double, method: str, more: tuple[Any, ...], rank: int, read: tuple[int, ...], written: int | None
) -> None:
    send, recv = arrays(double)
    theirs, store = both(method, (send, recv, *more), rank=rank)
    assert copies(double) == len(read)
    assert theirs[2:] == more
    ignored = ({0, 1} - {written} - set(read)) & ({1} if written is None else {0})
    for position, before in ((0, np.arange(6)), (1, np.full(6, -1))):
        if position in ignored:
            assert theirs[position] is None
        elif position in read:
            assert (theirs[position].dtype, theirs[position].tolist()) == (np.dtype("f4"), before.tolist())
        else:
            assert theirs[position].shape == (6,)
    for host in theirs[:2]:
        if host is not None:
            host[:] = [5, 4, 3, 2, 1, 0]
    store()
    assert copies(double) == len(read) + (written is not None)
    assert send.get().tolist() == [0, 1, 2, 3, 4, 5]
    assert recv.get().tolist() == ([5, 4, 3, 2, 1, 0] if written else [-1] * 6)


def test_bcast(double: Double) -> None:
    x, y = arrays(double)
    (host, root), store = both("Bcast", (x, 2), rank=2)
    assert (host.tolist(), root, copies(double)) == ([0, 1, 2, 3, 4, 5], 2, 1)
    store()
    assert copies(double) == 1  # the root has it already
    (host, _), store = both("Bcast", (y, np.int64(2)), rank=1)
    host[:] = 7
    store()
    assert (y.get().tolist(), copies(double)) == ([7] * 6, 2)
    (host, _), _ = both("Bcast", (double.Array(3, readonly=True).fill(3), 0))
    assert (host.tolist(), host.flags.writeable) == ([3] * 3, False)
    assert both("Bcast", (x[::2], 0))[0][0].tolist() == [0, 2, 4]


@pytest.mark.parametrize("kind", [list, tuple])
def test_specs_may_leave_gaps(double: Double, kind: Any) -> None:
    send, recv = arrays(double)
    theirs, store = both("Allgather", (kind([send, 2, MPI.FLOAT]), kind([recv, (2, 1), MPI.FLOAT])))
    assert [type(spec) for spec in theirs] == [kind, kind]
    assert theirs[1][1:] == kind([(2, 1), MPI.FLOAT])
    assert theirs[1][0].tolist() == [-1] * 6
    theirs[1][0][1:3] = 9
    store()
    assert recv.get().tolist() == [-1, 9, 9, -1, -1, -1]


@pytest.mark.parametrize(
    "method", ["Allreduce", "Reduce", "Allgather", "Alltoall", "Reduce_scatter_block", "Gather"]
)
def test_in_place_is_read(double: Double, method: str) -> None:
    x, _ = arrays(double)
    more = {"Reduce": (OP, 0), "Gather": (0,)}.get(method, ())
    theirs, store = both(method, (MPI.IN_PLACE, x, *more))
    assert theirs[0] is MPI.IN_PLACE
    assert theirs[1].tolist() == [0, 1, 2, 3, 4, 5]
    theirs[1][2] = 9
    store()
    assert x.get().tolist() == [0, 1, 9, 3, 4, 5]


def test_host_and_gpu_arrays_meet(double: Double) -> None:
    x, _ = arrays(double)
    host = np.zeros(6, np.float32)
    theirs, store = both("Allreduce", (x, host, OP))
    assert theirs[1] is host
    store()
    theirs, store = both("Allreduce", (host, x, OP))
    assert theirs[0] is host
    theirs[1][:] = 3
    store()
    assert x.get().tolist() == [3] * 6
    assert copies(double) == 2


def test_shared_memory_stays_shared(double: Double) -> None:
    x = double.Array(12).fill(np.arange(12))
    for send, recv, shift in ((x, x, 0), (x[4:8], x, 16), (x[:7], x[5:], -20), (x[3:6], x[5:7], -8)):
        theirs, store = both("Allgather", (send, recv))
        assert address(theirs[0]) - address(theirs[1]) == shift
        assert theirs[0].tolist() == send.get().tolist()
        assert theirs[1].tolist() == recv.get().tolist()  # read, though it would not be alone
        store()
    assert copies(double) == 8
    theirs, _ = both("Allgather", (x[:6], x[6:]))
    assert not np.shares_memory(*theirs)
    assert x.get().tolist() == list(range(12))


def test_what_is_sent_may_have_gaps(double: Double) -> None:
    x = double.Array((3, 4)).fill(np.arange(12).reshape(3, 4))
    for part in (x[:, 1], x[::-1, ::-2], x[::2], x[1:, 1:3]):
        theirs, _ = both("Allreduce", (part, double.Array(part.shape).fill(0), OP))
        assert theirs[0].flags.c_contiguous
        assert theirs[0].tolist() == part.get().tolist()


def test_no_elements(double: Double) -> None:
    x = double.Array(6)
    theirs, store = both("Allgather", (x[:0], x[6:]))
    assert [host.shape for host in theirs] == [(0,), (0,)]
    store()
    assert copies(double) == 0


REFUSED: list[tuple[str, Any]] = [
    (
        "recvbuf must be writable, got a read-only Array",
        lambda d: ("Allreduce", (d.Array(4), d.Array(4, readonly=True), OP)),
    ),
    ("buf must be writable, got a read-only Array", lambda d: ("Bcast", (d.Array(4, readonly=True), 1))),
    (
        "recvbuf must be contiguous, got strides (8,) for shape (4,) float32: copy it with cupy.ascontiguousarray or torch's "
        "contiguous() first",
        lambda d: ("Allreduce", (d.Array(4), d.Array(8)[::2], OP)),
    ),
    (
        "sendbuf must be contiguous, got strides (8,) for shape (4,) float32: copy it with cupy.ascontiguousarray or torch's "
        "contiguous() first",
        lambda d: ("Allreduce", ([d.Array(8)[::2], 4], d.Array(4), OP)),
    ),
    (
        "sendbuf needs memory that can be read here, got a Array: it lies on GPU 1, and this thread uses GPU 0: use one GPU per rank, "
        "see hpcoll.local_device",
        lambda d: ("Allreduce", (d.Array(4, ordinal=1), d.Array(4), OP)),
    ),
]


@pytest.mark.parametrize(("text", "call"), REFUSED)
@pytest.mark.double(ngpus=2, forgives=("races", "failures"))
def test_refused(text: str, call: Any, double: Double) -> None:
    method, arguments = call(double)
    with pytest.raises(ArgumentError) as caught:
        mirrored(method, arguments, None, 0)
    assert str(caught.value) == f"rank 0: {text}"
    assert copies(double) == 0
