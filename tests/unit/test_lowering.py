"""Lowered programs of all ranks, run on data by the reference engine: right results whatever the order of things."""

import itertools
import random
import zlib

import pytest
from lowering_cases import Case, add_floats, every_row, in_place_modes, random_nodes, random_setting
from lowering_play import check, play
from reference_calls import Operator

from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import parse_nodes
from hpcoll.schedules.row import Algorithm


@every_row
def test_results(row: Algorithm, short: bool) -> None:
    rng = random.Random(zlib.crc32(row.key.encode()))
    for nranks in (1, 2, 3, 5) if short else range(1, 10):
        counts = sorted({0, 1, nranks - 1, nranks, nranks + 1, 37}) if row.collective != "barrier" else [1]
        for count, window in itertools.product(counts, (1, 2, 5)):
            for in_place in in_place_modes(row, nranks, rng):
                if rng.random() < (0.9 if nranks > 6 else 0.6):
                    continue
                case = Case(row, nranks, count, in_place, random_setting(rng), window=window)
                case = case._replace(
                    root=rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0,
                    segment=rng.choice((1 << 40, max(1, count), nranks + 1, 5, 2))
                    if count < 37 or rng.random() < 0.7
                    else 1,
                    most_nbytes=rng.choice((1 << 30, 1 << 30, 16)),
                    nodes=random_nodes(row, nranks, rng),
                )
                check(case)


@pytest.mark.parametrize("key", [key for key in CATALOGUE if COLLECTIVES[CATALOGUE[key].collective].rooted])
def test_every_root(key: str, short: bool) -> None:
    rng = random.Random(key)
    for nranks in (3, 8) if short else range(2, 9):
        for root in range(nranks):
            in_place = rng.choice(in_place_modes(CATALOGUE[key], nranks, rng))
            case = Case(
                CATALOGUE[key], nranks, 11, in_place, random_setting(rng), root, segment=rng.choice((3, 11))
            )
            check(case._replace(nodes=random_nodes(CATALOGUE[key], nranks, rng)))


@pytest.mark.parametrize(
    "key", [key for key, row in CATALOGUE.items() if COLLECTIVES[row.collective].blocks and not row.uniform]
)
def test_varying_blocks(key: str, short: bool) -> None:
    row, rng = CATALOGUE[key], random.Random(key)
    for nranks, _ in itertools.product((2, 3, 6) if short else range(1, 10), range(3 if short else 6)):
        sizes = tuple(rng.choice((0, 0, 1, 2, 3, 17)) for _ in range(nranks))
        root = rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0
        for in_place in in_place_modes(row, nranks, rng):
            case = Case(row, nranks, sum(sizes), in_place, random_setting(rng), root, sizes=sizes)
            check(case._replace(most_nbytes=rng.choice((1 << 30, 16)), nodes=random_nodes(row, nranks, rng)))


@pytest.mark.parametrize("key", [key for key, row in CATALOGUE.items() if row.canonical])
def test_programs_compute_the_expression_that_the_row_promises(key: str, short: bool) -> None:
    """Sums of floats of many sizes: the bits are those of the canonical expression, whatever lowering makes one reduction of."""
    row, rng, seen = CATALOGUE[key], random.Random(key), 0
    for nranks in (1, 2, 3, 4, 5, 6, 7, 8, 12, 21) if short else range(1, 65):
        nodes = parse_nodes("4", nranks)
        for shared, in_place in itertools.product(
            ((), (0,) * nranks, nodes), in_place_modes(row, nranks, rng)[:2]
        ):
            if row.is_canonical(nranks, nodes) and (nranks < 8 or rng.random() < 0.3):
                root = rng.randrange(nranks) if COLLECTIVES[row.collective].rooted else 0
                setting = random_setting(rng)._replace(nodes=shared)
                case = Case(
                    row,
                    nranks,
                    23 if nranks < 8 else 3,
                    in_place,
                    setting,
                    root,
                    segment=rng.choice((1 << 40, 8)),
                    nodes=nodes,
                )
                play(case, Operator(8, add_floats))  # which compares the bits
                seen += 1
    assert seen > 2


@pytest.mark.parametrize("key", [key for key in CATALOGUE if key.startswith("allreduce/")])
def test_all_ranks_get_the_same_bits(key: str, short: bool) -> None:
    rng = random.Random(key)
    for nranks, segment in itertools.product((3, 4, 7) if short else range(2, 10), (1 << 40, 7)):
        for in_place in in_place_modes(CATALOGUE[key], nranks, rng):
            case = Case(CATALOGUE[key], nranks, 37, in_place, random_setting(rng), segment=segment)
            case = case._replace(nodes=random_nodes(case.row, nranks, rng))
            _, sides = play(case, Operator(8, add_floats))
            results = {
                s.memory.returned[s.memory.area(1).span].tobytes()
                for s in sides
                if s.memory.returned is not None
            }
            assert len(results) == 1
