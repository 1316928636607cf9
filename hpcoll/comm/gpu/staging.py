"""Launches on a stream before and after a collective of GPU arrays: conversions, factors, packing, copies of overwritten input.

`hpcoll.comm.arguments.reductions` does the same for host arrays with NumPy.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.comm.arguments.call import Call, factor_of, result_count
from hpcoll.comm.arguments.memory import UNREADABLE, buffer_of, host_array, with_buffer
from hpcoll.kernels import MAX_AXES, WIDE_NBYTES
from hpcoll.runtime.gpu.arrays import DeviceArray, device_array
from hpcoll.runtime.gpu.device import Gpu, Temporary, gpu_of, kernels

Launch = Callable[[int], None]  # of a stream


class StagedBytes(NamedTuple):
    """GPU memory made for a call, and the launch that fills it."""

    memory: Temporary
    fill: Launch


def reduction(call: Call, nranks: int, *, one_fold: bool) -> Call:
    """Return a reduction of GPU arrays, with the work before and after it.

    Kernels fold half types in float32 and round once, so that with ``one_fold`` arrays may travel as they are, unless a factor is applied.
    """
    send, recv = call.keep[:2]
    assert isinstance(send, Resolved)
    assert recv is None or isinstance(recv, Resolved)
    op, dtype, work = call.op, send.dtype, call.dtype
    if op is None or not send.count:
        return call
    gpu = gpu_of((send.gpu or recv.gpu).ordinal)  # type: ignore[union-attr]
    one_fold = one_fold and op.premultiplier is None and not op.average and work != dtype
    work = dtype if one_fold else work
    before: list[Launch] = []
    keep: list[object] = []
    source, target, in_place = call.send, call.recv, call.in_place
    own, divisor = result_count(call), nranks if op.average else 1

    def through(made: StagedBytes) -> int:
        before.append(made.fill)
        keep.append(made.memory)
        return made.memory.address

    if work != dtype or op.premultiplier is not None:
        scaled = gpu.temporary(send.count * work.itemsize)
        factor = 1 if op.premultiplier is None else factor_of(op, work)
        fill = scale(gpu, scaled.address, work, source, dtype, send.count, factor, divides=False)
        source, in_place = through(StagedBytes(scaled, fill)), False
    if call.collective == "reduce_scatter" and in_place:
        source, in_place = through(copy(gpu, source, send.nbytes)), False
    after = list[Launch]()
    if recv is not None and work != dtype:
        result = gpu.temporary(own * work.itemsize)
        keep.append(result)
        after.append(scale(gpu, target, dtype, result.address, work, own, divisor, divides=True))
        target, in_place = result.address, False
    elif recv is not None and divisor > 1:
        after.append(scale(gpu, target, dtype, target, dtype, own, divisor, divides=True))
    return call._replace(
        send=source,
        recv=target,
        in_place=in_place,
        dtype=work,
        one_fold=one_fold,
        before=tuple(before),
        finish=finisher(gpu, after),
        keep=(*call.keep, *keep),
        as_given=False,
    )


def settled(call: Call, gpu: Gpu) -> Call:
    """Return a call that works on a copy of its input where results overwrite that."""
    if not call.copied:
        return call
    copied = copy(gpu, call.send, call.copied)
    return call._replace(
        send=copied.memory.address,
        copied=0,
        before=(*call.before, copied.fill),
        keep=(*call.keep, copied.memory),
    )


def finisher(
    gpu: Gpu, after: Sequence[Launch], first: Callable[[], None] | None = None
) -> Callable[[], None] | None:
    """Return a function that calls ``first``, launches and waits; ``first`` itself where there is nothing to launch."""
    if not after:
        return first

    def finish() -> None:
        if first is not None:
            first()
        with gpu.entered():
            for launch in after:
                launch(gpu.stream)
            gpu.finish(gpu.stream)

    return finish


def scale(
    gpu: Gpu,
    dst: int,
    dst_type: np.dtype,
    src: int,
    src_type: np.dtype,
    count: int,
    value: complex,
    *,
    divides: bool,
) -> Launch:
    """Return the launch that multiplies or divides by a number, and converts."""
    made = kernels()
    function = gpu.function(made.scale(src_type, dst_type, gpu.cc))
    real, imag = (
        struct.unpack("<q", struct.pack("<d", part))[0] for part in (complex(value).real, complex(value).imag)
    )
    blocks = -(-count * dst_type.itemsize // (made.BLOCK * WIDE_NBYTES))
    return lambda stream: gpu.launch(
        function, [dst, src, count, real, imag, int(divides)], blocks, made.BLOCK, stream
    )


def copy(gpu: Gpu, src: int, nbytes: int) -> StagedBytes:
    """Return a copy of memory."""
    memory = gpu.temporary(nbytes)
    return StagedBytes(memory, lambda stream: gpu.driver.copy(memory.address, src, nbytes, stream))


def pack(gpu: Gpu, array: DeviceArray) -> StagedBytes:
    """Return a copy of an array with gaps, in C order without gaps."""
    made = kernels()
    assert array.strides is not None
    shape, strides = _axes(array.shape, array.strides)
    if len(shape) > MAX_AXES:
        raise ArgumentError(
            f"an array with gaps needs at most {MAX_AXES} axes, got {len(shape)}: copy it first"
        )
    shape, strides = [1] * (MAX_AXES - len(shape)) + shape, [0] * (MAX_AXES - len(strides)) + strides
    memory = gpu.temporary(array.nbytes)
    function = gpu.function(made.pack(array.dtype.itemsize, gpu.cc))
    values = [memory.address, array.pointer, *shape, *strides]
    blocks = -(-array.size // made.BLOCK)
    return StagedBytes(memory, lambda stream: gpu.launch(function, values, blocks, made.BLOCK, stream))


class Lifted:
    """A copy on the GPU of a host array that a call uses beside GPU arrays; the copy has the CUDA array interface."""

    def __init__(self, memory: Temporary, host: np.ndarray) -> None:
        self.memory, self.host = memory, host

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA array interface, which `hpcoll.runtime.gpu.arrays` reads."""
        strides = None if self.host.flags.c_contiguous else self.host.strides
        data = (self.memory.address if self.host.size else 0, not self.host.flags.writeable)
        return {
            "version": 3,
            "shape": self.host.shape,
            "typestr": self.host.dtype.str,
            "data": data,
            "strides": strides,
            "stream": None,
        }

    def fill(self, stream: int) -> None:
        """Copy from the host."""
        self.memory.gpu.driver.copy(self.memory.address, self.host.ctypes.data, self.host.nbytes, stream)

    def bring_home(self, stream: int) -> None:
        """Copy to the host."""
        self.memory.gpu.driver.copy(self.host.ctypes.data, self.memory.address, self.host.nbytes, stream)


def lifted(gpu: Gpu, spec: Any) -> tuple[Any, Lifted | None]:
    """Return a buffer argument with a copy on the GPU of its host array; itself where it has none that is contiguous."""
    buffer = buffer_of(spec)
    try:
        array = None if buffer is None or device_array(buffer) is not None else host_array(buffer)
    except UNREADABLE:  # describing the call says why
        return spec, None
    if array is None or not array.flags.forc:
        return spec, None
    one = Lifted(gpu.temporary(array.nbytes), array)
    return with_buffer(spec, one), one


def _axes(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return shape and strides of the same elements in the same order, with fewer axes."""
    sizes, steps = list[int](), list[int]()
    for n, step in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if sizes and steps[-1] == n * step:
            sizes[-1], steps[-1] = sizes[-1] * n, step
        else:
            sizes.append(n)
            steps.append(step)
    return sizes, steps
