"""Every row of the catalogue, proven: 1 to 64 ranks with every root, and some larger numbers of ranks; fewer in the short run."""

from pathlib import Path

import pytest

from hpcoll.analysis.prove import MANY_CHUNKS, NCHUNKS, Summary, graphs, placements, prove_catalogue
from hpcoll.schedules import builders
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import Algorithm


def check_claims(summaries: list[Summary]) -> None:
    for summary in summaries:
        row = CATALOGUE[summary.key]
        assert summary.ordered >= row.ordered, summary.key
        assert summary.reproducible >= row.reproducible, summary.key


def instances(row: Algorithm, most: int) -> int:
    """Return how many combinations of root, chunks, placement and graph there are for 1 to so many ranks."""
    if COLLECTIVES[row.collective].neighbours:
        return sum(len(graphs(n)) * (len(placements(n)) if row.placed else 1) for n in range(1, most + 1))
    rooted = COLLECTIVES[row.collective].rooted
    roots = most * (most + 1) // 2 if rooted else most
    if row.placed:  # all roots for one placement, first and last one for the others, or just the first
        return roots + sum(
            (len(placements(n)) - 1) * (1 + (rooted and 1 < n <= 32)) for n in range(1, most + 1)
        )
    return roots * len(NCHUNKS) + most * len(MANY_CHUNKS) if row.chunked else roots


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("most", [12, pytest.param(64, marks=pytest.mark.full)])
def test_every_row_for_1_to_some_ranks_and_every_root(most: int) -> None:
    summaries = prove_catalogue(most, extra=())
    assert [summary.key for summary in summaries] == list(CATALOGUE)
    for summary in summaries:
        assert summary.instances == instances(CATALOGUE[summary.key], most), summary.key
    check_claims(summaries)


@pytest.mark.ci
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "nranks", [(33,), pytest.param((100, 127, 128, 129, 255), marks=pytest.mark.full)], ids=str
)
def test_every_row_for_some_numbers_of_ranks(nranks: tuple[int, ...]) -> None:
    summaries = prove_catalogue(0, extra=nranks)
    assert [summary.key for summary in summaries] == list(CATALOGUE)
    assert min(summary.instances for summary in summaries) == len(nranks)
    check_claims(summaries)


def test_every_builder_has_a_row() -> None:
    files = {path.stem for path in Path(builders.__file__).parent.glob("[a-z]*.py")}
    assert files == {row.build.__name__ for row in CATALOGUE.values()}
