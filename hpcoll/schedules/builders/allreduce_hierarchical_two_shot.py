"""Hierarchical two-shot allreduce: every rank of a node takes part in a two-shot allreduce of a stripe of the message between the nodes.

2 nodes of 2 ranks, a..d their contributions, 2 stripes of 2 chunks:

    start             folded on the node    shot 1 between nodes    shot 2                spread on the node
    0: a  a  a  a     ab ab .  .            abcd .    .    .        abcd abcd .    .      abcd abcd abcd abcd
    1: b  b  b  b     .  .  ab ab           .    .    abcd .        .    .    abcd abcd   the same
    2: c  c  c  c     cd cd .  .            .    abcd .    .        abcd abcd .    .
    3: d  d  d  d     .  .  cd cd           .    .    .    abcd     .    .    abcd abcd

Of nodes that are aligned blocks of ranks the result is the canonical expression (`hpcoll.base.canonical`).

Source: Traeff and Hunold, arXiv 1910.13373 (full-lane collectives), with two-shot on the node and between nodes.
"""

from hpcoll.schedules.builders.allreduce_hierarchical import in_stripes
from hpcoll.schedules.ir import Writer


def allreduce_hierarchical_two_shot(w: Writer) -> None:
    """Write 2 rounds on the node and 2 of h-1 messages between the nodes. Commutative operators."""
    in_stripes(w, "allreduce/two_shot")
