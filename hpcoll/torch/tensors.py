"""Tensors as arrays that hpcoll's collectives take: over the same memory, contiguous, of an element type that they know."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch

from hpcoll.base.errors import ArgumentTypeError

Store = Callable[[], object]  # copies a result to the tensors that get it

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size
_KNOWN = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)
# The element types that can be combined, as NumPy has them.
COMBINED = {dtype: torch.empty(0, dtype=dtype).numpy().dtype for dtype in _KNOWN} | {
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16)
}
_MOST_SPARE = 64 << 20  # bytes
_spare: dict[torch.dtype, torch.Tensor] = {}
_MOST = 2**31 - 1  # elements that MPI before version 4 can count


class _TensorMemory(ctypes.Array[ctypes.c_char]):
    """All memory from an address on; keeps the owner of the memory alive."""

    _type_ = ctypes.c_char
    _length_ = 2**62
    __slots__ = ("kept",)
    kept: object


def _array(address: int, count: int, dtype: torch.dtype, kept: object) -> Any:
    memory = _TensorMemory.from_address(address)
    memory.kept = kept
    return np.frombuffer(memory, COMBINED[dtype], count)  # type: ignore[call-overload]


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor in host memory; ArgumentTypeError where it is elsewhere, or has none."""
    address = tensor.data_ptr()
    if not tensor.is_cpu or (not address and tensor.numel()):
        got = f"{tensor.numel()} elements on {tensor.device}, at {address:#x}"
        raise ArgumentTypeError(f"a tensor needs memory of the CPU or of a CUDA GPU, got {got}")
    return address


def array_of(tensor: torch.Tensor) -> Any:
    """Return a contiguous tensor as an array over the same memory: NumPy's, or for GPU memory the tensor itself.

    Gradients are not followed. Its storage may be resized later, which ``tensor.numpy()`` would end.
    """
    return (
        tensor.detach() if tensor.is_cuda else _array(_address(tensor), tensor.numel(), tensor.dtype, tensor)
    )


def as_moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as which its elements are moved: itself, or integers of their size where NumPy lacks their type."""
    if tensor.dtype in _KNOWN:
        return tensor
    if tensor.is_quantized:
        raise ArgumentTypeError(f"a collective needs elements that are no quantized ones, got {tensor.dtype}")
    return tensor.detach().view(_INTEGERS[tensor.element_size()])


def contiguous(
    tensor: torch.Tensor, *, filled: bool, combined: bool = False
) -> tuple[torch.Tensor, Store | None]:
    """Return a tensor, or a copy of one that has gaps; and a function that copies back where it is to be filled.

    ``combined``: the elements keep their type, to be computed with; else they may come as integers, see `as_moved`.
    """
    tensor = tensor if combined else as_moved(tensor)
    if _lies_as_it_reads(tensor):
        return tensor, None
    copy = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return copy, partial(_copy, [tensor], [copy]) if filled else None


def _lies_as_it_reads(tensor: torch.Tensor) -> bool:
    """Say whether it has no gaps, and torch changes no signs when it reads it."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def apart(output: torch.Tensor, store: Store | None, sent: torch.Tensor) -> tuple[torch.Tensor, Store | None]:
    """Return memory for a result that shares none with what is sent: the output's own, or a copy's, with its function that copies back."""
    at = output.data_ptr()
    other = sent.data_ptr()
    if at >= other + sent.nbytes or other >= at + output.nbytes:
        return output, store
    copy = torch.empty_like(output, requires_grad=False)
    return copy, partial(_copy, [output], [copy])


def joined(
    tensors: Sequence[torch.Tensor], *, sent: bool, filled: bool, combined: bool = False
) -> tuple[torch.Tensor, Store | None]:
    """Return tensors one behind the other in one, over their own memory where they lie so, else a copy; and a function that copies back.

    The tensors are of one element type and device. ``sent``: the contents are sent; ``filled``: the tensors are to be filled; ``combined``
    as of `contiguous`.
    """
    if not combined:
        tensors = [as_moved(tensor) for tensor in tensors]
    first = tensors[0]
    total = sum(tensor.numel() for tensor in tensors)
    if _adjacent(tensors):
        return first.detach().new_empty(0).set_(
            first.untyped_storage(), first.storage_offset(), (total,)
        ), None
    if not filled:
        flat = _taken(first, total)
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=flat), partial(
            _give_back, flat
        )
    flat = (
        torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        if sent
        else first.new_empty(total, requires_grad=False)
    )
    return flat, partial(_copy, tensors, flat.split([tensor.numel() for tensor in tensors]))


def _taken(like: torch.Tensor, count: int) -> torch.Tensor:
    """Return memory for ``count`` elements, which an earlier call gave back where there is some: fresh pages take long to fill."""
    spare = None if like.is_cuda else _spare.pop(like.dtype, None)
    if spare is None or spare.numel() < count:
        spare = like.new_empty(count, requires_grad=False)
    return spare[:count]


def _give_back(flat: torch.Tensor) -> None:
    """Keep memory for a later call, unless it is much."""
    if not flat.is_cuda and flat.untyped_storage().nbytes() <= _MOST_SPARE:
        _spare[flat.dtype] = flat.new_empty(0).set_(flat.untyped_storage())


def spread(
    tensors: Sequence[torch.Tensor], *, sent: bool, filled: bool, far: bool
) -> tuple[list[Any], Store | None]:
    """Return tensors in host memory as a buffer argument with displacements, and a function that copies back; arguments as of `joined`.

    Blocks lie in the tensors' own memory, or in a copy where displacements cannot say it. ``far``: displacements may exceed an int of C.
    """
    tensors = [as_moved(tensor) for tensor in tensors]
    counts = [tensor.numel() for tensor in tensors]
    itemsize = tensors[0].element_size()
    addresses = [_address(tensor) for tensor in tensors]
    base = min(addresses)
    displs = [(address - base) // itemsize for address in addresses]
    end = max(displs) + max(counts)
    told = all(counts) and not any((at - base) % itemsize for at in addresses) and (far or end <= _MOST)
    if not told or not all(map(_lies_as_it_reads, tensors)):
        flat, store = joined(tensors, sent=sent, filled=filled)
        return [array_of(flat), counts], store
    return [_array(base, end, tensors[0].dtype, tensors), (counts, displs)], None


def _adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether each begins where the one before it ends."""
    at = tensors[0].data_ptr()
    storage = tensors[0].untyped_storage().data_ptr()
    for tensor in tensors:
        if (
            tensor.data_ptr() != at
            or not _lies_as_it_reads(tensor)
            or tensor.untyped_storage().data_ptr() != storage
        ):
            return False
        at += tensor.numel() * tensor.element_size()
    return True


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources):
            target.detach().copy_(source.view(target.shape))
