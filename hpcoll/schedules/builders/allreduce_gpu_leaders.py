"""Allreduce by one rank of each GPU: it reads a chunk of everybody's input and writes it to everybody's output.

4 ranks on 2 GPUs, 0 and 1 on the first, 2 and 3 on the second; a..d their contributions:

    start      reads and folds        writes
    0: a a     0 reads chunk 0        0: abcd abcd
    1: b b     of all ranks           1: abcd abcd
    2: c c     2 reads chunk 1        2: abcd abcd
    3: d d     of all ranks           3: abcd abcd

Ranks that share a GPU take turns on it, and a turn costs more than a kernel: here each GPU has one, whatever the number of ranks.

Source: two-shot allreduce of one rank per GPU; NCCL lets no two ranks share a GPU.
"""

from hpcoll.schedules.builders.allreduce_two_shot import combine_at
from hpcoll.schedules.ir import Writer
from hpcoll.schedules.placement import members


def allreduce_gpu_leaders(w: Writer) -> None:
    """Two rounds as in the two-shot allreduce, with one owner per GPU; ``w.nodes`` says which ranks share one."""
    combine_at(w, [ranks[0] for ranks in members(w.nodes)])
