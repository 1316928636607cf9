"""Bine reduce: as the binomial one, with distances a third shorter.

    round   0                                      1                    2            (8 ranks, root 0)
            1 -> 0   2 -> 3   6 -> 7   5 -> 4      7 -> 0   4 -> 3      3 -> 0

Source: De Sensi et al., arXiv 2508.17311.
"""

from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import bine


def reduce_bine(w: Writer) -> None:
    """Write q rounds of m at most; the root receives q times. Commutative operators."""
    combine(w, bine(w.rank, w.nranks, w.root))
