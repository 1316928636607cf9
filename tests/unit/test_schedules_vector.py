"""Flat schedules of allreduce, bcast, reduce, scan and exscan: proven for small nranks, and as good as their catalogue rows say."""

from collections.abc import Iterator
from functools import cache
from math import ceil, log2

import pytest

import hpcoll
from hpcoll.analysis.verify import Proof, verify_schedules
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.ir import Buffer, Op, Schedule
from hpcoll.schedules.row import Algorithm, schedule

FLAT = [row for row in CATALOGUE.values() if not row.hierarchical]  # those: test_schedules_hierarchical
ROWS = [row for row in FLAT if row.collective in ("allreduce", "bcast", "reduce", "scan", "exscan")]
NRANKS = range(2, 18)
# Rows whose `rounds` is an upper bound: a guest's partial result need not pass through the longest chain; a root's blocks
# follow one another without depending on each other; a root among the last ranks is one round further from the first.
UPPER_BOUND = {
    "allreduce/recursive_doubling",
    "allreduce/recursive_multiplying",
    "bcast/circulant",
    "reduce/circulant",
    "reduce/binomial",
}

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])


@cache
def schedules(key: str, nranks: int, root: int = 0, nchunks: int = 1) -> tuple[Schedule, ...]:
    return tuple(schedule(CATALOGUE[key], nranks, rank, root, nchunks) for rank in range(nranks))


@cache
def proof(key: str, nranks: int, root: int, nchunks: int, in_place: bool) -> Proof:
    return verify_schedules(schedules(key, nranks, root, nchunks), in_place=in_place)


def chunk_counts(row: Algorithm) -> tuple[int, ...]:
    return (1, 2, 3, 5, 8) if row.chunked else (1,)


def proofs(row: Algorithm) -> Iterator[tuple[int, int, Proof]]:
    """Proofs for small nranks, some roots, all chunk counts, in place and not: ``(nranks, nchunks, proof)``."""
    collective = COLLECTIVES[row.collective]
    for nranks in (1, *NRANKS):
        roots = {0, 1 % nranks, nranks // 2, nranks - 1} if collective.rooted else {0}
        for root in roots:
            for nchunks in chunk_counts(row):
                for in_place in (True,) if collective.always_in_place else (False, True):
                    yield nranks, nchunks, proof(row.key, nranks, root, nchunks, in_place)


@every_row
def test_claims_of_order_and_reproducibility(row: Algorithm) -> None:
    """``ordered`` means all nranks and roots; a row that does not claim it fails to keep order somewhere."""
    found = [proof for _, _, proof in proofs(row)]
    assert all(proof.reproducible for proof in found) == row.reproducible
    if COLLECTIVES[row.collective].reduces:
        assert all(proof.ordered for proof in found) == row.ordered


@every_row
def test_rounds_and_bytes_are_as_the_catalogue_says(row: Algorithm) -> None:
    for nranks in NRANKS:
        for nchunks in chunk_counts(row):
            found = proof(row.key, nranks, 0, nchunks, True)
            sent = found.chunks_sent / schedules(row.key, nranks, 0, nchunks)[0].nchunks
            assert sent == pytest.approx(row.cost("sent", nranks, nchunks)), nranks
            if row.key in UPPER_BOUND:
                assert found.rounds <= row.cost("rounds", nranks, nchunks), nranks
            else:
                assert found.rounds == row.cost("rounds", nranks, nchunks), nranks


@every_row
def test_no_root_needs_more_than_the_catalogue_says(row: Algorithm) -> None:
    for nranks, nchunks, found in proofs(row):
        if nranks > 1:
            nchunks_cut = schedules(row.key, nranks, 0, nchunks)[0].nchunks
            assert found.rounds <= row.cost("rounds", nranks, nchunks)
            assert found.chunks_sent / nchunks_cut <= row.cost("sent", nranks, nchunks) + 1e-9


def chunks_moved(one: Schedule, *ops: Op) -> int:
    """Chunks that a rank's steps of these kinds send or receive."""
    steps = [step for channel in one.channels for step in channel if step.op in ops]
    return sum((step.dst or step.srcs[0]).n for step in steps)


@every_row
def test_first_send_comes_from_input(row: Algorithm) -> None:
    """Out-of-place calls begin without a copy: what a rank sends before it has received anything lies in INPUT."""
    if row.collective == "bcast" or row.key == "allreduce/swing":  # one buffer; packed
        return
    for one in schedules(row.key, 13):
        for channel in one.channels:
            for step in channel:
                if step.op in (Op.RECV, Op.RECV_REDUCE):
                    break
                if step.op == Op.SEND:
                    assert step.srcs[0].buffer == Buffer.INPUT


@pytest.mark.parametrize("nranks", [*NRANKS, 31, 32, 33, 48, 100])
def test_circulant_moves_the_bytes_of_the_ring_in_fewest_rounds(nranks: int) -> None:
    circulant = proof("allreduce/circulant", nranks, 0, 1, False)
    assert circulant.chunks_sent == 2 * (nranks - 1)
    assert circulant.rounds == 2 * ceil(log2(nranks))
    for one in schedules("allreduce/circulant", nranks):
        sends = [step for step in one.channels[0] if step.op == Op.SEND]
        assert len(sends) <= 2 * circulant.rounds


@pytest.mark.parametrize("key", ["bcast/double_tree", "reduce/double_tree", "allreduce/double_tree"])
@pytest.mark.parametrize("nranks", [5, 8, 16, 17])
def test_double_trees_share_the_load(key: str, nranks: int) -> None:
    """Nobody sends more than the message once down and once up, nor receives more."""
    limit = 4 if key.startswith("allreduce") else 2  # half messages
    for one in schedules(key, nranks):
        assert chunks_moved(one, Op.SEND) <= limit
        assert chunks_moved(one, Op.RECV, Op.RECV_REDUCE) <= limit


@pytest.mark.parametrize("nranks", [64, 100, pytest.param(255, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row.name not in ("ring", "direct", "two_shot", "chain")],
    ids=lambda row: row.key,
)
def test_many_ranks(row: Algorithm, nranks: int) -> None:
    root = nranks // 3 if COLLECTIVES[row.collective].rooted else 0
    found = proof(row.key, nranks, root, 4 if row.chunked else 1, True)
    assert found.rounds <= row.cost("rounds", nranks, 4 if row.chunked else 1)


@pytest.mark.parametrize("row", [row for row in CATALOGUE.values() if row.one_fold], ids=lambda row: row.key)
@pytest.mark.parametrize("nranks", [2, 3, 5, 8])
def test_one_fold_means_that_nothing_is_folded_twice(row: Algorithm, nranks: int) -> None:
    for rank in range(nranks):
        (steps,) = schedule(row, nranks, rank).channels
        folds = [step for step in steps if step.op in (Op.REDUCE, Op.RECV_REDUCE)]
        wanted = {"scan": rank + 1, "exscan": rank}.get(row.collective, nranks)
        assert all(step.op == Op.REDUCE and len(step.srcs) == wanted for step in folds)
        folded = {step.dst for step in folds}
        assert len(folded) == len(folds)
        for step in steps[: steps.index(folds[0]) if folds else len(steps)]:
            assert step.op == Op.RECV or step.srcs[0].buffer == Buffer.INPUT, (
                "hands out what others have combined"
            )
        assert all(src.buffer != Buffer.OUTPUT for step in folds for src in step.srcs)


def test_algorithms_of_forms() -> None:
    assert hpcoll.algorithms("alltoallv") == ("pairwise", "direct")  # the others need equal blocks
    for form, collective in (
        ("allgatherv", "allgather"),
        ("gatherv", "gather"),
        ("reduce_scatter_block", "reduce_scatter"),
    ):
        assert hpcoll.algorithms(form) == hpcoll.algorithms(collective)
    with pytest.raises(hpcoll.ArgumentError, match="collective must be one of"):
        hpcoll.algorithms("bcastv")
