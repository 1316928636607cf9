"""Schedules made of schedules: where a flat algorithm's chunks, ranks and channels are in the whole; what a node's ranks share."""

import random
from itertools import accumulate

import pytest
from handmade import made

from hpcoll.analysis.verify import verify_schedules
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.composition import Node, Where, always, compose
from hpcoll.schedules.ir import RING_SLOTS, Writer, inputs, outputs
from hpcoll.schedules.placement import members, parse_nodes
from hpcoll.schedules.row import schedule

FLAT = {key: row for key, row in CATALOGUE.items() if not row.hierarchical}


def writer(rank: int, nranks: int = 8, nchunks: int = 8, nodes: str = "1") -> Writer:
    return Writer(nranks, rank, 0, nchunks, parse_nodes(nodes, nranks))


def texts(w: Writer, channel: int = 0) -> list[str]:
    return [str(step) for step in w.channels[channel]]


# --- compose


def test_one_rank_copies_what_is_elsewhere() -> None:
    w = writer(3)
    compose(
        w,
        "allreduce/circulant",
        [3],
        [[0], [2, 5]],
        inputs,
        lambda index: inputs(2) if index == 2 else outputs(index),
    )
    assert texts(w) == ["copy(input[0] -> output[0])", "copy(input[5] -> output[5])"]


def test_chunks_must_be_as_many_as_the_flat_algorithm_has() -> None:
    with pytest.raises(AssertionError):
        compose(writer(0), "allreduce/ring", [0, 1, 2], [[0], [1]], inputs, outputs)


# --- a flat algorithm among all ranks, renamed and on chunks that are several, is what it was

SOURCES: dict[str, tuple[Where, Where]] = {
    "allreduce": (inputs, outputs),
    "reduce": (inputs, outputs),
    "bcast": (outputs, outputs),
    "barrier": (inputs, outputs),
    "allgather": (always(inputs(0)), outputs),
    "reduce_scatter": (inputs, always(outputs(0))),
}
NO_LIMIT = 100  # of messages between nodes any number may be under way


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("key", [key for key, row in FLAT.items() if row.collective in SOURCES])
def test_a_flat_algorithm_among_renamed_ranks(key: str, apart: bool) -> None:
    """Chunks follow one another in memory, or are in any order: then messages are in pieces, which may be more than there are lines."""
    row, rng = CATALOGUE[key], random.Random(key)
    collective = COLLECTIVES[row.collective]
    for nranks in (2, 3, 5, 8, 11):
        ranks = rng.sample(range(nranks), nranks) if apart or not collective.blocks else list(range(nranks))
        root = rng.randrange(nranks) if collective.rooted else 0
        parts, nchunks = [[rank] for rank in ranks], nranks
        if not collective.blocks:
            sizes = [
                rng.choice((1, 1, 2, 3)) if row.collective != "barrier" else 1
                for _ in range(schedule(row, nranks, 0, 0, 3).nchunks)
            ]
            nchunks = sum(sizes)
            parts = [list(range(end - size, end)) for size, end in zip(sizes, accumulate(sizes))]
            if apart:
                rng.shuffle(parts)

        def build(w: Writer, ranks: list[int] = ranks, parts: list[list[int]] = parts) -> None:
            for channel in (0, 1):
                w.channel(channel)
                compose(
                    w, key, ranks, parts, *SOURCES[row.collective], root=ranks.index(w.root), channel=channel
                )

        proof = verify_schedules(
            made(row.collective, build, nranks=nranks, nchunks=nchunks, root=root),
            in_place=row.collective == "bcast",
            slots=NO_LIMIT if apart else RING_SLOTS,
        )
        assert proof.reproducible == row.reproducible
        assert proof.rounds <= row.cost("rounds", nranks, 3)


# --- nodes


@pytest.mark.parametrize("nodes", ["2", "3", "2:cyclic", "3+1+4", "1+5+2:cyclic", "8", "1"])
@pytest.mark.parametrize("rooted", [False, True])
def test_every_stripe_has_an_owner_on_every_node(nodes: str, rooted: bool) -> None:
    nranks, placement = 8, parse_nodes(nodes, 8)
    for root in range(nranks) if rooted else (0,):
        every = [Node(Writer(nranks, rank, root, 8, placement), rooted=rooted) for rank in range(nranks)]
        smallest, nnodes = min(map(len, members(placement))), max(placement) + 1
        for rank, node in enumerate(every):
            mates = members(placement)[placement[rank]]
            assert sorted(node.mates) == list(mates)
            assert node.mates[node.local] == rank
            assert node.mates == list(mates) if not rooted or root not in mates else node.mates[0] == root
            assert node.nstripes == smallest
            assert node.owner == (node.local < smallest)
            assert node.owners() == node.mates[:smallest]
            assert sorted(node.others(node.mates)) == sorted(set(mates) - {rank})
            assert node.root == placement[root]
        owners = [rank for rank, node in enumerate(every) if node.owner]
        assert len(owners) == smallest * nnodes
        for rank in owners:
            stripe = every[rank].stripe
            assert [placement[one] for one in stripe] == list(range(nnodes))
            assert all(every[one].stripe == stripe for one in stripe), "they agree"
        assert all(not node.stripe for node in every if not node.owner)
        assert not rooted or root in owners


@pytest.mark.parametrize("nodes", ["2", "3+1+4", "1+2+5:cyclic", "3:cyclic", "8", "1"])
def test_every_block_is_in_one_stripe(nodes: str) -> None:
    placement = parse_nodes(nodes, 8)
    every = [Node(writer(rank, nodes=nodes)) for rank in range(8)]
    for ranks in members(placement):
        stripes = [every[owner].stripe_blocks(owner) for owner in ranks[: every[0].nstripes]]
        assert sorted(block for stripe in stripes for block in stripe) == list(range(8))
        assert stripes == [every[ranks[-1]].stripe_blocks(owner) for owner in ranks[: every[0].nstripes]], (
            "its mates know, too"
        )
        for owner in ranks[: every[0].nstripes]:
            assert [owner, *every[owner].stripe_mates()] == [
                rank for rank in ranks if rank in every[owner].stripe_blocks(owner)
            ]
            assert all(every[rank].owner_of(rank) == owner for rank in every[owner].stripe_mates())
        assert all(
            every[rank].stripe_blocks(rank) == [] == every[rank].stripe_mates()
            for rank in ranks
            if not every[rank].owner
        )
