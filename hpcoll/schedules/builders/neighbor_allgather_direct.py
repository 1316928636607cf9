"""Direct neighbor_allgather: a message to every neighbour, one also to a rank that is a neighbour twice, which copies the block."""

from hpcoll.schedules.ir import Writer, inputs, outputs


def neighbor_allgather_direct(w: Writer) -> None:
    """Write one round of a message per neighbour."""
    assert w.graph is not None
    sent, received = w.graph.sent(w.rank), w.graph.received(w.rank)
    for peer in sent:
        if peer != w.rank:
            w.send(peer, inputs(0))
    for block in received.pop(w.rank, ()):
        w.copy(inputs(0), outputs(block))
    for peer, (first, *others) in received.items():
        w.recv(peer, outputs(first))
        for block in others:
            w.copy(outputs(first), outputs(block))
