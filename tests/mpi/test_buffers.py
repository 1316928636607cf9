"""Memory of all kinds: what `resolve` finds in it, what it refuses, and how two buffers may lie to each other."""

import array
import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from memory_kinds import Cai, Dlpack, address, describe, refuse
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import check_overlap, check_same_order

BF16 = np.dtype(ml_dtypes.bfloat16)
CODES = "?bhilqBHILQefdgFDG"
pytestmark = pytest.mark.once


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 3)])
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


def test_same_order_of_blocks() -> None:
    """Four blocks of two rows and three columns, however many axes they have together."""
    c, f = np.zeros((2, 3)), np.zeros((2, 3), order="F")
    rows, columns = (
        [np.zeros(shape) for shape in ((4, 2, 3), (8, 3))],
        [np.zeros(shape, order="F") for shape in ((2, 3, 4), (2, 12))],
    )
    # transposed, or of no such blocks
    others = [
        np.zeros((4, 3, 2)),
        np.zeros((2, 3, 4)),
        np.zeros(24),
        np.zeros((4, 2, 3), order="F"),
    ]
    for block, good, bad in ((c, rows, columns), (f, columns, rows)):
        for many in good + others:
            check_same_order(block, many, 3, received=4)
            check_same_order(many, block, 3, sent=4)
        for many in bad:
            with pytest.raises(ArgumentError, match="need one memory order"):
                check_same_order(block, many, 3, received=4)
            with pytest.raises(ArgumentError, match="need one memory order"):
                check_same_order(many, block, 3, sent=4)
    # one row has both orders
    check_same_order(np.zeros((1, 3)), np.zeros((1, 3, 4), order="F"), 3, received=4)


def test_overlap() -> None:
    x = np.zeros(12)
    v = {"nblocks": 2}
    same = describe([x, ([1, 1], [0, 6])], **v)
    assert check_overlap(describe(x), describe(x), 3)
    assert check_overlap(same, describe([x, ([1, 1], [0, 6])], **v), 3)
    assert check_overlap(describe(x), describe([x, MPI.BYTE]), 3)
    assert not check_overlap(describe(x[:6]), describe(x[6:]), 3)
    assert not check_overlap(describe(x[6:]), describe(x[:6]), 3)
    assert not check_overlap(describe(x[:0]), describe(x[:0]), 3)
    assert not check_overlap(describe(x[:0]), describe(x), 3)
    assert not check_overlap(same, describe([x, ([1, 1], [1, 7])], **v), 3)  # interleaved
    for send, recv in ((x[:7], x[6:]), (x[6:], x[:7]), (x, x[:6]), (x[3:4], x)):
        with pytest.raises(
            ArgumentError, match="rank 3: sendbuf and recvbuf must be the same memory or share none"
        ):
            check_overlap(describe(send), describe(recv), 3)
    for spec in ([x, ([1, 1], [0, 7])], [x, ([1, 2], [1, 6])]):
        with pytest.raises(ArgumentError, match="partial overlap"):
            check_overlap(same, describe(spec, **v), 3)
