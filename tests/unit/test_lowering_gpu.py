"""Lowered programs for arrays in GPU memory: right results in any order of things, and each wait is needed."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from lowering_cases import add_floats, every_row, in_place_modes, operator_of
from lowering_cases_gpu import REACH, gpu_case, local_peers, programs, rows_of
from lowering_play import check, play, programs_of
from reference_calls import SCRATCH, Operator, Setting
from reference_memory import STAGING_SLOTS
from reference_streams import MOST_SOURCES

from hpcoll.runtime.program.fields import (
    ALLOWED,
    BUFFER,
    CODE,
    DISPL,
    EVENT,
    FIRST_SOURCE,
    IN_PLACE,
    NBYTES,
    NSOURCES,
    READ,
    REDUCED_NBYTES,
    TO_BUFFER,
    TO_DISPL,
    WRITTEN,
)
from hpcoll.runtime.program.opcodes import PINNED, STAGING, Code, Program
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
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


@pytest.mark.ci
@pytest.mark.parametrize("reach", REACH)
@every_row
def test_the_form_of_programs(row: Algorithm, reach: str) -> None:
    for program in programs(row.key, 5, reach, in_place=COLLECTIVES[row.collective].always_in_place):
        assert program.nevents >= 1
        assert not rows_of(program, Code.DRAIN)
        assert program.scratch_nbytes % 256 == program.pinned_nbytes % 256 == 0
        if reach in ("pinned", "all mapped"):
            assert {message[BUFFER] for message in rows_of(program, Code.SEND, Code.RECV)} <= {PINNED}
        posts = {(post[IN_PLACE], post[BUFFER] == STAGING) for post in rows_of(program, Code.POST)}
        assert posts <= {(READ, False), (WRITTEN, False), (0, True)}
        if reach == "all mapped":
            assert not rows_of(program, Code.STAGE, Code.RESERVE, Code.SEND, Code.RECV)
            assert program.staging_nbytes == program.pinned_nbytes == 0
        for first, last, _ in program.lanes.tolist():
            lane = program.rows[first:last].tolist()
            synced, recorded = (
                [row[EVENT] for row in lane if row[CODE] == wanted] for wanted in (Code.SYNC, Code.RECORD)
            )
            assert 0 not in synced[1:]
            assert Counter(recorded) == Counter(event for event in synced if event)
            before = [lane[i - 1][CODE] for i, row in enumerate(lane) if row[CODE] == Code.RECORD]
            assert set(before) <= {Code.COPY, Code.REDUCE, Code.STAGE}


def scratch_end(program: Program) -> int:
    """Return where the scratch ends that rows use."""
    found = [
        (row[BUFFER], row[DISPL], row[NBYTES])
        for row in rows_of(program, Code.SEND, Code.RECV, Code.STAGE, Code.POST)
    ]
    for row in rows_of(program, Code.COPY):
        found += [(row[TO_BUFFER], row[TO_DISPL], row[5]), (row[3], row[4], row[5])]
    for row in rows_of(program, Code.REDUCE):
        sources = program.sources[row[FIRST_SOURCE] : row[FIRST_SOURCE] + row[NSOURCES]].tolist()
        found += [
            (buffer, displ, row[REDUCED_NBYTES])
            for buffer, displ in ((row[TO_BUFFER], row[TO_DISPL]), *sources)
        ]
    return max((displ + nbytes for buffer, displ, nbytes in found if buffer == SCRATCH), default=0)


@pytest.mark.ci
@pytest.mark.parametrize("reach", REACH)
@every_row
def test_scratch_is_what_rows_use(row: Algorithm, reach: str) -> None:
    """On a GPU it is memory that is really there."""
    for program in programs(
        row.key, 5, reach, in_place=COLLECTIVES[row.collective].always_in_place, count=15 * 256
    ):
        assert program.scratch_nbytes == -(-scratch_end(program) // 256) * 256


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


# --- every wait is needed


MUTATED = [
    "allreduce/ring",
    "allreduce/two_shot",
    "allreduce/gpu_leaders",
    "allreduce/recursive_doubling",
    "bcast/binomial",
    "bcast/direct",
    "alltoall/pairwise",
    "reduce/tree",
    "scan/recursive_doubling",
    "gather/binomial",
]
WAITS = (Code.SYNC, Code.UNREAD, Code.WAIT)


def reordered(program: Program, order: list[int]) -> Program:
    return replace(
        program, rows=program.rows[order], lanes=program.lanes - [[0, len(program.rows) - len(order), 0]]
    )


def with_columns(program: Program, changes: dict[int, tuple[int, int]]) -> Program:
    rows = program.rows.copy()
    for row, (column, value) in changes.items():
        rows[row, column] = value
    return replace(program, rows=rows)


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """A program of one table with one RECORD, SYNC or UNREAD wrong."""
    rows, every = program.rows.tolist(), list(range(len(program.rows)))
    for i, row in enumerate(rows):
        code, event = row[CODE], row[EVENT]
        if code not in (Code.RECORD, Code.SYNC, Code.UNREAD):
            continue
        yield f"{Code(code).name} left out", reordered(program, every[:i] + every[i + 1 :])
        behind = next((k for k in every[i + 1 :] if rows[k][CODE] not in WAITS), None)
        if code == Code.RECORD:
            yield (
                "RECORD before its operation",
                reordered(program, [*every[: i - 1], i, i - 1, *every[i + 1 :]]),
            )
            other = next(
                (k for k in every[i + 1 :] if rows[k][CODE] == Code.RECORD and rows[k][EVENT] != event), None
            )
            if other is not None:
                waited = next(k for k in every[i:] if rows[k][: EVENT + 1] == [Code.SYNC, event])
                name = "events swapped, the first SYNC waits for more" if other < waited else "events swapped"
                yield name, with_columns(program, {i: (EVENT, rows[other][EVENT]), other: (EVENT, event)})
        elif behind is not None:
            yield (
                f"{Code(code).name} behind its row",
                reordered(program, [*every[:i], *every[i + 1 : behind + 1], i, *every[behind + 1 :]]),
            )
        if code == Code.UNREAD:
            yield "UNREAD of one message less", with_columns(program, {i: (ALLOWED, row[ALLOWED] + 1)})


SET_ASIDE = {"events swapped, the first SYNC waits for more"}


@pytest.mark.parametrize(
    "reach", ["all mapped", "all staged", "CUDA-aware", "pinned", "not exported", "nodes"]
)
def test_wrong_waits_are_refused(reach: str) -> None:
    found: Counter[str] = Counter()
    survivors = []
    for key in MUTATED:
        row, rng = CATALOGUE[key], random.Random(key + reach)
        case = gpu_case(row, 4, reach, rng)._replace(
            sizes=None, count=9, segment=1 << 40, window=1, most_nbytes=1 << 30
        )
        in_place = in_place_modes(row, 4, rng)[:2][-1]
        case = case._replace(in_place=in_place)
        right = programs_of(case, operator_of(row).itemsize)
        play(case, programs=right)
        for rank, program in list(enumerate(right))[case.root % 2 :: 2]:
            for name, wrong in mutants(program):
                try:
                    play(case, programs=[*right[:rank], wrong, *right[rank + 1 :]])
                except (AssertionError, KeyError):
                    found[f"refused: {name}"] += 1
                    continue
                found[f"accepted: {name}"] += 1
                if name not in SET_ASIDE:
                    survivors.append(f"{key} rank {rank}: {name}")
    print(reach, dict(found))
    assert sum(n for name, n in found.items() if name.startswith("refused")) > 80
    assert not survivors, "\n".join(survivors)
