"""Launches on a stream before and after a collective of GPU arrays: conversions, factors, packing, copies of overwritten input.

`hpcoll.comm.arguments.reductions` does the same for host arrays with NumPy.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.comm.arguments.call import Call, factor_of, result_count
from hpcoll.comm.arguments.memory import UNREADABLE, buffer_of, host_array, with_buffer
from hpcoll.kernels import WIDE_NBYTES
from hpcoll.runtime.gpu.arrays import DeviceArray, device_array
from hpcoll.runtime.gpu.device import Gpu, Memory, Temporary, gpu_of, kernels
from hpcoll.runtime.program.fields import PIECE_NFIELDS
from hpcoll.runtime.program.layouts import UNMAPPED, Layout, Words

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


def settled(call: Call, gpu: Gpu, rank: int) -> Call:
    """Return a call on packed copies of its buffers that have maps, and on a copy of its input where results overwrite that."""
    if call.maps is UNMAPPED and not call.copied:
        return call
    before, after, keep = list(call.before), list[Launch](), list(call.keep)
    send, recv, (source, target) = call.send, call.recv, call.maps
    sends, receives = (rank == call.root, rank != call.root) if call.collective == "bcast" else (True, True)
    if call.copied or source is not None:
        packed = (
            copy(gpu, send, call.copied)
            if source is None
            else packed_copy(gpu, send, source.pieces, source.nbytes)
        )
        before += [packed.fill] * sends
        keep.append(packed.memory)
        send = packed.memory.address
    if target is not None:
        memory = packed.memory if target is source and call.in_place else gpu.temporary(target.nbytes)
        unpack = mover(gpu, memory.address, recv, target.pieces, target.nbytes, unpacks=True)
        after += [unpack] * receives
        keep.append(memory)
        recv = memory.address
    return call._replace(
        send=send,
        recv=recv,
        copied=0,
        before=tuple(before),
        finish=finisher(gpu, after, call.finish),
        keep=tuple(keep),
        maps=UNMAPPED,
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


def mover(gpu: Gpu, packed: int, memory: int, pieces: Words, nbytes: int, *, unpacks: bool) -> Launch:
    """Return the launch that fills packed memory from pieces, or with ``unpacks`` these from it.

    Args:
        gpu: Reads and writes both memories.
        packed: Address of the packed memory.
        memory: Address from which offsets of pieces count.
        pieces: As of `hpcoll.runtime.program.layouts.Layout`.
        nbytes: Bytes of all pieces.
        unpacks: Whether the pieces are written.
    """
    made, (npieces, width) = kernels(), pieces.shape
    columns = *range(PIECE_NFIELDS), *range(PIECE_NFIELDS + 1, width, 2)  # all but the counts of loops
    multiples = int(np.bitwise_or.reduce(pieces[:, columns], axis=None)) | memory | WIDE_NBYTES
    item = multiples & -multiples  # the largest power of two of which all are multiples
    function, table = gpu.function(made.move(item, gpu.cc)), gpu.table(pieces)
    nloops, nitems = (width - PIECE_NFIELDS) // 2, nbytes // item
    values = [packed, memory, table.address, npieces, nloops, nitems, int(unpacks)]

    def launch(stream: int, table: Memory = table) -> None:
        if nitems:
            gpu.launch(function, values, -(-nitems // made.BLOCK), made.BLOCK, stream)

    return launch


def packed_copy(gpu: Gpu, memory: int, pieces: Words, nbytes: int) -> StagedBytes:
    """Return a packed copy of pieces; arguments as of `mover`."""
    packed = gpu.temporary(nbytes)
    return StagedBytes(packed, mover(gpu, packed.address, memory, pieces, nbytes, unpacks=False))


def pack(gpu: Gpu, array: DeviceArray) -> StagedBytes:
    """Return a copy of an array with gaps, in C order without gaps."""
    assert array.strides is not None
    pieces = Layout.of_array(array.shape, array.strides, array.dtype.itemsize).pieces
    return packed_copy(gpu, array.pointer, pieces, array.nbytes)


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
