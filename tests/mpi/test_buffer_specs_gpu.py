"""Buffer specs over GPU memory: what `resolve` tells of them, and calls that MPI serves from their mirrors."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from mpi4py import MPI

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import Resolved, check_overlap, check_same_order, resolve
from hpcoll.comm.arguments.native import as_native
from hpcoll.comm.gpu.mirror import mirror_of

pytestmark = [pytest.mark.double(ngpus=2), pytest.mark.once]


def describe(spec: object, **options: Any) -> Resolved:
    resolved = resolve(spec, name="buf", rank=3, **options)
    assert resolved is not None
    assert resolved.gpu is not None
    assert resolved.owner is resolved.gpu
    return resolved


def refuse(text: str, spec: object, **options: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        resolve(spec, name="buf", rank=3, **options)
    assert str(caught.value) == f"rank 3: buf {text}"


def fortran(double: Double, shape: tuple[int, int]) -> Any:
    return double.Array(shape[::-1]).seen_as(np.transpose)


@pytest.mark.parametrize("code", ["?", *"bhilqBHILQefdFD"])
def test_bare(double: Double, code: str) -> None:
    for shape in ((), (7,), (2, 3)):
        x = double.Array(shape, code)
        resolved = describe(x)
        assert resolved[:5] == (x.address, np.prod(x.shape), np.dtype(np.dtype(code).str), x.nbytes, False)
        assert (resolved.counts, resolved.displs, resolved.datatype) == (None, None, None)
        assert resolve(double.array(x.address, x.nbytes), name="buf", rank=3).gpu is None  # type: ignore[union-attr]


def test_bfloat16_comes_by_dlpack(double: Double) -> None:
    x = double.Array(4, ml_dtypes.bfloat16)
    assert describe(double.dlpack(x)).dtype == ml_dtypes.bfloat16
    assert describe([x, MPI.UINT16_T]).dtype == np.uint16
    refuse("needs native numbers, got dtype |V2: convert it or give an MPI datatype", x)


def test_stream_reaches_the_producer(double: Double) -> None:
    x, stream = double.dlpack(double.Array(4)), double.stream()
    resolved = describe(x, stream=stream)
    assert resolved.gpu is not None
    assert (resolved.gpu.stream, x.streams) == (stream, [stream])


def test_no_elements(double: Double) -> None:
    x = double.Array(4)
    assert describe(x[:0])[:4] == (0, 0, np.dtype("f4"), 0)
    assert describe([x, 0, MPI.FLOAT]).address == 0


def test_specs(double: Double) -> None:
    x = double.Array(12, np.float64)
    for spec, first, count, dtype in (
        ((x, MPI.DOUBLE), 0, 12, "f8"),
        ([x, "f"], 0, 24, "f4"),
        ([x, 4], 0, 4, "f8"),
        ([x, (4, 3), MPI.DOUBLE], 3, 4, "f8"),
        ([x, 2, 4.0, MPI.DOUBLE], 4, 2, "f8"),
        ([double.dlpack(x), (None, 3)], 3, 9, "f8"),
    ):
        assert describe(spec)[:4] == (
            x.address + 8 * first,
            count,
            np.dtype(dtype),
            count * np.dtype(dtype).itemsize,
        )
    assert describe([x, 3, MPI.DOUBLE], nparts=4).count == 12
    blocks = describe([x, [1, 2], [3, 4], MPI.DOUBLE], nblocks=2)
    assert (blocks.address, blocks.counts, blocks.displs) == (x.address, (1, 2), (3, 4))
    refuse("needs 13 elements of float64, got 12", [x, 13, MPI.DOUBLE])


def test_derived_datatypes_have_maps_of_their_bytes(double: Double) -> None:
    """Pieces: packed position, offset and bytes of a run, then count and stride of each loop."""
    x, datatype = double.Array(12, np.float64), MPI.DOUBLE.Create_vector(2, 1, 3).Commit()
    for spec, nbytes, pieces in (
        ([x, 1, datatype], 16, [[0, 0, 8, 2, 24]]),
        ([x, (2, 1), datatype], 32, [[0, 32, 8, 2, 32, 2, 24]]),
        ([x, 2, MPI.DOUBLE_INT], 24, [[0, 0, 12, 2, 16]]),
    ):
        found = resolve(spec, name="buf", rank=3)
        assert found is not None
        assert found.gpu is not None
        assert found.map is not None
        got = found.map.pieces.copy()
        got[:, 1] += found.address - x.address
        assert (found.nbytes, found.map.nbytes, got.tolist()) == (nbytes, nbytes, pieces), spec
    datatype.Free()


def test_memory_order_and_gaps(double: Double) -> None:
    x = double.Array((4, 3))
    resolved = describe(fortran(double, (3, 4)), writable=True)
    assert (resolved.count, resolved.gpu and resolved.gpu.order) == (12, "F")
    column = describe(x[:, 1])
    assert (column.address, column.count, column.nbytes, column.gpu and column.gpu.strides) == (
        x.address + 4,
        4,
        16,
        (12,),
    )
    blocks = describe(x[:, 1], nblocks=2)  # as if it were packed
    assert (blocks.counts, blocks.displs) == ((2, 2), (0, 2))
    text = "must be contiguous, got strides (12,) for shape (4,) float32: copy it with cupy.ascontiguousarray or torch's contiguous() first"
    refuse(text, x[:, 1], writable=True)
    for spec in ([x[:, 1], 4], (x[:, 1], MPI.FLOAT), [x[:, 1], (2, 1), MPI.FLOAT]):
        refuse(text, spec)


def test_refused(double: Double) -> None:
    x = double.Array(4, readonly=True)
    assert describe(x).readonly
    refuse("must be writable, got a read-only Array", x, writable=True)
    versioned = double.dlpack(x, versioned=True)
    refuse("must be writable, got a read-only Dlpack", versioned, writable=True)
    text = "it lies on GPU 1, and this thread uses GPU 0: use one GPU per rank, see hpcoll.local_device"
    refuse(f"needs memory that can be read here, got a Array: {text}", double.Array(4, ordinal=1))
    x.free()
    gone = f"no memory is at {x.address:#x}: it was freed or never allocated"
    refuse(f"needs memory that can be read here, got a Array: {gone}", x)
    refuse("needs native numbers, got dtype |V3: convert it or give an MPI datatype", double.Array(4, "V3"))
    refuse("needs native numbers, got dtype >f8: convert it or give an MPI datatype", double.Array(4, ">f8"))


def test_same_order(double: Double) -> None:
    c, f, host = double.Array((2, 3)), fortran(double, (2, 3)), np.zeros((2, 3), np.float32)
    text = r"rank 3: sendbuf of shape \(2, 3\) and recvbuf of shape \(2, 3\) need one memory order, got C and Fortran: copy one of them"
    gaps = double.Array((2, 6))[:, ::2]
    for send, recv in ((c, f), (host, f), ([c, 6], (f, MPI.FLOAT)), (c, np.asfortranarray(host)), (gaps, f)):
        with pytest.raises(ArgumentError, match=text):
            check_same_order(send, recv, 3)
    for send, recv in (
        (c, c),
        (f, f),
        (f, np.asfortranarray(host)),
        (c, host),
        (double.Array(6), f),
        (gaps, c),
        (MPI.IN_PLACE, f),
    ):
        check_same_order(send, recv, 3)


def test_overlap(double: Double) -> None:
    x = double.Array(12)
    assert check_overlap(describe(x), describe(x), 3)
    assert check_overlap(describe(x), describe(double.dlpack(x)), 3)
    assert not check_overlap(describe(x[:6]), describe(x[6:]), 3)
    host = resolve(np.zeros(12, np.float32), name="buf", rank=3)
    assert host is not None
    assert not check_overlap(describe(x), host, 3)
    for send, recv in ((x[:7], x[6:]), (x, x[:6])):
        with pytest.raises(
            ArgumentError,
            match="rank 3: sendbuf and recvbuf must be the same memory or share none, got a partial overlap",
        ):
            check_overlap(describe(send), describe(recv), 3)


# --- calls from mirrors


def call(comm: Any, method: str, *arguments: Any, host: bool = True) -> None:
    """A call as it is served from mirrors: by hpcoll's way for host memory, or by the MPI library."""
    mirror = mirror_of(method, arguments, None, comm.rank)
    assert mirror is not None
    mirror.fetch()
    theirs, store = mirror.arguments, mirror.store
    target = comm if host else MPI.Intracomm(comm)
    getattr(target, method)(*(theirs if host else as_native(theirs)))
    store()


@pytest.mark.mpi
def test_calls_that_only_the_library_has(double: Double) -> None:
    comm = hpcoll.Communicator(MPI.COMM_WORLD)
    n, rank = comm.size, comm.rank
    line = MPI.COMM_WORLD.Create_cart([n], periods=[False])
    x, y = double.Array(2).fill(rank), double.Array(4).fill(-1)
    call(line, "Neighbor_allgather", x, y)
    # nobody before rank 0: left as it was
    assert y.get().tolist() == [rank - 1] * 2 + [rank + 1 if rank < n - 1 else -1] * 2
    line.Free()

    first = MPI.Op.Create(
        lambda a, b, datatype: np.copyto(np.frombuffer(b, "f4"), np.frombuffer(a, "f4")), commute=False
    )
    y = double.Array(2).fill(-1)
    call(comm, "Allreduce", x, y, first)
    assert y.get().tolist() == [0, 0]
    first.Free()

    pair = np.dtype([("value", "f4"), ("rank", "i4")])
    pairs, found = double.Array(1, pair).fill((5.0, rank)), double.Array(1, pair).fill((-1.0, -1))
    call(comm, "Allreduce", [pairs, 1, MPI.FLOAT_INT], [found, 1, MPI.FLOAT_INT], MPI.MINLOC)
    assert found.get().tolist() == [(5.0, 0)]

    column = MPI.FLOAT.Create_vector(3, 1, 4).Commit()
    matrix = double.Array((3, 4)).fill(rank)
    call(comm, "Bcast", [matrix, 1, column], n - 1)
    assert matrix.get().tolist() == [[n - 1, rank, rank, rank]] * 3
    # the mirror of a view has nothing of the rest
    with pytest.raises(ArgumentError, match="lacks 4 bytes behind it"):
        hpcoll.Communicator(MPI.COMM_WORLD).Bcast([matrix[1:], 1, column], n - 1)
    column.Free()
