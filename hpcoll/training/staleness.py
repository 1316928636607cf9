"""Staleness: how many updates a gradient came after the parameters it was computed from, and when a bound on it can be kept. No MPI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Staleness:
    """Statistics of observed staleness, in updates between the version that a gradient was computed from and its own.

    Attributes:
        histogram: How many gradients had which staleness.
    """

    histogram: Counter[int] = field(default_factory=Counter)

    def add(self, observed: int) -> None:
        """Count a gradient."""
        self.histogram[observed] += 1

    @property
    def max(self) -> int:
        """The largest one; 0 where there was no gradient."""
        return max(self.histogram, default=0)

    @property
    def mean(self) -> float:
        """The mean one; 0 where there was no gradient."""
        count = self.histogram.total()
        return sum(value * times for value, times in self.histogram.items()) / count if count else 0.0


def keeps_bound(version: int, bases: Iterable[int], bound: int) -> bool:
    """Whether gradients that are on their way can all be applied from ``version`` on, one after the other, none staler than the bound.

    Oldest first is the best order, so it is the one to check.

    Args:
        version: The next update makes it ``version + 1``.
        bases: Versions that the gradients are computed from, in any order.
        bound: Largest staleness, ``>= 0``.

    >>> keeps_bound(3, [3, 2], 1), keeps_bound(3, [2, 2], 1)
    (True, False)
    """
    return all(version + turn - base <= bound for turn, base in enumerate(sorted(bases)))
