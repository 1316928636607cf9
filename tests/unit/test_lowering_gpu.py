"""Lowered programs for arrays in GPU memory: right results in any order of things."""

import random

import pytest
from lowering_cases import add_floats, every_row, in_place_modes
from lowering_cases_gpu import REACH, gpu_case, local_peers, programs, rows_of
from lowering_play import check, play, programs_of
from reference_calls import SCRATCH, Operator, Setting
from reference_memory import STAGING_SLOTS
from reference_streams import MOST_SOURCES

from hpcoll.runtime.program.fields import (
    ALLOWED,
    BUFFER,
    DISPL,
    NSOURCES,
    TO_BUFFER,
    TO_DISPL,
)
from hpcoll.runtime.program.opcodes import PINNED, Code
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm

# --- results


@pytest.mark.parametrize("reach", REACH)
@every_row
def test_results(row: Algorithm, reach: str, short: bool) -> None:
    rng = random.Random(row.key + reach)
    for nranks in (2, 5) if short else (2, 3, 4, 5, 6):
        check(gpu_case(row, nranks, reach, rng))


@pytest.mark.ci
@every_row
def test_more_ranks(row: Algorithm, short: bool) -> None:
    rng = random.Random(row.key)
    for nranks in (9,) if short else (9, 17):
        check(gpu_case(row, nranks, rng.choice(list(REACH)), rng))


@pytest.mark.parametrize("seed", range(12))
def test_calls_one_after_another(seed: int) -> None:
    """For arrays of GPUs and of hosts in turn: window slots, their streams and their shared memory come round again."""
    rng = random.Random(seed)
    nranks, reach = rng.choice((2, 3, 4, 5)), rng.choice(("all mapped", "all staged", "nodes", "anything"))
    cases = [
        gpu_case(rng.choice(list(CATALOGUE.values())), nranks, reach, rng) for _ in range(2 * STAGING_SLOTS)
    ]
    setting = cases[0].setting
    reaches = tuple(REACH[reach][1](local_peers(rank, setting.nodes), rng) for rank in range(nranks))
    check(*(case._replace(setting=setting, reach=reaches if rng.random() < 0.7 else ()) for case in cases))


FOLDS = ["allreduce/direct", "reduce/direct", "reduce_scatter/direct", "allreduce/two_shot"]


@pytest.mark.ci
@pytest.mark.parametrize("reach", ["all mapped", "all staged", "pinned", "nodes"])
@pytest.mark.parametrize("key", FOLDS)
def test_long_folds(key: str, reach: str, short: bool) -> None:
    """Aligned groups of sources, then their results, which is the canonical expression; the last reduction writes the destination."""
    rng = random.Random(key + reach)
    for nranks in (9, 70) if key == "reduce/direct" else (9,) if short else (9, 18):
        in_place = in_place_modes(CATALOGUE[key], nranks, rng)[: 1 + nranks % 2][-1]
        case = gpu_case(CATALOGUE[key], nranks, reach, rng)._replace(
            in_place=in_place, sizes=None, count=nranks + 3, segment=1 << 40
        )
        check(case)
        play(case, Operator(8, add_floats))  # which compares the bits
        folds = rows_of(programs_of(case, 8)[case.root], Code.REDUCE)
        assert len(folds) == {9: 2, 18: 4, 70: 11}[nranks]
        assert all(2 <= fold[NSOURCES] <= MOST_SOURCES for fold in folds)
        assert [fold[TO_BUFFER] == SCRATCH for fold in folds] == [True] * (len(folds) - 1) + [False]


# --- structure


@pytest.mark.parametrize("key", ["allreduce/direct", "reduce/direct", "reduce_scatter/direct"])
def test_contributions_that_are_read_in_place_need_no_scratch(key: str) -> None:
    assert {
        program.scratch_nbytes for nranks in (2, 5) for program in programs(key, nranks, "all mapped")
    } == {0}


def test_landing_slots_are_aligned() -> None:
    for reach, buffer in (("pinned", PINNED), ("not exported", SCRATCH)):
        rows: list[tuple[int, ...]] = []
        for key in ("allreduce/ring", "alltoall/pairwise"):
            for program in programs(key, 5, reach, count=7):
                rows += rows_of(program, Code.SEND, Code.RECV, Code.POST)
        displs = [row[DISPL] for row in rows if row[BUFFER] == buffer]
        assert len(set(displs)) > 2
        assert all(displ % 256 == 0 for displ in displs)


@pytest.mark.parametrize(("reach", "buffer"), [("not exported", SCRATCH), ("pinned", PINNED)])
def test_what_several_get_is_copied_once(reach: str, buffer: int) -> None:
    rng = random.Random(1)
    case = gpu_case(CATALOGUE["allgather/direct"], 6, reach, rng)._replace(
        in_place=(False,) * 6, sizes=None, count=40, segment=1 << 40
    )
    nothing_exported = tuple(one._replace(exported=(False, False)) for one in case.reach)
    case = case._replace(setting=Setting(1, nodes=case.setting.nodes), reach=nothing_exported)
    (program, *_) = programs_of(case, 8)
    copies = [copy for copy in rows_of(program, Code.COPY) if copy[TO_BUFFER] == buffer]
    assert len(copies) == 1
    sent = {
        row[BUFFER : DISPL + 1] for row in rows_of(program, Code.SEND, Code.POST) if row[BUFFER] == buffer
    }
    assert sent == {copies[0][TO_BUFFER : TO_DISPL + 1]}


def test_a_chunk_that_two_ranks_exchange_and_reduce_into_is_copied() -> None:
    """Each would wait for the other to have read what it is to overwrite; a ring goes on meanwhile."""
    doubling = programs("allreduce/recursive_doubling", 4, "all mapped", in_place=True)[0]
    assert {post[BUFFER] for post in rows_of(doubling, Code.POST)} == {SCRATCH}
    assert [row[ALLOWED] for row in rows_of(doubling, Code.UNREAD)] == [0, 0]
    ring = programs("allreduce/ring", 4, "all mapped", in_place=True)[1]
    assert {post[BUFFER] for post in rows_of(ring, Code.POST)} == {1}
    assert [row[ALLOWED] for row in rows_of(ring, Code.UNREAD)] == [3, 3, 3, 0]


@every_row
def test_host_programs_have_no_events(row: Algorithm) -> None:
    rng = random.Random(row.key)
    for program in programs_of(gpu_case(row, 5, "nodes", rng)._replace(reach=()), 8):
        assert program.nevents == program.pinned_nbytes == 0
        assert not rows_of(program, Code.RECORD, Code.SYNC, Code.UNREAD)
