"""Counts, displacements and datatypes of buffer specs: how `resolve` reads them, agrees with mpi4py, and refuses in which words."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from memory_kinds import address, derived, describe, refuse
from mpi4py import MPI

from hpcoll.comm.arguments.buffers import check_overlap, resolve
from hpcoll.comm.arguments.data_movement import pack, unpack

X = np.arange(12.0)
pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("spec", "first", "count", "dtype"),
    [
        ((X, MPI.DOUBLE), 0, 12, "f8"),
        ((X, "d"), 0, 12, "f8"),
        ([X, "f"], 0, 24, "f4"),
        ([X, MPI.BYTE], 0, 96, "u1"),
        ([X, MPI.CHAR], 0, 96, "u1"),
        ([X, MPI.INT], 0, 24, "i4"),
        ([X, MPI.C_DOUBLE_COMPLEX], 0, 6, "c16"),
        ([X, MPI.LONG_DOUBLE], 0, 6, "g"),
        ([X, 4], 0, 4, "f8"),
        ([X, np.float64(4.0), MPI.DOUBLE], 0, 4, "f8"),
        ([X, np.array(4), MPI.DOUBLE], 0, 4, "f8"),
        ([X, 4, None], 0, 4, "f8"),
        ([X, (4, 3)], 3, 4, "f8"),
        ([X, [4, 3]], 3, 4, "f8"),
        ([X, (4, 3), MPI.DOUBLE], 3, 4, "f8"),
        ([X, (None, 3), MPI.DOUBLE], 3, 9, "f8"),
        ([X, 2, 4.0, MPI.DOUBLE], 4, 2, "f8"),
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
    ((X, MPI.DOUBLE), 5, (3, 3, 2, 2, 2), (0, 3, 6, 8, 10)),
    ([X, MPI.FLOAT], 1, (24,), (0,)),
    ([X, [1, 2]], 2, (1, 2), (0, 1)),
    ([X, np.array([1, 2])], 2, (1, 2), (0, 1)),
    ([X, 3], 2, (3, 3), (0, 3)),
    ([X, ([1, 2], [3, 4])], 2, (1, 2), (3, 4)),
    ([X, (1, 2)], 2, (1, 1), (0, 2)),
    ([X, ([1, 2], 5)], 2, (1, 2), (0, 5)),
    ([X, ([1, 2], None), MPI.DOUBLE], 2, (1, 2), (0, 1)),
    ([X, (None, [0, 6])], 2, (6, 6), (0, 6)),
    ([X, [1, 2], MPI.DOUBLE], 2, (1, 2), (0, 1)),
    ([X, (1, 2), None, MPI.DOUBLE], 2, (1, 2), (0, 1)),
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
    ("needs 13 elements of float64, got 12", [X, (10, 3), MPI.DOUBLE], {}),
    ("needs a displacement of 0 to 12, got 13", [X, (None, 13), MPI.DOUBLE], {}),
    ("needs a displacement of 0 to 12, got -1", [X, (1, -1), MPI.DOUBLE], {}),
    ("needs a count >= 0, got -1", [X, -1, MPI.DOUBLE], {}),
    ("needs a count >= 0, got -1", [X, -1, MPI.DOUBLE], {"nparts": 4}),
    ("needs whole elements of float64, got 13 bytes", [bytearray(13), MPI.DOUBLE], {}),
    ("needs whole elements of float64, got 13 bytes", [bytearray(13), MPI.DOUBLE], {"nblocks": 2}),
    ("needs integer counts and displacements, got 1.5", [X, 1.5], {}),
    ("needs integer counts and displacements, got '3'", [X, "3", MPI.INT], {}),
    ("needs a pair (count, displacement), got (1, 2, 3)", [X, (1, 2, 3)], {}),
    ("needs a pair (count, displacement), got (1, 2, 3)", [X, (1, 2, 3)], {"nblocks": 3}),
    ("needs 2 to 4 items (buffer, count, displacement, datatype), got 1", [X], {}),
    ("needs 2 to 4 items (buffer, count, displacement, datatype), got 5", [X] * 5, {}),
    ("needs an MPI datatype or a type code, got 'float128x'", [X, "float128x"], {}),
    ("needs an MPI datatype or a type code, got [0, 1]", [X, [1, 1], [0, 1]], {"nblocks": 2}),
    ("needs 3 counts or displacements, one per block, got 2", [X, [1, 2]], {"nblocks": 3}),
    ("needs 2 counts or displacements, one per block, got 1", [X, ([1, 2], [0])], {"nblocks": 2}),
    ("needs counts >= 0, got -2", [X, [1, -2]], {"nblocks": 2}),
    ("needs 13 elements of float64, got 12", [X, [6, 7]], {"nblocks": 2}),
    ("needs elements -1 to 2 of float64, got 12", [X, ([1, 1], [-1, 1])], {"nblocks": 2}),
    ("needs 13 elements of float64, got 12", [X, ([1, 1], [12, 0])], {"nblocks": 2}),
    ("needs a buffer, got None", None, {}),
    ("needs a buffer, got None", [None, 0], {}),
    ("needs 1 elements of int32, got 0", [None, 1, MPI.INT], {}),
    (
        "must be contiguous, got strides (16,) for shape (6,) float64: copy it with numpy.ascontiguousarray first",
        X[::2],
        {},
    ),
    ("must be contiguous", [X[::2], MPI.DOUBLE], {}),
    ("must be contiguous", memoryview(X)[::2], {}),
    ("needs native numbers, got dtype >f8", X.astype(">f8"), {}),
    ("needs native numbers, got dtype datetime64[s]", X.view("M8[s]"), {}),
    ("needs native numbers, got dtype timedelta64[s]", X.view("m8[s]"), {}),
    ("needs native numbers, got dtype [('a', '<f8')]", X.view([("a", "f8")]), {}),
    ("needs native numbers, got dtype |S3", np.zeros(2, "S3"), {}),
    ("needs native numbers, got dtype float8_e4m3fn", np.zeros(2, ml_dtypes.float8_e4m3fn), {}),
    ("needs numbers, got Python objects (dtype object)", np.zeros(2, object), {}),
    ("needs numbers, got Python objects (dtype object)", [np.zeros(2, object), MPI.BYTE], {}),
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


def test_derived_datatypes_reach_around_a_view() -> None:
    """As far as the object that it is a view of; a counted stretch of plain elements stays inside the view."""
    x, around = np.arange(12.0), MPI.DOUBLE.Create_hindexed([1, 1], [-8, 8]).Commit()
    raw = bytearray(x)
    for whole, part in (
        (x, x[5:6]),
        (x, x[4:].reshape(2, 4)[0, 1:2]),
        (x, memoryview(x)[5:6]),
        (raw, memoryview(raw)[40:48]),
    ):
        resolved = describe([part, 1, around])
        assert (resolved.address - address(whole), pack(resolved).view("f8").tolist()) == (40, [4, 6])
        assert describe([part, [1, 1], [-1, 1], around], nblocks=2).count == 2
        refuse(
            "elements -2 to -1 of a derived datatype, got memory that lacks 16 bytes before it",
            [part, [1], [-2], around],
            nblocks=1,
        )
    refuse("got memory that lacks 8 bytes before it and 8 bytes behind it", [x[5:6].copy(), 1, around])
    refuse("needs 2 elements of float64, got 1", [x[5:6], 2, MPI.DOUBLE])
    around.Free()


def test_pack_and_unpack() -> None:
    x, y, datatype = np.arange(24.0), np.zeros(24), derived()
    cases: list[tuple[Any, Any, dict[str, int], list[int]]] = [
        ([x, 3, datatype], [y, 3, datatype], {}, [0, 3, 6, 9, 12, 15]),
        ([x[:22], (1, 3), datatype], [y[:22], (1, 3), datatype], {}, [18, 21]),
        ([x, [1, 2], [3, 0], datatype], [y, [1, 2], [3, 0], datatype], {"nblocks": 2}, [18, 21, 0, 3, 6, 9]),
        (
            [x, [1, 0, 2], [5, 0, 1], MPI.DOUBLE],
            [y, [1, 0, 2], [5, 0, 1], MPI.DOUBLE],
            {"nblocks": 3},
            [5, 1, 2],
        ),
        (x, y, {}, list(range(24))),
        (x[:0], y[:0], {}, []),
    ]
    for send, recv, options, order in cases:
        y[:] = -1
        packed = pack(describe(send, **options))
        assert packed.dtype == np.uint8
        assert packed.view(float).tolist() == order
        unpack(packed, describe(recv, **options))
        assert y.tolist() == [i if i in order else -1 for i in range(24)]
    datatype.Free()


def test_overlap_of_derived_datatypes_is_left_to_packing() -> None:
    x, datatype = np.zeros(12), derived()
    assert not check_overlap(describe([x, 1, datatype]), describe([x[1:], 1, datatype]), 3)
    assert check_overlap(describe([x, 1, datatype]), describe([x, 1, datatype]), 3)
    datatype.Free()
