"""Message sizes of a benchmark run. No MPI."""

from collections.abc import Iterator

from hpcoll.base.errors import ArgumentError
from hpcoll.base.units import parse_nbytes

MINBYTES, MAXBYTES, FACTOR = "8", "16M", 8
MAX_SIZES, MAX_ITERS = 10_000, 10_000_000


def sizes(minbytes: int, maxbytes: int, stepbytes: int = 0, factor: int = 0) -> Iterator[int]:
    """Sizes from ``minbytes`` to ``maxbytes``: by adding ``stepbytes >= 1``, or else by multiplying with ``factor >= 2``.

    >>> list(sizes(8, 64, factor=2)), list(sizes(8, 20, stepbytes=6))
    ([8, 16, 32, 64], [8, 14, 20])
    """
    assert minbytes >= 1, minbytes
    assert stepbytes >= 1 or factor >= 2, (stepbytes, factor)
    size = minbytes
    while size <= maxbytes:
        yield size
        size = size + stepbytes if stepbytes else size * factor


def sizes_of(minbytes: str, maxbytes: str | None, stepbytes: str | None, factor: int) -> tuple[int, ...]:
    """Sizes from texts such as ``"64K"``, as ``hpcoll bench`` takes them.

    Args:
        minbytes, maxbytes: Least and greatest size; None: `MAXBYTES`, or ``minbytes`` if that is more.
        stepbytes: Distance of two sizes, or None.
        factor: Ratio of two sizes, when there is no distance; at least 2.
    Raises:
        ArgumentError: not a size, an empty range, a step below 1, or more than `MAX_SIZES` sizes.
    """
    least = parse_nbytes(minbytes)
    greatest = max(least, parse_nbytes(MAXBYTES)) if maxbytes is None else parse_nbytes(maxbytes)
    step = 0 if stepbytes is None else parse_nbytes(stepbytes)
    if not 1 <= least <= greatest:
        raise ArgumentError(f"sizes need 1 <= minbytes <= maxbytes, got {least} and {greatest}")
    if factor < 2 or (stepbytes is not None and step < 1):
        raise ArgumentError("stepfactor must be at least 2 and stepbytes at least 1")
    if step and (greatest - least) // step >= MAX_SIZES:
        raise ArgumentError(f"stepbytes makes {(greatest - least) // step + 1} sizes, at most {MAX_SIZES} are measured")
    return tuple(sizes(least, greatest, step, factor))
