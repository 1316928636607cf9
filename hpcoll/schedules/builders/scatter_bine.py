"""Bine scatter: as the binomial one, with distances a third shorter; a subtree's ranks are on both sides of its top.

    round   0              1                       2                                       (8 ranks, root 0)
            0 -> 2..5      0 -> 6,7   3 -> 4,5     0 -> 1   3 -> 2   7 -> 6   4 -> 5

Source: De Sensi et al., arXiv 2508.17311.
"""

from hpcoll.schedules.builders.scatter_binomial import scatter
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import bine, bine_span


def scatter_bine(w: Writer) -> None:
    """Write q rounds at most; every block moves once per tree edge on its way."""
    scatter(w, bine(w.vrank, w.nranks, 0), bine_span)
