"""Allreduce by one rank of each GPU: it reads a chunk of all ranks' inputs and writes the result to all outputs.

4 ranks on 2 GPUs, 0 and 1 on the first, 2 and 3 on the second; a..d their contributions:

    start      reads and folds        writes
    0: a a     0 reads chunk 0        0: abcd abcd
    1: b b     of all ranks           1: abcd abcd
    2: c c     2 reads chunk 1        2: abcd abcd
    3: d d     of all ranks           3: abcd abcd

Ranks that share a GPU take turns on it, and a turn costs more than a kernel: here one rank uses each GPU, whatever the number of ranks.

Source: two-shot allreduce of one rank per GPU; NCCL lets no two ranks share a GPU.
"""

from hpcoll.schedules.builders.allreduce_two_shot import combine_at
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.placement import members


def allreduce_gpu_leaders(w: Writer) -> None:
    """Write two rounds as in the two-shot allreduce, with one owner per GPU; ranks of a GPU are a node in ``w.nodes``."""
    combine_at(w, [ranks[0] for ranks in members(w.nodes)])
