"""Schedules made of schedules: where a flat algorithm's chunks, scratch, ranks and channels are in the whole; what a node's ranks share."""

import random
from collections.abc import Sequence
from itertools import accumulate

import pytest
from handmade import made

from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.composition import Node, Where, always, cells, compose, joined
from hpcoll.schedules.ir import RING_SLOTS, Buffer, Chunk, Op, Step, Writer, cell, inputs, outputs
from hpcoll.schedules.placement import members, numbered, parse_nodes
from hpcoll.schedules.row import schedule

FLAT = {key: row for key, row in CATALOGUE.items() if not row.hierarchical}


def writer(rank: int, nranks: int = 8, nchunks: int = 8, nodes: str = "1") -> Writer:
    return Writer(nranks, rank, 0, nchunks, parse_nodes(nodes, nranks))


def texts(w: Writer, channel: int = 0) -> list[str]:
    return [str(step) for step in w.channels[channel]]


# --- compose


def test_ranks_and_chunks_are_those_of_the_whole() -> None:
    """A ring of three ranks of eight on three chunks of eight."""
    w = writer(1)
    compose(w, "allreduce/ring", [5, 1, 6], [[2], [3], [7]], inputs, outputs)
    assert texts(w) == [
        "send(peer 6, input[2])",
        "recv_reduce(peer 5, input[7] -> output[7])",
        "send(peer 6, output[7])",
        "recv_reduce(peer 5, input[3] -> output[3])",
        "send(peer 6, output[3])",
        "recv(peer 5 -> output[2])",
        "send(peer 6, output[2])",
        "recv(peer 5 -> output[7])",
    ]
    flat = schedule(CATALOGUE["allreduce/ring"], 3, 1)
    assert [step.op for step in w.channels[0]] == [step.op for step in flat.channels[0]]


def test_a_run_is_one_message_where_it_is_contiguous_and_several_where_not() -> None:
    def sends(chunks: Sequence[Sequence[int]]) -> list[Chunk]:
        found: list[Chunk] = []
        for rank in range(4):
            w = writer(rank)
            compose(w, "allreduce/circulant", [0, 1, 2, 3], chunks, inputs, outputs)
            found += [step.srcs[0] for step in w.channels[0] if step.op == Op.SEND]
        return found

    whole = sends([[0], [1], [2], [3]])
    assert {run.n for run in whole} == {1, 2}
    assert sends([[0, 1], [2, 3], [4, 5], [6, 7]]) == [
        Chunk(run.buffer, 2 * run.index, 2 * run.n) for run in whole
    ]
    singly = [cell(run, i) for run in whole for i in range(run.n)]
    assert sends([[0], [2], [4], [6]]) == [Chunk(one.buffer, 2 * one.index) for one in singly]
    assert len(whole) < len(sends([[0], [1], [5], [6]])) < len(singly)


def test_every_operand_has_its_gaps() -> None:
    """What is contiguous in the source and not in the target moves in pieces, and the other way round."""
    for source, target in (
        (inputs, lambda index: outputs(2 * index)),
        (lambda index: inputs(2 * index), outputs),
    ):
        w = writer(3)
        compose(w, "allreduce/two_shot", [3, 4], [[0, 1], [2, 3]], source, target)
        (fold,) = {(step.op, step.dst.n) for step in w.channels[0] if step.op == Op.REDUCE and step.dst}
        assert fold[1] == 1
        assert sum(step.op == Op.REDUCE for step in w.channels[0]) == 2


def test_scratch_is_as_large_as_the_chunks_it_stands_for_and_only_what_the_channel_uses() -> None:
    w = writer(2)
    w.scratch(0)
    compose(w, "allreduce/two_shot", [0, 1, 2, 3, 4], [[1], [3], [4, 5], [6], [7]], inputs, outputs)
    assert w.extents == [0, *(4 * [4, 5])], "what it has to fold of four others"
    touched = {
        (run.index, run.n)
        for step in w.channels[0]
        for run in (step.dst, *step.srcs)
        if run and run.buffer == Buffer.SCRATCH
    }
    assert touched == {(1, 2), (3, 2), (5, 2), (7, 2)}
    inner = {rank: schedule(CATALOGUE["reduce/double_tree"], 8, rank).scratch for rank in range(8)}
    for channel, rank in ((channel, rank) for channel in (0, 1) for rank in inner):
        w = writer(rank)
        w.channel(channel)
        compose(w, "reduce/double_tree", range(8), [[4], [5]], inputs, outputs, channel=channel)
        assert w.extents == [4 + channel] * inner[rank].count(channel)
    assert len({scratch.count(0) for scratch in inner.values()}) > 1, (
        "some ranks have children in a tree, some do not"
    )


def test_channels_come_one_by_one() -> None:
    """Both trees of a double tree, each into a channel of its own; a channel that the flat algorithm lacks is empty."""
    flat = schedule(CATALOGUE["bcast/double_tree"], 5, 3)
    w = writer(6)
    for channel in (0, 1, 2):
        w.channel(channel)
        compose(w, "bcast/double_tree", [0, 2, 4, 6, 7], [[0], [1]], outputs, outputs, channel=channel)
    moved = [
        [str(step._replace(peer=[0, 2, 4, 6, 7][step.peer])) for step in steps] for steps in flat.channels
    ]
    assert [texts(w, channel) for channel in (0, 1, 2)] == [*moved, []]
    assert moved[0] != moved[1]


def test_the_root_is_an_index() -> None:
    w = writer(7)
    compose(w, "bcast/direct", [3, 5, 7], [[4]], outputs, outputs, root=1)
    assert texts(w) == ["recv(peer 5 -> output[4])"]


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


def test_copies_onto_itself_are_left_out() -> None:
    for target, copies in ((outputs, 0), (lambda index: outputs(index + 1), 1)):
        w = writer(1)
        compose(w, "allgather/ring", [0, 1, 2], [[0], [1], [2]], outputs, target)
        assert sum(step.op == Op.COPY for step in w.channels[0]) == copies


def test_chunks_must_be_as_many_as_the_flat_algorithm_has() -> None:
    with pytest.raises(AssertionError):
        compose(writer(0), "allreduce/ring", [0, 1, 2], [[0], [1]], inputs, outputs)


def test_what_is_contiguous_on_one_rank_only_is_refused_by_the_verifier() -> None:
    """One end of a message sees one run, the other one two."""

    def build(w: Writer, sender: list[int], receiver: list[int]) -> None:
        parts = sender if w.rank == 0 else receiver
        compose(w, "bcast/direct", [0, 1], [[0, 1]], lambda i: outputs(parts[i]), lambda i: outputs(parts[i]))

    right = made("bcast", lambda w: build(w, [0, 1], [0, 1]), nchunks=2)
    assert verify_schedules(right, in_place=True).messages == 1
    for sender, receiver in (([0, 1], [1, 0]), ([1, 0], [0, 1])):
        with pytest.raises(ScheduleError, match=r"expects sizes of|must hold|deadlock"):
            verify_schedules(
                made("bcast", lambda w, ends=(sender, receiver): build(w, *ends), nchunks=2), in_place=True
            )


def test_operands_keep_their_order() -> None:
    """A step whose peer's ranks are the lower ones stays one."""
    found: list[Step] = []
    for rank in range(4):
        w = writer(rank)
        compose(w, "reduce/tree", [3, 2, 1, 0], [[0]], inputs, outputs)
        found += w.channels[0]
    assert {step.received_first for step in found if step.op == Op.RECV_REDUCE} == {False, True}


def test_small_helpers() -> None:
    run = Chunk(Buffer.SCRATCH, 3, 3)
    assert cells(run) == [cell(run, i) for i in range(3)]
    assert joined(dict(zip("abc", cells(run)))) == run
    assert always(run)(17) == run


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


def test_packed_blocks_follow_one_another() -> None:
    w = writer(0, nodes="3+5")
    node = Node(w)
    found = node.packed(1)
    assert list(found) == node.stripe_blocks(1) == [1, 4, 7]
    assert joined(found) == Chunk(Buffer.SCRATCH, 0, 3)
    assert w.extents == [1, 4, 7]


def test_no_two_ranks_of_a_node_favour_the_same_peer() -> None:
    placement = numbered("abbabbab")
    for ranks in members(placement):
        orders = [Node(Writer(8, rank, 0, 8, placement)).others(ranks) for rank in ranks]
        assert all(len({order[turn] for order in orders}) == len(ranks) for turn in range(len(ranks) - 1))


def test_an_exchange_takes_turns() -> None:
    """A message with each peer, then the next: no peer gets its second before all have had their first."""
    written = []
    for rank in range(3):
        w = writer(rank, nranks=3, nodes="3")
        node = Node(w)
        node.exchange(
            lambda peer: [inputs(2 * peer), inputs(2 * peer + 1)][: 1 + (peer == 1)],
            lambda peer, me=rank: 1 + (me == 1),
            lambda peer, turn, w=w: w.recv(peer, outputs(2 * peer + turn)),
        )
        written.append(texts(w))
    assert written[0] == [
        "send(peer 1, input[2])",
        "send(peer 2, input[4])",
        "recv(peer 2 -> output[4])",
        "recv(peer 1 -> output[2])",
        "send(peer 1, input[3])",
    ]
    assert written[1][-2:] == ["recv(peer 0 -> output[1])", "recv(peer 2 -> output[5])"]
    assert written[2][-1] == "send(peer 1, input[3])"


def test_a_fold_of_a_node_keeps_rank_order_and_spread_leaves_one_out() -> None:
    w = writer(1, nranks=4, nodes="4")
    folded = Node(w).fold(lambda stripe: inputs(2 * stripe, 2), into=lambda run: outputs(run.index, run.n))
    assert folded == outputs(2, 2)
    assert w.channels[0][-1] == Step(
        Op.REDUCE,
        -1,
        outputs(2, 2),
        (Chunk(Buffer.SCRATCH, 0, 2), inputs(2, 2), Chunk(Buffer.SCRATCH, 4, 2), Chunk(Buffer.SCRATCH, 2, 2)),
    )
    assert w.extents == [2, 3] * 3
    w = writer(3, nranks=4, nodes="4")
    assert Node(w, nstripes=1).fold(lambda stripe: inputs(0), into=outputs) is None
    assert texts(w) == ["send(peer 0, input[0])"]
    w = writer(2, nranks=4, nodes="4")
    Node(w, nstripes=2).spread(lambda stripe: outputs(stripe), but=0)
    assert texts(w) == ["recv(peer 1 -> output[1])", "recv(peer 0 -> output[0])"]
    w = writer(1, nranks=4, nodes="4")
    Node(w, nstripes=2).spread(lambda stripe: outputs(stripe), but=0)
    assert texts(w) == ["send(peer 2, output[1])", "send(peer 3, output[1])", "recv(peer 0 -> output[0])"]
