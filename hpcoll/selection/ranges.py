"""Ranges of sizes that one choice serves, so that calls of ever new sizes need no choices of their own.

A choice is made at every power of two and at every size in the tuning table. It holds up to the next of these.
"""

from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

from hpcoll.analysis.cost import NEVER
from hpcoll.selection.choose import Choice, Need, choose, modelled_segment
from hpcoll.selection.config import Config

_POWERS = 40


class SizeRange(NamedTuple):
    """The choice for messages of ``least`` to ``most`` bytes; a segment of `NEVER` is the whole message."""

    least: int
    most: int
    choice: Choice


class SizeRanges:
    """The ranges under a communicator's settings, found on demand."""

    def __init__(self, config: Config) -> None:
        self._config = config
        measured = (entry.nbytes for kinds in config.table.values() for entries in kinds.values() for entry in entries)
        self._borders = [*sorted({0, *(1 << i for i in range(_POWERS)), *measured}), NEVER]
        self.find = lru_cache(maxsize=1024)(self._find)

    def cell(self, nbytes: int) -> tuple[int, int]:
        """Return the least and most bytes of the range that a message of ``nbytes`` is in."""
        i = bisect_right(self._borders, nbytes)
        return self._borders[i - 1], self._borders[i] - 1

    def _find(self, need: Need, algorithm: str | None, segment: int | None) -> SizeRange:
        """Return the range of a need whose ``nbytes`` is None or the least of a range; arguments and errors as `choose`.

        The segment is the longest message's, because the shortest message is often not longer than a segment.
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
