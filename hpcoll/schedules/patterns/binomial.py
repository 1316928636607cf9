"""Binomial tree over vranks: a vrank's parent is itself without its lowest set bit.

         0
       / | \\
      1  2  4
         |  | \\
         3  5  6
               |
               7
"""


def parent(vrank: int) -> int:
    """Parent of a vrank ``> 0``.

    >>> [parent(v) for v in range(1, 8)]
    [0, 0, 2, 0, 4, 4, 6]
    """
    return vrank & (vrank - 1)


def subtree(vrank: int, nranks: int) -> int:
    """Number of vranks in the subtree of ``vrank``: it spans ``vrank .. vrank + subtree - 1``.

    >>> [subtree(v, 7) for v in range(7)]
    [7, 1, 2, 1, 3, 1, 1]
    """
    return min(vrank & -vrank, nranks - vrank) if vrank else nranks


def children(vrank: int, nranks: int) -> tuple[int, ...]:
    """Children of a vrank, largest subtree first.

    >>> children(0, 8), children(4, 7)
    ((4, 2, 1), (6, 5))
    """
    span = vrank & -vrank if vrank else 1 << (nranks - 1).bit_length()
    steps = []
    while span > 1:
        span //= 2
        if vrank + span < nranks:
            steps.append(vrank + span)
    return tuple(steps)
