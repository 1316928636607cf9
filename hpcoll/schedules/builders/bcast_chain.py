"""Chain broadcast: the message runs down a line of ranks; segments follow one another.

4 ranks, root 1:    1 -> 2 -> 3 -> 0          segment 0    round 0  1  2
                                              segment 1           1  2  3    (of the whole message's rounds)
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.patterns.trees import chain


def bcast_chain(w: Writer) -> None:
    """Write p-1 rounds of m; no rank sends more than m, so many segments reach the full bandwidth of a link."""
    distribute(w, chain(w.rank, w.nranks, w.root))
