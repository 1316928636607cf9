"""Streams are recognised, and the one is found that orders an array in GPU memory."""

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from driver_cases import Cai, on_gpu

from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.runtime.gpu.arrays import stream_handle, stream_of

pytestmark = pytest.mark.double(ngpus=2, forgives=("races", "failures"))


def test_stream_handles() -> None:
    forms: list[Any] = [
        77,
        np.int64(77),
        SimpleNamespace(ptr=77),
        SimpleNamespace(cuda_stream=77),
        SimpleNamespace(handle=77),
        SimpleNamespace(handle=ctypes.c_void_p(77)),
        SimpleNamespace(__cuda_stream__=lambda: (0, 77)),
        SimpleNamespace(__cuda_stream__=(0, 77), handle="not this"),
        SimpleNamespace(handle=SimpleNamespace(__int__=lambda: 77)),
    ]
    assert [stream_handle(form, 3) for form in forms] == [77] * len(forms)
    defaults: list[Any] = [
        0,
        1,
        SimpleNamespace(ptr=0),
        SimpleNamespace(handle=ctypes.c_void_p(0)),
        SimpleNamespace(__cuda_stream__=(0, 0)),
    ]
    assert [stream_handle(form, 3) for form in defaults] == [1] * len(defaults)
    assert stream_handle(2, 3) == 2


@pytest.mark.parametrize(
    "stream",
    ["7", 7.0, -1, True, object(), (0, 7), SimpleNamespace(ptr=None), SimpleNamespace(__cuda_stream__=())],
)
def test_not_a_stream(stream: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        stream_handle(stream, 3)
    assert str(caught.value) == f"rank 3: stream needs a CUDA stream or its handle, got {stream!r}"


def test_which_stream_orders(double: Double) -> None:
    x, y = double.Array(10, stream=double.stream()), double.Array(10)
    given = double.stream()
    assert stream_of(on_gpu(x), None, 0) == x.stream
    assert stream_of(on_gpu(x), given, 0) == given
    assert stream_of(on_gpu(y), None, 0) == 1
    assert stream_of(on_gpu(double.dlpack(x), given), None, 0) == given


def test_torch_says_its_stream(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor(Cai):
        device = "cuda:0"

    current = SimpleNamespace(cuda_stream=double.stream())
    torch = SimpleNamespace(
        Tensor=Tensor, cuda=SimpleNamespace(current_stream=lambda device: {"cuda:0": current}[device])
    )
    x = double.Array(10)
    tensor = Tensor(x.address, (10,), version=2)
    assert stream_of(on_gpu(tensor), None, 0) == 1
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert stream_of(on_gpu(tensor), None, 0) == current.cuda_stream
    assert stream_of(on_gpu(x), None, 0) == 1
    named = Tensor(x.address, (10,), stream=double.stream())
    assert stream_of(on_gpu(named), None, 0) == named.__cuda_array_interface__["stream"]
    current.cuda_stream = 0
    assert stream_of(on_gpu(tensor), None, 0) == 1
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # half imported
    assert stream_of(on_gpu(tensor), None, 0) == 1


def test_stream_under_capture(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = double.stream()
    array = on_gpu(double.Array(10, stream=stream))
    double.capture(stream)
    text = (
        f"rank 3: stream {stream:#x} is being captured into a CUDA graph, which can hold no collective but "
        "a persistent one by one kernel of each rank (HPCOLL_CUDA_PATH=device)"
    )
    for given in (None, stream):
        with pytest.raises(ArgumentError) as caught:
            stream_of(array, given, 3)
        assert str(caught.value) == text
    double.capture(stream, False)
    assert stream_of(array, None, 3) == stream
    double.fail("cuStreamIsCapturing", 906)  # asked about the default stream while another is captured
    with pytest.raises(ArgumentError, match="rank 3: stream 0x1 is being captured"):
        stream_of(array, 1, 3)
    double.fail("cuStreamIsCapturing", 400)
    with pytest.raises(DeviceError, match="cuStreamIsCapturing failed with CUDA_ERROR_INVALID_HANDLE"):
        stream_of(array, stream, 3)
