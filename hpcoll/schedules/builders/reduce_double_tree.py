"""Double-tree reduce: half the message up each of two binary trees below the root; inner ranks of one are leaves of the other.

8 ranks, root 0:

    channel 0, chunk 0:    1, 3 -> 2    5, 7 -> 6        2, 6 -> 4    4 -> 0
    channel 1, chunk 1:    2, 4 -> 3    6, 1 -> 7        3, 7 -> 5    5 -> 0
"""

from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns import double_binary_tree


def reduce_double_tree(w: Writer) -> None:
    """Write q rounds of m/2 in two channels; all ranks but the root send m. Commutative operators."""
    for chunk, node in enumerate(double_binary_tree.rooted(w.rank, w.nranks, w.root)):
        w.channel(chunk)
        combine(w, node, chunk)
