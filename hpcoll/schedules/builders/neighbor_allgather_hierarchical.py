"""Hierarchical neighbor_allgather: a block goes to another node once, however many of its ranks want it.

Source: Collom, Li and Bienz, arXiv 2308.13869.
"""

from hpcoll.schedules.builders.neighbor_alltoall_hierarchical import exchange
from hpcoll.schedules.ir import Writer


def neighbor_allgather_hierarchical(w: Writer) -> None:
    """Write a round of collecting, one between the nodes with those on the node, and one of handing out. Equal blocks only."""
    exchange(w, once=True)
