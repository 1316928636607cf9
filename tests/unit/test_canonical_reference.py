"""The canonical expression on up to 64 ranks: lowered programs of every row that claims it, run without MPI by the reference engine.

Contributions are floating-point numbers of many sizes, so that sums in another order or with other brackets have other bits.
"""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from lowering_cases import Case, add_floats, in_place_modes
from lowering_play import Side, play
from reference_calls import Operator, Setting

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, parse_nodes
from hpcoll.schedules.row import Algorithm, unserved

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/same_bits"))
from right_bits import canonical, largest_below

REDUCING = [
    row for row in CATALOGUE.values() if COLLECTIVES[row.collective].reduces and row.collective != "barrier"
]
PLACES = {"a node each": "1", "one node": "64", "two on a node": "2", "eight on a node": "8"}
COUNT = 130  # elements; more than one for each of 64 ranks
SUM = Operator(8, add_floats)


def claiming(nranks: int, nodes: Nodes) -> list[Algorithm]:
    """Return the rows that claim to be canonical there."""
    return [
        row
        for row in REDUCING
        if not unserved(row, nranks) and row.is_canonical(nranks, nodes if row.placed else ())
    ]


def is_canonical(row: Algorithm, nranks: int, nodes: Nodes, segment: int, seed: int) -> bool:
    """Run a row, and say whether every result is the canonical expression of its ranks' contributions."""
    rng = random.Random(seed)
    count = 3 if row.collective == "reduce_scatter" else COUNT
    modes = rng.choice(in_place_modes(row, nranks, rng))
    root = seed % nranks if row.collective == "reduce" else 0
    _, sides = play(
        case := Case(row, nranks, count, modes, Setting(seed, 0, nodes), root=root, segment=segment), SUM
    )
    return all(holds(case, sides, rank) for rank in range(nranks))


def holds(case: Case, sides: list[Side], rank: int) -> bool:
    ranks = range(case.nranks)
    if case.collective in ("scan", "exscan"):
        ranks = range(rank + (case.collective == "scan"))
    if not ranks or (case.collective == "reduce" and rank != case.root):
        return True
    block = rank if case.collective == "reduce_scatter" else 0
    buffer, displ, count = sides[rank].outputs[0]
    memory = sides[rank].memory
    assert memory.returned is not None
    found = memory.returned[memory.area(buffer).part(displ * 8, count * 8, "its result").span]
    return found.tobytes() == canonical([sides[r].sent[block] for r in ranks], add_floats).tobytes()


def test_some_rows_claim_it_everywhere() -> None:
    """Each collective has one, however ranks are placed: `order="rank"` always finds an algorithm."""
    for nranks in (2, 3, 7, 8, 64):
        for place in PLACES.values():
            found = {row.collective for row in claiming(nranks, parse_nodes(place, nranks))}
            assert found == {row.collective for row in REDUCING}, (nranks, place)


@pytest.mark.parametrize(
    "nranks", [*(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, 6, 8)), 5, 13, 64]
)
@pytest.mark.parametrize("place", PLACES)
def test_programs_compute_the_canonical_expression(place: str, nranks: int, short: bool) -> None:
    nodes = parse_nodes(PLACES[place], nranks)
    rows = claiming(nranks, nodes)
    if short and nranks == 64:
        rows = rows[list(PLACES).index(place) :: len(PLACES)]
    for row in rows:
        for segment in (1 << 40, 50) if nranks < 64 else (1 << 40,):
            assert is_canonical(row, nranks, nodes, segment, nranks + segment % 7), (
                row.key,
                nranks,
                place,
                segment,
            )


def test_the_comparison_sees_another_expression() -> None:
    """Five contributions from left to right are another one; a ring's sums are, too."""
    parts = [np.array([x]) for x in (1.0, 1e16, -1e16, 3.0, 1e-3)]
    assert largest_below(5) == 4
    assert canonical(parts, np.add) != ((((parts[0] + parts[1]) + parts[2]) + parts[3]) + parts[4])
    assert not is_canonical(CATALOGUE["allreduce/ring"], 5, (), 1 << 40, 1)
