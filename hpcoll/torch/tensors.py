"""Tensors as arrays that hpcoll's collectives take: over the same memory, contiguous, of an element type that they know."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch

from hpcoll.base.errors import ArgumentTypeError

Store = Callable[[], object]  # copies a result to the tensors that get it

# Element types that NumPy lacks: an integer type of their size, as which they lie in memory, and ours where there is one to compute with.
_LIKE = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    **{one: (torch.uint8, None) for one in vars(torch).values() if isinstance(one, torch.dtype) and str(one).startswith("torch.float8")},
}
_MOST_SPARE = 64 << 20  # bytes
_spare: dict[torch.dtype, torch.Tensor] = {}
_MOST = 2**31 - 1  # elements that MPI before version 4 can count


def array_of(tensor: torch.Tensor, *, computes: bool = False) -> Any:
    """Return a contiguous tensor as an array over the same memory: NumPy's, or for GPU memory the tensor itself.

    ``computes``: elements are combined, not only moved; ArgumentTypeError where they cannot be. Gradients are not followed.
    """
    like, known = _LIKE.get(tensor.dtype, (None, None))
    if computes and like is not None and known is None:
        raise ArgumentTypeError(f"a reduction needs elements that can be combined, got {tensor.dtype}")
    if tensor.is_cuda:
        return tensor.detach() if like is None or computes else tensor.detach().view(like)
    if like is None:
        return tensor.detach().numpy() if tensor.requires_grad else tensor.numpy()
    array = tensor.detach().view(like).numpy()
    return array.view(known) if computes else array


def contiguous(tensor: torch.Tensor, *, filled: bool) -> tuple[torch.Tensor, Store | None]:
    """Return a tensor, or a copy without gaps of one that has some; and a function that copies back where it is to be filled."""
    if tensor.is_contiguous():
        return tensor, None
    copy = tensor.detach().contiguous()
    return copy, partial(_copy, [tensor], [copy]) if filled else None


def joined(tensors: Sequence[torch.Tensor], *, sent: bool, filled: bool) -> tuple[torch.Tensor, Store | None]:
    """Return tensors one behind the other in one, over their own memory where they lie so, else a copy; and a function that copies back.

    The tensors are of one element type and device. ``sent``: the contents are sent; ``filled``: the tensors are to be filled.
    """
    first, total = tensors[0], sum(one.numel() for one in tensors)
    if _adjacent(tensors):
        return first.detach().new_empty(0).set_(first.untyped_storage(), first.storage_offset(), (total,)), None
    if not filled:
        flat = _taken(first, total)
        return torch.cat([one.detach().reshape(-1) for one in tensors], out=flat), partial(_give_back, flat)
    flat = torch.cat([one.detach().reshape(-1) for one in tensors]) if sent else first.new_empty(total, requires_grad=False)
    return flat, partial(_copy, tensors, flat.split([one.numel() for one in tensors]))


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


class _TensorMemory:
    """Memory at an address, as NumPy takes it; keeps the owner of the memory alive."""

    __slots__ = ("__array_interface__", "kept")

    def __init__(self, address: int, count: int, like: np.ndarray, kept: object) -> None:
        self.__array_interface__ = {"version": 3, "shape": (count,), "typestr": like.dtype.str, "data": (address, False)}
        self.kept = kept


def spread(tensors: Sequence[torch.Tensor], *, sent: bool, filled: bool, far: bool) -> tuple[list[Any], Store | None]:
    """Return tensors in host memory as a buffer argument with displacements, and a function that copies back; arguments as of `joined`.

    Blocks lie in the tensors' own memory, or in a copy where displacements cannot say it. ``far``: displacements may exceed an int of C.
    """
    counts, itemsize = [one.numel() for one in tensors], tensors[0].element_size()
    addresses = [one.data_ptr() for one in tensors]
    base = min(addresses)
    displs = [(address - base) // itemsize for address in addresses]
    end = max(displs) + max(counts)
    told = all(counts) and not any((at - base) % itemsize for at in addresses) and (far or end <= _MOST)
    if not told or not all(one.is_contiguous() for one in tensors):
        flat, store = joined(tensors, sent=sent, filled=filled)
        return [array_of(flat), counts], store
    first = array_of(tensors[0])
    return [np.asarray(_TensorMemory(base, end, first, tensors)).view(first.dtype), (counts, displs)], None


def _adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether each begins where the one before it ends."""
    at, storage = tensors[0].data_ptr(), tensors[0].untyped_storage().data_ptr()
    for one in tensors:
        if one.data_ptr() != at or not one.is_contiguous() or one.untyped_storage().data_ptr() != storage:
            return False
        at += one.numel() * one.element_size()
    return True


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.detach().copy_(source.view(target.shape))
