"""The partition of a message into segments and chunks: arithmetic on element counts."""

from typing import Any

from hpcoll.base.errors import ArgumentError
from hpcoll.base.sizes import least


def chunk_bounds(count: Any, nchunks: int, index: int) -> tuple[Any, Any]:
    """Return the element range of one chunk of a message.

    The chunks tile ``[0, count)`` in order; the first ``count % nchunks`` are one element longer than the others.

    Args:
        count: Length of the message, in elements; ``>= 0``.
        nchunks: Number of chunks, ``>= 1``.
        index: Number of the chunk, ``0 <= index < nchunks``.

    Returns:
        ``(lo, hi)``: displacements, in elements, of the first element and of the one behind the last.

    Raises:
        ArgumentError: ``count`` is negative or ``index`` is outside its range.

    >>> [chunk_bounds(10, 4, i) for i in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    if count < 0 or not 0 <= index < nchunks:
        raise ArgumentError(f"chunk needs count >= 0 and 0 <= index < {nchunks}, got count {count}, index {index}")
    quotient, remainder = divmod(count, nchunks)
    return index * quotient + least(index, remainder), (index + 1) * quotient + least(index + 1, remainder)


def segment_count(count: int, segment: int) -> int:
    """Return the number of segments of at most ``segment`` elements in a message of ``count``; at least 1.

    >>> segment_count(10, 4), segment_count(0, 4), segment_count(8, 4)
    (3, 1, 2)
    """
    return max(1, -(-count // max(1, segment)))


def cyclic_runs(start: int, length: int, modulus: int) -> list[tuple[int, int]]:
    """Return a cyclic range of indices as at most two runs ``(first, length)``; none for no length.

    >>> cyclic_runs(5, 4, 7), cyclic_runs(2, 3, 7), cyclic_runs(3, 0, 7)
    ([(5, 2), (0, 2)], [(2, 3)], [])
    """
    start %= modulus
    head = min(length, modulus - start)
    return [run for run in ((start, head), (0, length - head)) if run[1] > 0]
