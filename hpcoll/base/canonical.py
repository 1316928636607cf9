"""The canonical expression: the one way in which a fold combines values that are in order, such as the contributions of ranks.

    T(1) = x0        T(n) = T(the first f) op T(the other n - f),  with f the largest power of two below n

    n = 3: (x0 x1) x2        n = 4: (x0 x1)(x2 x3)        n = 6: ((x0 x1)(x2 x3))(x4 x5)        n = 7: ((x0 x1)(x2 x3))((x4 x5) x6)

An aligned block of 2^k values is a subtree for every n, so partial results of such blocks serve any number of ranks, and every prefix.

Source: the shape of Merkle trees in RFC 6962; the order of a binary counter, as in pairwise summation (Higham 1993).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def split(n: int) -> int:
    """Return how many of ``n`` values are left of the last combination: the largest power of two below ``n``; of one value itself.

    >>> [split(n) for n in (1, 2, 3, 4, 5, 8, 9)]
    [1, 1, 2, 2, 4, 4, 8]
    """
    return 1 << max(n - 1, 1).bit_length() - 1


def fold(combine: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """Return the canonical expression of one or more values.

    >>> fold(lambda left, right: f"({left}{right})", "abcdef")
    '(((ab)(cd))(ef))'
    """
    if len(values) == 1:
        return values[0]
    left = split(len(values))
    return combine(fold(combine, values[:left]), fold(combine, values[left:]))
