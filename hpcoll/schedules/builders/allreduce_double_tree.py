"""Double-tree allreduce: half the message is reduced and broadcast over one tree, half over its mirror image.

4 ranks, two chunks in two channels:

    channel 0    0        up     1 -> 2, 3 -> 2    2 -> 0         channel 1       3    up     2 -> 1, 0 -> 1    1 -> 3
                  \\       down   0 -> 2            2 -> 1, 3                     /     down   3 -> 1            1 -> 2, 0
                   2                                                            1
                  / \\                                                          / \\
                 1   3                                                        0   2

Inner ranks of one tree are leaves of the other, so both trees together load every rank alike.

Source: Sanders, Speck and Traeff, Parallel Computing 2009; the mirrored numbering is NCCL's.
"""

from hpcoll.schedules.builders.bcast_tree import distribute
from hpcoll.schedules.builders.reduce_tree import combine
from hpcoll.schedules.ir import Writer, outputs
from hpcoll.schedules.patterns import double_binary_tree


def allreduce_double_tree(w: Writer) -> None:
    """Write 2q rounds of m/2 in two channels; in rank order in both."""
    for chunk, node in enumerate(double_binary_tree.mirrored(w.rank, w.nranks)):
        w.channel(chunk)
        combine(w, node, chunk, into=outputs(chunk))
        distribute(w, node, chunk)
