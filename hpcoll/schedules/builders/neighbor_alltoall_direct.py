"""Direct neighbor_alltoall: every block moves once, to all neighbours at the same time.

Of several blocks for one neighbour as many are under way as may wait to be used.
"""

from hpcoll.schedules.ir import RING_SLOTS, Writer, inputs, outputs


def neighbor_alltoall_direct(w: Writer) -> None:
    """Write one round of a message per edge, more where ranks have many edges between them."""
    assert w.graph is not None
    sent, received = w.graph.sent(w.rank), w.graph.received(w.rank)
    for source, target in zip(sent.pop(w.rank, ()), received.pop(w.rank, ()), strict=True):
        w.copy(inputs(source), outputs(target))
    most = max([0, *map(len, sent.values()), *map(len, received.values())])
    for first in range(0, most, RING_SLOTS):
        turn = slice(first, first + RING_SLOTS)
        for peer, blocks in sent.items():
            for block in blocks[turn]:
                w.send(peer, inputs(block))
        for peer, blocks in received.items():
            for block in blocks[turn]:
                w.recv(peer, outputs(block))
