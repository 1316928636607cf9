"""Recursive multiplying allreduce: recursive doubling with groups of four ranks, who send their partial results to each other at once.

8 ranks, a..h their contributions; 2 x 4 makes one round of pairs and one of fours:

    start      round 0     round 1                       messages of round 1
    0: a       ab          abcdefgh                      0 <-> 2, 4, 6
    1: b       ab          abcdefgh                      1 <-> 3, 5, 7
    ...

For networks where a message takes long to arrive and little to post: three sends leave one after another and travel together.

Source: Ruefenacht, Bull and Booth, Parallel Computing 2017; Trivance (arXiv 2602.17254) has rounds of three, with the nearest ranks.
"""

from hpcoll.schedules.builders.allreduce_recursive_doubling import exchange
from hpcoll.schedules.ir import Writer


def allreduce_recursive_multiplying(w: Writer) -> None:
    """Write half as many rounds of m as recursive doubling, with up to three messages in each; keeps rank order."""
    exchange(w, 2)
