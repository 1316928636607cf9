"""Direct (one-shot) allreduce: every rank sends its message to all others, and folds all of them in rank order.

    round 0: 0 -> 1 2 3    1 -> 2 3 0    2 -> 3 0 1    3 -> 0 1 2        then each rank: a op b op c op d

Source: classic; one-shot kernels of vLLM and TensorRT-LLM.
"""

from hpcoll.schedules.builders.reduce_direct import fold
from hpcoll.schedules.ir import Writer, inputs, outputs


def allreduce_direct(w: Writer) -> None:
    """Write one round with (p-1) m sent; all ranks compute the same bits."""
    p, r = w.nranks, w.rank
    for t in range(1, p):
        w.send((r + t) % p, inputs(0))
    fold(w, ((r - t) % p for t in range(1, p)), inputs(0), outputs(0))
