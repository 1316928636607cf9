"""Every row of the catalogue, proven: 1 to 64 ranks with every root, and some larger numbers of ranks."""

from __future__ import annotations

import pytest

from hpcoll.algorithm import schedule
from hpcoll.catalogue import CATALOGUE
from hpcoll.collectives import COLLECTIVES
from hpcoll.sweep import MANY_CHUNKS, NCHUNKS, Summary, prove_catalogue

# Rows with over a million steps at 1000 ranks: minutes and gigabytes together. Here they are proven up to 255 ranks;
# `prove_catalogue(0, extra=(1000,))` proves them too, in two to three minutes and 3 GB per process on two cores.
NOT_AT_1000 = {
    "allreduce/ring", "allreduce/direct", "allreduce/two_shot", "allgather/ring", "allgather/direct", "reduce_scatter/ring",
    "reduce_scatter/direct", "alltoall/pairwise", "alltoall/bruck", "alltoall/direct",
}  # fmt: skip


def check_claims(summaries: list[Summary]) -> None:
    for summary in summaries:
        row = CATALOGUE[summary.key]
        assert summary.ordered >= row.ordered, summary.key
        assert summary.reproducible >= row.reproducible, summary.key


@pytest.mark.timeout(600)
def test_every_row_for_1_to_64_ranks_and_every_root() -> None:
    summaries = prove_catalogue(64, extra=())
    assert [summary.key for summary in summaries] == list(CATALOGUE)
    for summary in summaries:
        row = CATALOGUE[summary.key]
        roots = 64 * 65 // 2 if COLLECTIVES[row.collective].rooted else 64
        assert summary.instances == (roots * len(NCHUNKS) + 64 * len(MANY_CHUNKS) if row.chunked else roots), row.key
    check_claims(summaries)


@pytest.mark.timeout(600)
def test_every_row_for_some_numbers_of_ranks_up_to_255() -> None:
    summaries = prove_catalogue(0, extra=(100, 127, 128, 129, 255))
    assert [summary.key for summary in summaries] == list(CATALOGUE)
    assert min(summary.instances for summary in summaries) == 5
    check_claims(summaries)


@pytest.mark.timeout(600)
def test_rows_of_at_most_a_million_steps_for_1000_ranks() -> None:
    def steps(key: str) -> int:
        return 1000 * max(sum(map(len, schedule(CATALOGUE[key], 1000, rank).channels)) for rank in (1, 500))

    assert {key for key in CATALOGUE if steps(key) > 1_000_000} == NOT_AT_1000
    summaries = prove_catalogue(0, extra=(1000,), rows=[row for key, row in CATALOGUE.items() if key not in NOT_AT_1000])
    assert len(summaries) == len(CATALOGUE) - len(NOT_AT_1000)
    assert all(summary.instances for summary in summaries)
    check_claims(summaries)
