"""Double-tree broadcast: half the message down each of two binary trees below the root; inner ranks of one are leaves of the other.

8 ranks, root 0:

    channel 0, chunk 0:    0 -> 4       4 -> 2, 6        2 -> 1, 3    6 -> 5, 7
    channel 1, chunk 1:    0 -> 5       5 -> 3, 7        3 -> 2, 4    7 -> 6, 1
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns import double_binary_tree


def bcast_double_tree(w: Writer) -> None:
    """Write q rounds of m/2 in two channels; no rank sends more than m."""
    for chunk, node in enumerate(double_binary_tree.rooted(w.rank, w.nranks, w.root)):
        w.channel(chunk)
        distribute(w, node, chunk)
