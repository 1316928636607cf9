"""Spans: contiguous bytes of a buffer, and chunks as spans. Pure arithmetic."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

MESSAGE = -2  # buffer of a span: the message in message slot ``i`` is ``MESSAGE - i``
LANDING = 3  # the landing slot ``i`` is ``LANDING + i``; the other buffers are as in a row


class Span(NamedTuple):
    """Contiguous bytes of one buffer."""

    buffer: int
    displ: int
    nbytes: int


Pieces = list[tuple[Hashable, Span]]  # chunks: the name of each one's memory, and where it is


def names_of(pieces: Pieces) -> list[Hashable]:
    """The names of the chunks."""
    return [name for name, _ in pieces]


def nbytes_of(pieces: Pieces) -> int:
    """Bytes of all pieces."""
    return sum(span.nbytes for _, span in pieces)


def placed(name: Hashable, buffer: int, pieces: Pieces) -> Pieces:
    """Pieces of these sizes one after another in a buffer, under one name."""
    displs = accumulate((span.nbytes for _, span in pieces), initial=0)
    return [(name, Span(buffer, displ, span.nbytes)) for (_, span), displ in zip(pieces, displs, strict=False)]


def contiguous(operands: Sequence[Pieces]) -> Iterator[list[Pieces]]:
    """Cut operands of equal chunk sizes where any of them is interrupted in memory."""
    start = 0
    for i in range(1, len(operands[0]) + 1):
        if i == len(operands[0]) or any(_gap(pieces[i - 1][1], pieces[i][1]) for pieces in operands):
            yield [pieces[start:i] for pieces in operands]
            start = i


def _gap(span: Span, following: Span) -> bool:
    return (span.buffer, span.displ + span.nbytes) != (following.buffer, following.displ)


def join(pieces: Pieces) -> Span:
    """Pieces that are contiguous, as one span."""
    first = pieces[0][1]
    return Span(first.buffer, first.displ, nbytes_of(pieces))


def spans_of(pieces: Pieces) -> list[Span]:
    """Pieces in as few spans as they are contiguous."""
    return [join(group) for (group,) in contiguous([pieces])]
