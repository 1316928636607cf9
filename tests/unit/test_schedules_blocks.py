"""Flat schedules of the block collectives and of barrier: what their rows claim, and who sends to whom."""

import pytest

from hpcoll.analysis.prove import prove
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Op, Schedule, Step
from hpcoll.schedules.row import Algorithm, schedule

FLAT = [row for row in CATALOGUE.values() if not row.hierarchical]  # those: test_schedules_hierarchical
ROWS = [row for row in FLAT if COLLECTIVES[row.collective].blocks or row.collective == "barrier"]
NRANKS = (*range(2, 18), 23, 32, 33, 64)
PACKED = {  # the first message may have blocks of several ranks
    "alltoall/bruck",
    "gather/binomial",
    "gather/bine",
    "reduce_scatter/bine",
    "reduce_scatter/pat",
    "scatter/binomial",
    "scatter/bine",
}

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])


def some_roots(row: Algorithm, nranks: int) -> set[int]:
    return {0, 1, nranks // 2, nranks - 1} if COLLECTIVES[row.collective].rooted else {0}


def steps_of(key: str, nranks: int, rank: int = 0, root: int = 0, *ops: Op) -> list[Step]:
    steps = [step for channel in schedule(CATALOGUE[key], nranks, rank, root).channels for step in channel]
    return [step for step in steps if not ops or step.op in ops]


def all_schedules(key: str, nranks: int, root: int = 0) -> list[Schedule]:
    return [schedule(CATALOGUE[key], nranks, rank, root) for rank in range(nranks)]


# --- what rows claim


@every_row
def test_rounds_and_bytes_are_as_the_row_says(row: Algorithm) -> None:
    for nranks in NRANKS:
        for root in some_roots(row, nranks):
            proof = prove(row, nranks, root)
            assert proof.rounds == row.cost("rounds", nranks)
            nchunks = all_schedules(row.key, nranks, root)[0].nchunks
            if row.key == "alltoall/bruck" and nranks & (nranks - 1):
                # a bound: the formula is that of powers of two
                assert proof.chunks_sent / nchunks < row.cost("sent", nranks)
            else:
                assert proof.chunks_sent / nchunks == pytest.approx(row.cost("sent", nranks))


@every_row
def test_no_row_claims_less_than_the_lower_bounds(row: Algorithm) -> None:
    for nranks in NRANKS:
        assert row.cost("rounds", nranks) >= 1
        assert row.cost("critical", nranks) >= (nranks - 1) / nranks - 1e-12
        assert row.cost("critical", nranks) >= row.cost("sent", nranks) - 1e-12


@every_row
def test_order_is_claimed_where_it_is_kept(row: Algorithm) -> None:
    proven = all(prove(row, nranks).ordered for nranks in range(2, 10))
    if COLLECTIVES[row.collective].reduces:
        assert proven == row.ordered
    assert row.ordered == (row.key == "reduce_scatter/direct")


@pytest.mark.parametrize("row", [row for row in ROWS if row.key not in PACKED], ids=lambda row: row.key)
def test_the_first_message_is_sent_from_input(row: Algorithm) -> None:
    for nranks in (2, 3, 8, 13):
        for rank in range(nranks):
            sends = steps_of(row.key, nranks, rank, 0, Op.SEND)
            assert all(step.srcs[0].buffer == Buffer.INPUT for step in sends[:1])


# --- neighbours and volume


@pytest.mark.parametrize("key", ["allgather/ring", "reduce_scatter/ring"])
@pytest.mark.parametrize("nranks", [2, 3, 8, 13])
def test_rings_know_their_neighbours_only(key: str, nranks: int) -> None:
    for rank in range(nranks):
        sends = steps_of(key, nranks, rank, 0, Op.SEND)
        receives = steps_of(key, nranks, rank, 0, Op.RECV, Op.RECV_REDUCE)
        assert [step.peer for step in sends] == [(rank + 1) % nranks] * (nranks - 1)
        assert [step.peer for step in receives] == [(rank - 1) % nranks] * (nranks - 1)
        assert all(step.srcs[0].n == 1 for step in sends)


@pytest.mark.parametrize("key", ["allgather/circulant", "reduce_scatter/circulant"])
@pytest.mark.parametrize("nranks", NRANKS)
def test_circulants_send_two_runs_per_round_at_most(key: str, nranks: int) -> None:
    q = (nranks - 1).bit_length()
    for rank in range(nranks):
        peers = [step.peer for step in steps_of(key, nranks, rank, 0, Op.SEND)]
        assert len(set(peers)) == q
        assert max(map(peers.count, peers)) <= 2
        assert len(peers) <= (q + 1 if key.startswith("reduce_scatter") else 2 * q - 1)
        assert sum(step.srcs[0].n for step in steps_of(key, nranks, rank, 0, Op.SEND)) == nranks - 1


@pytest.mark.parametrize(
    "key", ["allgather/direct", "reduce_scatter/direct", "alltoall/direct", "alltoall/pairwise"]
)
@pytest.mark.parametrize("nranks", [2, 3, 8, 13])
def test_no_two_ranks_favour_the_same_peer(key: str, nranks: int) -> None:
    peers = [[step.peer for step in steps_of(key, nranks, rank, 0, Op.SEND)] for rank in range(nranks)]
    for t in range(nranks - 1):
        assert sorted(found[t] for found in peers) == list(range(nranks))


def blocks_between_nodes(key: str, nranks: int, per_node: int) -> int:
    found = all_schedules(key, nranks)
    sends = [(one.rank, step) for one in found for step in one.channels[0] if step.op == Op.SEND]
    return sum(step.srcs[0].n for rank, step in sends if rank // per_node != step.peer // per_node)


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize(("nranks", "per_node"), [(16, 3), (24, 4), (64, 6), (63, 8)])
def test_pat_and_bine_keep_most_blocks_on_the_node(collective: str, nranks: int, per_node: int) -> None:
    pat, bine, circulant = (
        blocks_between_nodes(f"{collective}/{name}", nranks, per_node)
        for name in ("pat", "bine", "circulant")
    )
    assert pat < 0.75 * circulant
    # the odd one exchanges blocks with ranks of all nodes
    assert bine < (0.9 if nranks % 2 == 0 else 1.1) * pat


# --- roots


@pytest.mark.parametrize("key", ["gather/direct", "scatter/direct"])
@pytest.mark.parametrize("nranks", [2, 3, 8, 13])
def test_direct_roots_start_on_their_right(key: str, nranks: int) -> None:
    for root in range(nranks):
        peers = [step.peer for step in steps_of(key, nranks, root, root, Op.SEND, Op.RECV)]
        assert peers == [(root + i) % nranks for i in range(1, nranks)]


# --- barrier


def test_barrier_sends_one_chunk_per_round() -> None:
    sends = steps_of("barrier/dissemination", 13, 5, 0, Op.SEND)
    assert [step.peer for step in sends] == [6, 7, 9, 0]
    assert all(step.srcs[0].n == 1 for step in sends)
