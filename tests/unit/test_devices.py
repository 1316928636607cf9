"""Arrays in GPU memory are recognised, or refused in words that say why."""

import ctypes
import gc
import mmap
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_double import Double
from driver_cases import Cai, on_gpu

from hpcoll.base.errors import DeviceError
from hpcoll.runtime.gpu import cuda, dlpack
from hpcoll.runtime.gpu.arrays import DeviceArray, device_array

BF16 = np.dtype(ml_dtypes.bfloat16)
pytestmark = pytest.mark.double(ngpus=2, forgives=("races", "failures"))


def refused(text: str, buffer: Any) -> None:
    with pytest.raises(BufferError) as caught:
        device_array(buffer)
    assert str(caught.value) == text


def test_array_interface(double: Double) -> None:
    x = double.Array((3, 4), np.float64, stream=7)
    assert on_gpu(x) == DeviceArray(x.address, (3, 4), None, np.dtype("f8"), False, 0, x, 7)
    assert (on_gpu(x).size, on_gpu(x).nbytes, on_gpu(x).order, on_gpu(x).span) == (
        12,
        96,
        "C",
        (x.address, x.address + 96),
    )
    assert on_gpu(double.Array(3, readonly=True)).readonly
    assert on_gpu(double.Array(3)).stream is None
    assert on_gpu(Cai(x.address, (2,), version=2)).stream is None
    assert on_gpu(x[1]).pointer == x.address + 32
    assert on_gpu(double.Array((), np.int8))[1:4] == ((), None, np.dtype("i1"))


def test_memory_order_and_gaps(double: Double) -> None:
    x = double.Array((3, 4), np.float32)
    assert on_gpu(Cai(x.address, (3, 4), strides=(16, 4)))[1:3] == ((3, 4), None)  # strides that say nothing
    # of an axis that nobody walks
    assert on_gpu(Cai(x.address, (3, 1), strides=(4, 99)))[1:3] == (
        (3, 1),
        None,
    )
    fortran = on_gpu(Cai(x.address, (3, 4), strides=(4, 12)))
    assert (fortran.order, fortran.nbytes, fortran.span) == ("F", 48, (x.address, x.address + 48))
    column = on_gpu(x[:, 1])
    assert (column.order, column.nbytes, column.strides) == ("", 12, (16,))
    assert column.span == (x.address + 4, x.address + 4 + 36)
    backwards = on_gpu(x[::-1, ::-2])
    assert (backwards.pointer, backwards.span) == (x.address + 44, (x.address + 4, x.address + 48))
    assert on_gpu(Cai(x.address, (5, 2), strides=(0, 4))).span == (x.address, x.address + 8)  # broadcast
    empty = x[:0]
    assert on_gpu(empty) == DeviceArray(0, (0, 4), None, np.dtype("f4"), False, 0, empty)


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("code", ["?", "i1", "u2", "i4", "f2", "f4", "f8", "c8", "c16", BF16])
def test_dlpack(double: Double, code: Any, versioned: bool) -> None:
    producers, ours = double.stream(), double.stream()
    x = double.dlpack(double.Array((2, 3), code, stream=producers, readonly=True), versioned=versioned)
    array = on_gpu(x, ours)
    assert array[:6] == (x.array.address, (2, 3), None, np.dtype(code), versioned, 0)
    assert (array.stream, x.streams) == (ours, [ours])
    assert x.nexported == 1
    del array
    gc.collect()
    assert x.nexported == 0


def test_dlpack_of_parts(double: Double) -> None:
    x = double.Array((3, 4))
    assert on_gpu(double.dlpack(x[:, 1])).strides == (16,)
    assert on_gpu(double.dlpack(double.Array(()))).shape == ()
    plain = double.dlpack(x)
    assert on_gpu(plain).stream == plain.streams[0] == 1  # the legacy default stream


def test_real_capsule() -> None:
    """NumPy's, of the host: read by the same layout."""

    class Host:
        def __init__(self, *, old: bool) -> None:
            self.old = old

        def __dlpack__(self, stream: int, **options: Any) -> Any:
            if self.old and options:
                raise TypeError("unexpected keyword argument 'max_version'")
            return memory.__dlpack__(**options)

    memory = np.arange(12, dtype=np.complex64).reshape(3, 4)[:, 1:]
    expected = (memory.ctypes.data, (3, 3), (32, 8), np.dtype("c8"), False)
    assert dlpack.export(Host(old=False), 1)[:5] == dlpack.export(Host(old=True), 1)[:5] == expected
    memory.flags.writeable = False
    assert dlpack.export(Host(old=False), 1).readonly


def test_dlpack_where_the_interface_has_no_type(double: Double) -> None:
    x = double.Array(4, BF16)
    assert x.__cuda_array_interface__["typestr"] == "<V2"
    assert on_gpu(x).dtype == np.dtype("V2")
    both = double.dlpack(x)
    both.__cuda_array_interface__ = x.__cuda_array_interface__  # type: ignore[attr-defined]
    assert on_gpu(both).dtype == BF16


def test_host_memory(double: Double) -> None:
    x = np.zeros(4, np.float32)
    posing = Cai(x.ctypes.data, (4,))
    pinned = double.Array(4, memory="pinned")
    on_host: list[Any] = [
        x,
        b"abc",
        3,
        None,
        posing,
        pinned,
        double.dlpack(pinned),
        SimpleNamespace(__dlpack__=x.__dlpack__),
    ]
    assert [device_array(one) for one in on_host] == [None] * len(on_host)
    assert "cuPointerGetAttribute" in double.calls


@pytest.mark.usefixtures("no_driver")
def test_no_driver() -> None:
    x = np.zeros(4, np.float32)
    assert device_array(Cai(x.ctypes.data, (4,))) is None
    assert device_array(Cai(0, (0,))) is None
    refused("no memory is at 0x1000: it was freed or never allocated", Cai(0x1000, (4,)))
    gpu = SimpleNamespace(__dlpack__=x.__dlpack__, __dlpack_device__=lambda: (2, 0))
    refused("it lies on a GPU, and this process sees none", gpu)


def test_freed_memory(double: Double) -> None:
    x = double.Array(1000)
    x.free()
    refused(f"no memory is at {x.address:#x}: it was freed or never allocated", Cai(x.address, (1000,)))
    refused("no memory is at 0x10: it was freed or never allocated", Cai(0x10, (1,)))
    page = np.zeros(4, np.float32)
    # its end
    refused(
        f"no memory is at {page.ctypes.data:#x}: it was freed or never allocated",
        Cai(page.ctypes.data, (1 << 45,)),
    )
    refused(f"no memory is at {x.address:#x}: it was freed or never allocated", double.dlpack(x))


@pytest.mark.usefixtures("no_driver")
def test_every_byte_before_a_page_that_cannot_be_read() -> None:
    """What the kernel is made to read must be neither too much, nor less than the page that is asked for."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
    assert [device_array(Cai(address + page - n, (n,), "|u1")) for n in (1, 7, 13, page)] == [None] * 4
    refused(
        f"no memory is at {address:#x}: it was freed or never allocated", Cai(address, (page + 1,), "|u1")
    )


def test_memory_that_ends_too_early(double: Double) -> None:
    x = double.Array(1000)
    assert on_gpu(Cai(x.address + 2000, (500,))).size == 500
    refused(
        f"it needs 2004 bytes at {x.address + 2000:#x}, of which 2000 are allocated",
        Cai(x.address + 2000, (501,)),
    )
    before = Cai(x.address, (3,), strides=(-8,))
    refused(f"it needs 20 bytes at {x.address - 16:#x}, of which 0 are allocated", before)


def test_memory_mapped_piece_by_piece(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's expandable segments are: the driver tells one piece at a time."""
    x = double.Array(1000)
    pieces = {x.address: 1600, x.address + 1600: 2400}

    def address_range(self: Any, pointer: int) -> tuple[int, int]:
        for base, nbytes in pieces.items():
            if base <= pointer < base + nbytes:
                return base, nbytes
        raise DeviceError("nothing")

    monkeypatch.setattr(cuda.Driver, "address_range", address_range)
    assert on_gpu(x).size == 1000
    refused(f"it needs 4004 bytes at {x.address:#x}, of which 4000 are allocated", Cai(x.address, (1001,)))


def test_other_gpu(double: Double) -> None:
    x, y = double.Array(10), double.Array(10, ordinal=1)
    refused("it lies on GPU 1, and this thread uses GPU 0: use one GPU per rank, see hpcoll.local_device", y)
    double.make_current(1)
    assert on_gpu(y).ordinal == 1
    refused("it lies on GPU 0, and this thread uses GPU 1: use one GPU per rank, see hpcoll.local_device", x)
    assert on_gpu(x[:0]).ordinal == 1


def test_thread_without_a_context(double: Double) -> None:
    y = double.Array(10, ordinal=1)
    double.make_current(None)
    assert on_gpu(Cai(0, (0,))).ordinal == 0
    assert on_gpu(y).ordinal == 1
    assert double.current() == 1


def test_what_no_protocol_allows(double: Double) -> None:
    x = double.Array(10)
    refused("masked arrays cannot be sent", Cai(x.address, (10,), mask=x))
    refused(
        "its stream is 0, which the CUDA array interface leaves undefined: 1 is the legacy default stream",
        Cai(x.address, (2,), stream=0),
    )
    rocm = SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (10, 0))
    refused("memory of DLPack device type 10 is not supported", rocm)
