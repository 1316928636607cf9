"""Ring: every rank has a left and a right neighbour.

    0 -> 1 -> 2 -> 3 -> 0
"""


def neighbours(rank: int, nranks: int) -> tuple[int, int]:
    """``(left, right)``: whom a rank receives from and sends to.

    >>> neighbours(0, 4)
    (3, 1)
    """
    return (rank - 1) % nranks, (rank + 1) % nranks
