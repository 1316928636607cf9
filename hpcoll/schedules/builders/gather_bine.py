"""Bine gather: as the binomial one, with distances a third shorter; a subtree's ranks are on both sides of its top.

    round   0                                      1                        2            (8 ranks, root 0)
            1 -> 0   2 -> 3   6 -> 7   5 -> 4      6,7 -> 0   4,5 -> 3      2..5 -> 0

Source: De Sensi et al., arXiv 2508.17311.
"""

from hpcoll.schedules.builders.gather_binomial import gather
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import bine, bine_span


def gather_bine(w: Writer) -> None:
    """Write q rounds at most; every block moves once per tree edge on its way."""
    gather(w, bine(w.vrank, w.nranks, 0), bine_span)
