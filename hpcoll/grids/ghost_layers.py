"""Parts of a block with ghost layers: what a neighbour gets, where its points go, and what can be computed meanwhile."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

Part = tuple[slice, ...]
Widths = Sequence[tuple[int, int]]  # ghost layers along each axis, before and after the block


class SideExchange(NamedTuple):
    """A message to one neighbour, and the one that comes from the neighbour on the other side."""

    # steps along each axis to the neighbour that gets it; its points come from as many steps back
    towards: tuple[int, ...]
    sent: Part
    received: Part


def exchanges(shape: Sequence[int], widths: Widths, *, corners: bool) -> Iterator[SideExchange]:
    """Yield the exchanges of a block of ``shape``, ghost layers included.

    >>> [(m.towards, m.sent[0], m.received[0]) for m in exchanges([6], ((1, 2),), corners=False)]
    [((-1,), slice(1, 3, None), slice(4, 6, None)), ((1,), slice(3, 4, None), slice(0, 1, None))]
    """
    for towards in product((-1, 0, 1), repeat=len(shape)):
        across = sum(map(abs, towards))
        # ghost layers before a block are filled by what goes upwards
        layers = [pair[0] if step > 0 else pair[1] for step, pair in zip(towards, widths) if step]
        if across and (corners or across == 1) and all(layers):
            sent, received = zip(*(_along(*along) for along in zip(towards, shape, widths)))
            yield SideExchange(towards, sent, received)


def _along(step: int, n: int, widths: tuple[int, int]) -> tuple[slice, slice]:
    """Return what is sent and what is received along one axis."""
    low, high = widths
    if step == 0:
        return slice(low, n - high), slice(low, n - high)
    if step < 0:
        return slice(low, low + high), slice(n - high, n)
    return slice(n - high - low, n - high), slice(0, low)


def owned_part(shape: Sequence[int], widths: Widths) -> Part:
    """Return the block without its ghost layers."""
    return tuple(slice(low, n - high) for n, (low, high) in zip(shape, widths))


def inner_part(shape: Sequence[int], widths: Widths) -> Part:
    """Return the points whose neighbours within the width are all owned.

    >>> inner_part([8], ((1, 2),)), inner_part([4], ((1, 1),)), inner_part([3], ((1, 1),))
    ((slice(2, 4, None),), (slice(2, 2, None),), (slice(2, 2, None),))
    """
    starts = [min(2 * low, n - high) for n, (low, high) in zip(shape, widths)]
    return tuple(slice(start, max(start, n - 2 * high)) for start, n, (_, high) in zip(starts, shape, widths))


def rim_parts(shape: Sequence[int], widths: Widths) -> list[Part]:
    """Return parts that make the owned points together with the inner part; no point is in two of them."""
    owned = owned_part(shape, widths)
    inner = inner_part(shape, widths)
    parts = []
    for axis, (whole, within) in enumerate(zip(owned, inner)):
        for edge in (slice(whole.start, within.start), slice(within.stop, whole.stop)):
            if edge.start < edge.stop:
                parts.append((*inner[:axis], edge, *owned[axis + 1 :]))
    return parts
