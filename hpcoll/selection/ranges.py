"""Ranges of sizes that one choice serves.

A choice is made at every power of two and at every size in the tuning table, and holds up to the next of these, so that calls of ever
new sizes need no choice of their own.
"""

from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

from hpcoll.analysis.cost import NEVER
from hpcoll.selection.choose import Choice, Need, choose, modelled_segment
from hpcoll.selection.config import Config

_POWERS = 40


class SizeRange(NamedTuple):
    """Messages of ``least`` to ``most`` bytes, and what serves them; a segment of `NEVER` is the whole message."""

    least: int
    most: int
    choice: Choice


class SizeRanges:
    """The ranges of a communicator's settings, found as they are asked for."""

    def __init__(self, config: Config) -> None:
        self._config = config
        measured = (entry.nbytes for kinds in config.table.values() for entries in kinds.values() for entry in entries)
        self._borders = [*sorted({0, *(1 << i for i in range(_POWERS)), *measured}), NEVER]
        self.find = lru_cache(maxsize=1024)(self._find)

    def cell(self, nbytes: int) -> tuple[int, int]:
        """Least and most bytes of the messages that are served as one of so many."""
        i = bisect_right(self._borders, nbytes)
        return self._borders[i - 1], self._borders[i] - 1

    def _find(self, need: Need, algorithm: str | None, segment: int | None) -> SizeRange:
        """The range of a call, whose ``nbytes`` is the least of a cell or None; the others as in `choose`, which it raises as.

        The segment is the one for the longest message, for the shortest one is no longer than a segment more often.
        """
        if need.nbytes is None:
            return SizeRange(0, NEVER, choose(need, self._config, algorithm, segment))
        least, most = self.cell(need.nbytes)
        choice = choose(need, self._config, algorithm, segment)
        if not segment and not self._config.segment and choice.segment >= least and most < NEVER - 1:
            longest = need._replace(nbytes=most)
            theirs = choose(longest, self._config, algorithm, segment)
            found = theirs.segment if theirs.algorithm == choice.algorithm else modelled_segment(longest, choice.algorithm)
            choice = choice._replace(segment=found if found < most else NEVER)
        return SizeRange(least, most, choice)
