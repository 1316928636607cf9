"""Direct reduce_scatter: every rank receives its block from all others and folds all in one reduction, in rank order.

    rank 1 of 4:  a1 b1 c1 d1  ->  output = a1 op b1 op c1 op d1

Source: classic (linear reduce_scatter); the second half of "two-shot" allreduce, reversed.
"""

from hpcoll.schedules.ir import Writer, cell, inputs, outputs


def reduce_scatter_direct(w: Writer) -> None:
    """Write one round of p-1 messages of one block. Any operator."""
    p, r = w.nranks, w.rank
    received = w.scratch(*[r] * (p - 1))
    for t in range(1, p):
        w.send((r + t) % p, inputs((r + t) % p))
    blocks = [cell(received, peer - (peer > r)) if peer != r else inputs(r) for peer in range(p)]
    for t in range(1, p):
        w.recv((r - t) % p, blocks[(r - t) % p])
    w.reduce(*blocks, dst=outputs(0))
