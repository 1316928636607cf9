"""Bine broadcast: as the binomial one, with distances a third shorter.

    round   0          1                    2                            (8 ranks, root 0)
            0 -> 3     0 -> 7   3 -> 4      0 -> 1   3 -> 2   7 -> 6   4 -> 5

Source: De Sensi et al., arXiv 2508.17311.
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import bine


def bcast_bine(w: Writer) -> None:
    """Write q rounds of m at most; the root sends it q times."""
    distribute(w, bine(w.rank, w.nranks, w.root))
