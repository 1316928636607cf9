"""Counts, displacements and datatypes of buffer specs: how `resolve` reads them, agrees with mpi4py, and refuses in which words."""

import array
import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from memory_kinds import Cai, Dlpack, address, derived, describe, refuse
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import check_overlap, check_same_order, resolve

X = np.arange(12.0)
pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("spec", "first", "count", "dtype"),
    [
        ((X, MPI.DOUBLE), 0, 12, "f8"),
        ([X, "f"], 0, 24, "f4"),
        ([X, MPI.INT], 0, 24, "i4"),
        ([X, MPI.C_DOUBLE_COMPLEX], 0, 6, "c16"),
        ([X, MPI.LONG_DOUBLE], 0, 6, "g"),
        ([X, 4], 0, 4, "f8"),
        ([X, 4, None], 0, 4, "f8"),
        ([X, (4, 3), MPI.DOUBLE], 3, 4, "f8"),
        ([X, (None, 3), MPI.DOUBLE], 3, 9, "f8"),
        ([X, None, 12, MPI.DOUBLE], 12, 0, "f8"),
        ((MPI.buffer.frombuffer(X), 3, MPI.DOUBLE), 0, 3, "f8"),
        ([X.view("V8"), 3, MPI.DOUBLE], 0, 3, "f8"),
        ([X.view("M8[s]"), MPI.INT64_T], 0, 12, "i8"),
    ],
)
def test_specs(spec: Any, first: int, count: int, dtype: str) -> None:
    resolved = describe(spec)
    assert resolved[:3] == (address(X) + 8 * first if count else 0, count, np.dtype(dtype))
    assert resolved.counts is resolved.displs is resolved.datatype is None


@pytest.mark.parametrize(
    "name", ["BOOL", "SHORT", "UNSIGNED", "FLOAT16_T", "DOUBLE_PRECISION", "AINT", "COMPLEX", "WCHAR"]
)
def test_predefined_datatypes_are_plain(name: str) -> None:
    datatype = getattr(MPI, name)
    resolved = describe([bytearray(32), datatype])
    assert (resolved.datatype, resolved.count) == (None, 32 // datatype.size)


@pytest.mark.parametrize("name", ["DOUBLE_INT", "TWOINT", "REAL16"])
def test_pairs_and_quad_precision_are_not_plain(name: str) -> None:
    datatype = getattr(MPI, name)
    if datatype == MPI.DATATYPE_NULL:
        pytest.skip(f"this MPI library has no {name}")
    assert describe([bytearray(32), 1, datatype]).datatype == datatype


def test_no_elements() -> None:
    for spec in ([None, 0, MPI.INT], [None, MPI.INT], (None, "i"), [None, (0, 0), MPI.INT]):
        assert describe(spec)[:4] == (0, 0, np.dtype("i4"), 0)
    assert describe([None, [0, 0], None, MPI.INT], nblocks=2).counts == (0, 0)


def test_left_to_the_mpi_library() -> None:
    backwards = MPI.DOUBLE.Create_resized(0, -8)
    for spec in (
        MPI.BOTTOM,
        MPI.IN_PLACE,
        [MPI.BOTTOM, 1, MPI.INT],
        {},
        3,
        [X, 1, MPI.DATATYPE_NULL],
        [X, 1, backwards],
    ):
        assert resolve(spec, name="buf", rank=3) is None
    backwards.Free()


def test_equal_parts() -> None:
    assert describe(X, nparts=4).count == 12
    assert describe([X, 3, MPI.DOUBLE], nparts=4).count == 12
    assert describe([X, (2, 3), MPI.DOUBLE], nparts=4)[:2] == (address(X) + 24, 8)
    refuse("needs 5 equal blocks of float64, got 96 bytes (8 per element): give the count", X, nparts=5)
    refuse("needs 16 elements of float64, got 12", [X, 4, MPI.DOUBLE], nparts=4)


V_SPECS: list[tuple[Any, int, tuple[int, ...], tuple[int, ...]]] = [
    (X, 3, (4, 4, 4), (0, 4, 8)),
    (X, 5, (3, 3, 2, 2, 2), (0, 3, 6, 8, 10)),
    ([X, MPI.FLOAT], 1, (24,), (0,)),
    ([X, [1, 2]], 2, (1, 2), (0, 1)),
    ([X, 3], 2, (3, 3), (0, 3)),
    ([X, (1, 2)], 2, (1, 1), (0, 2)),
    ([X, ([1, 2], None), MPI.DOUBLE], 2, (1, 2), (0, 1)),
    ([X, [2, 0, 1], [0, 99, 11], MPI.DOUBLE], 3, (2, 0, 1), (0, 99, 11)),
    ([X, [6, 6], [6, 0], "d"], 2, (6, 6), (6, 0)),
]


@pytest.mark.parametrize(("spec", "nblocks", "counts", "displs"), V_SPECS)
def test_v_specs(spec: Any, nblocks: int, counts: tuple[int, ...], displs: tuple[int, ...]) -> None:
    resolved = describe(spec, nblocks=nblocks)
    assert (resolved.address, resolved.count, resolved.counts, resolved.displs) == (
        address(X),
        sum(counts),
        counts,
        displs,
    )


REFUSED: list[tuple[str, Any, dict[str, int]]] = [
    ("needs 13 elements of float64, got 12", [X, 13, MPI.DOUBLE], {}),
    ("needs a displacement of 0 to 12, got 13", [X, (None, 13), MPI.DOUBLE], {}),
    ("needs a count >= 0, got -1", [X, -1, MPI.DOUBLE], {}),
    ("needs whole elements of float64, got 13 bytes", [bytearray(13), MPI.DOUBLE], {}),
    ("needs integer counts and displacements, got 1.5", [X, 1.5], {}),
    ("needs a pair (count, displacement), got (1, 2, 3)", [X, (1, 2, 3)], {}),
    ("needs 2 to 4 items (buffer, count, displacement, datatype), got 5", [X] * 5, {}),
    ("needs an MPI datatype or a type code, got 'float128x'", [X, "float128x"], {}),
    ("needs an MPI datatype or a type code, got [0, 1]", [X, [1, 1], [0, 1]], {"nblocks": 2}),
    ("needs 3 counts or displacements, one per block, got 2", [X, [1, 2]], {"nblocks": 3}),
    ("needs 2 counts or displacements, one per block, got 1", [X, ([1, 2], [0])], {"nblocks": 2}),
    ("needs counts >= 0, got -2", [X, [1, -2]], {"nblocks": 2}),
    ("needs 13 elements of float64, got 12", [X, [6, 7]], {"nblocks": 2}),
    ("needs elements -1 to 2 of float64, got 12", [X, ([1, 1], [-1, 1])], {"nblocks": 2}),
    ("needs a buffer, got None", None, {}),
    ("needs 1 elements of int32, got 0", [None, 1, MPI.INT], {}),
    (
        "must be contiguous, got strides (16,) for shape (6,) float64: copy it with numpy.ascontiguousarray first",
        X[::2],
        {},
    ),
    ("must be contiguous", memoryview(X)[::2], {}),
    ("needs native numbers, got dtype >f8", X.astype(">f8"), {}),
    ("needs native numbers, got dtype datetime64[s]", X.view("M8[s]"), {}),
    ("needs native numbers, got dtype [('a', '<f8')]", X.view([("a", "f8")]), {}),
    ("needs native numbers, got dtype float8_e4m3fn", np.zeros(2, ml_dtypes.float8_e4m3fn), {}),
    ("needs numbers, got Python objects (dtype object)", np.zeros(2, object), {}),
]


@pytest.mark.parametrize(("text", "spec", "options"), REFUSED)
def test_refused(text: str, spec: Any, options: dict[str, int]) -> None:
    refuse(text, spec, **options)


def test_derived_datatype() -> None:
    x, datatype = np.arange(12.0), derived()
    resolved = describe([x, 2, datatype])
    assert resolved[:4] == (address(x), 2, np.dtype("V16"), 32)
    assert (resolved.datatype, resolved.counts) == (datatype, None)
    assert describe([x, datatype]).count == 2
    assert describe([x[:10], (1, 1), datatype]).address == address(x) + 48  # its last gap may leave the array
    refuse(
        "needs 2 elements of a derived datatype, got memory that lacks 8 bytes behind it",
        [x[:9].copy(), 2, datatype],
    )
    refuse("needs whole elements of a derived datatype, got 80 bytes (48 per element)", [x[:10], datatype])
    refuse(
        "needs 2 elements of MPI_DOUBLE_INT, got memory that lacks 12 bytes behind it",
        [bytearray(16), 2, MPI.DOUBLE_INT],
    )
    datatype.Free()


def test_overlap_of_derived_datatypes_is_left_to_packing() -> None:
    x, datatype = np.zeros(12), derived()
    assert not check_overlap(describe([x, 1, datatype]), describe([x[1:], 1, datatype]), 3)
    assert check_overlap(describe([x, 1, datatype]), describe([x, 1, datatype]), 3)
    datatype.Free()


BF16 = np.dtype(ml_dtypes.bfloat16)


CODES = "?bhilqBHILQefdgFDG"


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_bare_array(code: str, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, code)
    found = describe(x)
    assert found[:6] == (address(x) if x.size else 0, x.size, x.dtype, x.nbytes, False, x)
    assert (found.counts, found.displs, found.datatype, found.gpu, found.map) == (None,) * 5


def test_equal_dtypes_are_one_object() -> None:
    assert (
        describe(np.zeros(1, "l")).dtype
        is describe(np.zeros(1, "q")).dtype
        is describe((np.zeros(1), MPI.LONG_LONG)).dtype
    )


def test_fortran_order_and_subclasses_are_memory() -> None:
    x = np.zeros((3, 4), order="F")
    assert describe(x)[:4] == (address(x), 12, x.dtype, 96)
    assert describe(np.zeros((3, 4)).view(np.matrix)).count == 12


def test_bfloat16() -> None:
    x = np.zeros(5, BF16)
    for _ in range(2):  # the second time from the cache
        assert describe(x)[:4] == (address(x), 5, BF16, 10)
    assert describe([x, 2, MPI.UINT16_T]).dtype == np.uint16


@pytest.mark.parametrize(
    ("memory", "dtype", "count"),
    [
        (array.array("d", [1, 2]), "f8", 2),
        (array.array("i", [1, 2]), "i4", 2),
        (array.array("u", "ab"), "u4", 2),
        (bytearray(5), "u1", 5),
        (memoryview(np.zeros((2, 3), "F")), "c8", 6),
        (memoryview(bytearray(4)).cast("c"), "u1", 4),
        ((ctypes.c_int * 3)(), "i4", 3),
        (MPI.buffer.allocate(6), "u1", 6),
        (np.zeros(2, "S1"), "u1", 2),
        (np.zeros(2, "U1"), "u4", 2),
    ],
)
def test_buffer_protocol(memory: Any, dtype: str, count: int) -> None:
    resolved = describe(memory, writable=True)
    assert resolved[:3] == (address(memory), count, np.dtype(dtype))
    assert not resolved.readonly


def test_read_only() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for memory in (frozen, b"abc", np.float64(1), memoryview(frozen), (frozen, MPI.DOUBLE)):
        assert describe(memory).readonly
        refuse("must be writable, got a read-only", memory, writable=True)
    assert not describe(np.zeros(3), writable=True).readonly


def test_owner_keeps_memory_alive() -> None:
    memory = bytearray(8)
    resolved = describe(memory)
    with pytest.raises(BufferError):
        memory.append(0)
    assert resolved.count == 8


@pytest.mark.parametrize("legacy", [False, True])
def test_dlpack(legacy: bool) -> None:
    x = np.zeros((2, 3), "f4")
    resolved = describe(Dlpack(x, legacy=legacy), writable=True)
    assert resolved[:5] == (address(x), 6, np.dtype("f4"), 24, False)
    assert describe([Dlpack(x), 2, MPI.FLOAT]).count == 2
    refuse("must be contiguous", Dlpack(x[:, ::2], legacy=legacy))


def test_dlpack_read_only_or_failing() -> None:
    x = np.zeros(2)
    x.flags.writeable = False
    assert describe(Dlpack(x)).readonly
    refuse("read-only Dlpack", Dlpack(x), writable=True)
    refuse("needs memory that can be read here, got a Dlpack", Dlpack(x, legacy=True))


def test_cuda_array_interface_over_host_memory() -> None:
    x = np.zeros((2, 3))
    assert describe(Cai(x), writable=True)[:5] == (address(x), 6, x.dtype, 48, False)
    assert describe(Cai(x, data=(x.ctypes.data, True))).readonly
    assert describe([Cai(x), 2, MPI.DOUBLE]).count == 2
    assert describe(Cai(np.zeros(0))).count == 0
    refuse("must be contiguous", Cai(x[:, ::2]))
    refuse("masked arrays", Cai(x, mask=Cai(x)))


def test_memory_of_other_devices() -> None:
    refuse(
        "memory of DLPack device type 10 is not supported", [Dlpack(np.zeros(1), device=10), 1, MPI.DOUBLE]
    )


def test_same_order() -> None:
    c, f = np.zeros((2, 3)), np.zeros((2, 3), order="F")
    for send, recv in ((c, f), ((c, MPI.DOUBLE), [f, MPI.DOUBLE])):
        text = r"rank 3: sendbuf of shape \(2, 3\) and recvbuf of shape \(2, 3\) need one memory order, got C and Fortran"
        with pytest.raises(ArgumentError, match=text):
            check_same_order(send, recv, 3)
    with pytest.raises(ArgumentError, match="got Fortran and C"):
        check_same_order(f, c, 3)
    flat, thin = np.zeros(6), np.zeros((1, 3), order="F")
    allowed = (
        (c, c),
        (f, f),
        (flat, f),
        (thin, np.zeros((1, 3))),
        (np.zeros((3, 2)), f),
        (MPI.IN_PLACE, f),
        (b"", f),
        ([], f),
    )
    assert [check_same_order(send, recv, 3) for send, recv in allowed] == [None] * len(allowed)
