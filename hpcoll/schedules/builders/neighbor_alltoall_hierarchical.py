"""Hierarchical neighbor_alltoall: blocks from a node for another one are collected and leave it as one message.

On a node blocks go to their ranks directly. `hpcoll.schedules.patterns.bundles` says who collects and hands out what, and has a picture.

Source: Collom, Li and Bienz, arXiv 2308.13869.
"""

from collections.abc import Iterable, Sequence

from hpcoll.schedules.composition import cells
from hpcoll.schedules.ir import Chunk, Writer, inputs, outputs
from hpcoll.schedules.patterns.bundles import Block, Bundle, bundles


def neighbor_alltoall_hierarchical(w: Writer) -> None:
    """Write a round of collecting, one between the nodes with those on the node, and one of handing out. Equal blocks only."""
    exchange(w, once=False)


def exchange(w: Writer, *, once: bool) -> None:
    """Write the exchange; ``once``: all blocks that a rank sends are its block 0."""
    assert w.graph is not None
    leaving, arriving = (side[w.nodes[w.rank]] for side in bundles(w.graph, w.nodes, once))
    for bundle, run in _collected(w, leaving):
        w.send(bundle.receiver, run)
    _on_node(w, once=once)
    mine = [bundle for bundle in arriving if bundle.receiver == w.rank]
    held = _landed(w, mine)
    for rank in sorted({rank for bundle in mine for rank in bundle.taken} - {w.rank}):
        w.send(rank, _packed(w, [held[block] for bundle in mine for block in bundle.taken.get(rank, ())]))
    for receiver in sorted({bundle.receiver for bundle in arriving if w.rank in bundle.taken} - {w.rank}):
        taken = [
            bundle.taken[w.rank]
            for bundle in arriving
            if bundle.receiver == receiver and w.rank in bundle.taken
        ]
        _deliver(w, receiver, [places for blocks in taken for places in blocks.values()])


def _collected(w: Writer, leaving: Sequence[Bundle]) -> list[tuple[Bundle, Chunk]]:
    """Write what brings blocks to the senders of bundles, and return the bundles that this rank sends, with their blocks."""
    for sender in sorted({bundle.sender for bundle in leaving if w.rank in bundle.given} - {w.rank}):
        w.send(
            sender,
            _packed(
                w,
                [
                    inputs(i)
                    for bundle in leaving
                    if bundle.sender == sender
                    for _, i in bundle.given.get(w.rank, ())
                ],
            ),
        )
    mine = [bundle for bundle in leaving if bundle.sender == w.rank]
    givers = sorted({rank for bundle in mine for rank in bundle.given})
    held: dict[tuple[int, Block], Chunk] = {}  # by receiver and block
    for rank in givers:
        blocks = [(bundle.receiver, block) for bundle in mine for block in bundle.given.get(rank, ())]
        run = [inputs(i) for _, (_, i) in blocks]
        if rank != w.rank:
            landed = _scratch(w, len(blocks))
            w.recv(rank, landed)
            run = cells(landed)
        elif len(givers) > 1 and len(mine) == 1:
            run = cells(_copied(w, run))
        held.update(zip(blocks, run, strict=True))
    return [
        (bundle, _packed(w, [held[bundle.receiver, block] for block in bundle.blocks])) for bundle in mine
    ]


def _on_node(w: Writer, *, once: bool) -> None:
    """Write the exchange with other ranks of the node, and with itself."""
    assert w.graph is not None
    for peer, blocks in w.graph.sent(w.rank).items():
        if peer != w.rank and w.nodes[peer] == w.nodes[w.rank]:
            w.send(peer, inputs(0) if once else _packed(w, [inputs(i) for i in blocks]))
    for peer, places in w.graph.received(w.rank).items():
        if peer == w.rank:
            for source, target in zip(
                [0] * len(places) if once else w.graph.sent(w.rank)[peer], places, strict=True
            ):
                w.copy(inputs(source), outputs(target))
        elif w.nodes[peer] == w.nodes[w.rank]:
            _deliver(w, peer, [places] if once else [[i] for i in places])


def _landed(w: Writer, mine: Iterable[Bundle]) -> dict[Block, Chunk]:
    """Write the receives of bundles, and of their blocks that this rank keeps; return the blocks of those that others get some of."""
    held: dict[Block, Chunk] = {}
    for bundle in mine:
        if list(bundle.taken) == [w.rank]:
            _deliver(w, bundle.sender, list(bundle.taken[w.rank].values()))
            continue
        landed = _scratch(w, len(bundle.blocks))
        w.recv(bundle.sender, landed)
        held.update(zip(bundle.blocks, cells(landed), strict=True))
        for block, places in bundle.taken.get(w.rank, {}).items():
            for place in places:
                w.copy(held[block], outputs(place))
    return held


def _packed(w: Writer, chunks: Sequence[Chunk]) -> Chunk:
    """Return chunks as a run, copied unless they are one."""
    run = chunks[0]._replace(n=len(chunks))
    return run if cells(run) == chunks else _copied(w, chunks)


def _scratch(w: Writer, nblocks: int) -> Chunk:
    return w.scratch(*[(w.rank, 0)] * nblocks)


def _copied(w: Writer, chunks: Sequence[Chunk]) -> Chunk:
    run = _scratch(w, len(chunks))
    for source, target in zip(chunks, cells(run), strict=True):
        w.copy(source, target)
    return run


def _deliver(w: Writer, source: int, places: Sequence[Sequence[int]]) -> None:
    """Write the receive of a message, and the copies of its blocks to all their places."""
    run = outputs(places[0][0], len(places))
    if [outputs(first) for first, *_ in places] == cells(run):
        others: Sequence[Sequence[int]] = [others for _, *others in places]
    else:
        run, others = _scratch(w, len(places)), places
    w.recv(source, run)
    for chunk, targets in zip(cells(run), others, strict=True):
        for target in targets:
            w.copy(chunk, outputs(target))
