"""The cost model of collectives in GPU memory: what it counts against lowered programs, what is chosen by it, and the table in the docs."""

import random

import pytest
from lowering_cases_gpu import gpu_case, rows_of
from lowering_play import programs_of
from pages import between

from hpcoll.analysis.cost import ALIKE, H100, SHARED_NETWORK, GpuPrediction, predict_on_gpus, seconds
from hpcoll.base.text import format_nbytes
from hpcoll.comm.gpu.repeated import SHORT_NBYTES
from hpcoll.runtime.program.fields import CODE, NFURTHER, NSOURCES, REDUCED_NBYTES
from hpcoll.runtime.program.opcodes import Code, Program
from hpcoll.schedules.catalogue import CATALOGUE, find
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, members, parse_nodes
from hpcoll.schedules.row import Algorithm
from hpcoll.selection.choose import Need, _seconds, choose, may_be_chosen, worth_trying
from hpcoll.selection.config import Config

COUNTED = [row for row in CATALOGUE.values() if row.on_gpu.moved]


def programs(row: Algorithm, gpus: Nodes) -> tuple[list[Program], int]:
    """Of all ranks, out of place, elements of 8 bytes, in one lane; and the bytes of the message."""
    p, blocks = len(gpus), COLLECTIVES[row.collective].blocks
    case = gpu_case(row, p, "all mapped", random.Random(0))._replace(
        in_place=(COLLECTIVES[row.collective].always_in_place,) * p,
        sizes=None,
        count=840 if blocks else 840 * p,
        segment=1 << 40,
        root=0,
        most_nbytes=1 << 30,
        nodes=gpus if row.placed else (),
    )
    return programs_of(case, 8), 840 * p * 8


def operations(program: Program) -> list[tuple[int, ...]]:
    return rows_of(program, Code.COPY, Code.REDUCE)


def moved(program: Program) -> int:
    """Bytes that kernels and copies read and write."""
    reduced = sum(
        (1 + row[NSOURCES] + row[NFURTHER]) * row[REDUCED_NBYTES] for row in rows_of(program, Code.REDUCE)
    )
    return reduced + sum(2 * row[5] for row in rows_of(program, Code.COPY))


@pytest.mark.parametrize("gpus", ["1", "8", "2"])
@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row.key)
def test_bytes_and_launches_are_those_of_programs(row: Algorithm, gpus: str) -> None:
    """A kernel takes eight arrays, so no more ranks."""
    for p in (2, 3, 4, 6, 8):
        placement = parse_nodes(gpus, p) if gpus != "8" else (0,) * p
        found, nbytes = programs(row, placement)
        predicted = predict_on_gpus(row, placement, nbytes)
        works = [rank for rank in range(p) if operations(found[rank])]
        of_each = [[rank for rank in ranks if rank in works] for ranks in members(placement)]
        busiest = max(sum(moved(found[rank]) for rank in ranks) for ranks in of_each)
        some_move_less = row.collective in ("bcast", "scatter", "scan", "exscan")
        assert (
            (busiest <= predicted.moved + 1e-6)
            if some_move_less
            else busiest == pytest.approx(predicted.moved)
        )
        launches = max(len(operations(program)) for program in found)
        assert predicted.launches <= launches <= predicted.launches + (not row.on_gpu.launches), (
            "but for a rank's own block"
        )
        if row.on_gpu.one_works:
            assert max(map(len, of_each)) == 1


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("gpus", ["8", "2", "1", "3+1+4"])
def test_each_gpu_has_one_turn_by_its_leader(gpus: str, in_place: bool) -> None:
    """All others only say where their memory is, and wait."""
    placement = parse_nodes(gpus, 8)
    leaders = {ranks[0] for ranks in members(placement)}
    case = gpu_case(CATALOGUE["allreduce/gpu_leaders"], 8, "all mapped", random.Random(0))._replace(
        in_place=(in_place,) * 8, count=840, segment=1 << 40, nodes=placement
    )
    for rank, program in enumerate(programs_of(case, 8)):
        (fold, *others) = operations(program) or [()]
        assert not others
        assert bool(fold) == (rank in leaders)
        assert not fold or (fold[CODE], fold[NSOURCES], fold[NFURTHER]) == (Code.REDUCE, 8, 7)
        hands_out = rank not in leaders or len(leaders) > 1
        assert len(rows_of(program, Code.SYNC)) == hands_out + (rank in leaders), (
            "for the caller's earlier work, and for the kernel"
        )


# --- choice


def chosen(gpus: Nodes, nbytes: int, collective: str = "allreduce") -> str:
    return choose(
        Need(collective, len(gpus), nbytes, native=False, one_node=True, gpu=True, gpus=gpus), Config()
    ).algorithm


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 26])
def test_ranks_that_share_a_gpu_let_one_work(nbytes: int) -> None:
    for p in (2, 3, 4, 8):
        assert chosen((0,) * p, nbytes) == "gpu_leaders"
        assert chosen(tuple(range(p)), nbytes) in ("direct", "two_shot")
    assert chosen((0, 0, 1, 1), nbytes) == "gpu_leaders"


@pytest.mark.parametrize("gpus", [(), (0,) * 8, tuple(range(8))], ids=["staged", "one GPU", "one GPU each"])
@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 26])
def test_of_algorithms_alike_one_with_the_fewest_rounds_is_chosen(gpus: Nodes, nbytes: int) -> None:
    need = Need("allreduce", 8, nbytes, native=False, one_node=True, gpu=True, gpus=gpus)
    rows = [
        row
        for row in CATALOGUE.values()
        if row.collective == "allreduce" and worth_trying(row, need) and may_be_chosen(row, need)
    ]
    times = {row.name: _seconds(need, row)[0] for row in rows}
    alike = [row for row in rows if times[row.name] <= ALIKE * min(times.values())]
    found = find("allreduce", choose(need, Config()).algorithm)
    assert found in alike
    assert found.cost("rounds", 8) == min(row.cost("rounds", 8) for row in alike)


# --- the table in the docs


def line(gpus: Nodes, nbytes: int) -> str:
    p = len(gpus)
    if nbytes <= SHORT_NBYTES:
        rows = [row for row in CATALOGUE.values() if row.collective == "allreduce" and not row.placed]
        host = min(seconds(row, p, nbytes, nbytes, SHARED_NETWORK) for row in rows)
        name, found = "by the host", by_host(nbytes, host)
    else:
        name = chosen(gpus, nbytes)
        found = predict_on_gpus(find("allreduce", name), gpus, nbytes)
    return f"| {p} | {format_nbytes(nbytes)} | {name} | {cells(found)} |"


def by_host(nbytes: float, host_seconds: float) -> GpuPrediction:
    """A call on short messages by way of host memory; copy engines take no turns, and the bus as it was measured."""
    return GpuPrediction(
        2, 2, 0, 2 * nbytes, 0.0, 2 * (H100.launch + H100.sync + nbytes / 5.5e10) + host_seconds
    )


def cells(found: GpuPrediction) -> str:
    numbers = (
        format_nbytes(round(found.moved)),
        format_nbytes(round(found.linked)),
        found.rounds,
        found.switches,
        found.launches,
    )
    return " | ".join([*map(str, numbers), f"{found.seconds * 1e6:.3g}"])


def table() -> str:
    head = "ranks | message | algorithm | bytes in GPU memory | by links | rounds | switches | launches | us"
    lines = [f"| {head} |", "|" + "---|" * 9]
    for title, shared in (("one GPU that all share", True), ("one GPU each", False)):
        lines.append(f"| **{title}** |" + " |" * 8)
        lines += [
            line((0,) * p if shared else tuple(range(p)), nbytes)
            for p in (2, 4, 8)
            for nbytes in (8 << 10, 1 << 20, 64 << 20)
        ]
    return "\n".join(lines)


def test_the_table_in_the_docs() -> None:
    assert between("docs/evidence/gpu.md", "predictions") == table(), f"the table should be:\n{table()}"
