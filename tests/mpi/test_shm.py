"""Messages between ranks of a node through shared memory: sizes around a line and a lane, ranks that run ahead, memory given back."""

import gc
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import VARYING, names
from internals import context, free_kept, resources
from mapped_memory import limited, shares
from mpi4py import MPI
from reference import (
    ALGORITHMS,
    REPRESENTATIVE,
    Guarded,
    communicator,
    contribution,
    ensure,
    ensure_none,
    fresh,
    representative,
    unless,
)
from test_blocks import wrong_blocks
from test_collectives import run, run_in_place

import hpcoll
from hpcoll.comm.plans import engine_builder
from hpcoll.runtime.program.fields import CODE
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.transports.window import populates

pytestmark = pytest.mark.mpi

OURS = [(collective, algorithm) for collective, algorithm in ALGORITHMS if algorithm != "native"]
MESSAGES = (Code.SEND, Code.RECV, Code.WAIT)


def mappings() -> int:
    """Files in /dev/shm without a name that this process has mapped; errors of tests before keep some until their frames are collected."""
    gc.collect()
    return open_mappings()


def open_mappings() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("/dev/shm/" in line and line.endswith("(deleted)") for line in lines)


@pytest.mark.smoke
def test_ranks_of_a_node_exchange_no_mpi_messages() -> None:
    comm = fresh()
    inside = resources(comm)
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).size
    assert len(inside.node.local_peers) == here - 1
    assert {one.rings is not None for one in inside.message_contexts} == {here > 1}
    wrong = [
        (collective, name) for collective, name in OURS if not run(comm, collective, 101, 0, algorithm=name)
    ]
    programs = [engine.program.rows[:, CODE] for engine in context(comm).planner.engines()]
    assert len(programs) == len(OURS)
    if here == comm.size:
        wrong += [row for row in programs if np.isin(row, MESSAGES).any()]
    ensure_none(wrong)
    comm.Free()


@pytest.mark.parametrize("runner", [run, run_in_place])
@pytest.mark.parametrize(("collective", "algorithm"), representative(OURS))
def test_sizes(collective: str, algorithm: str, runner: Any) -> None:
    """Elements of 8 bytes: messages around the 56 bytes of a ring slot; 4 KiB; one lane and many, the last one shorter."""
    comm = communicator()
    wholes = [(count, None) for count in (0, 1, 7, 8, 7 * comm.size, 7 * comm.size + 1, 512, 20_011)]
    cases = [
        (count, comm.size - 1, segment) for count, segment in [*wholes, (100, 56), (100, 64), (1009, 640)]
    ]
    ensure_none(
        [
            case
            for case in cases
            if not runner(comm, collective, *case[:2], algorithm=algorithm, segment=case[2])
        ]
    )


@pytest.mark.once
@pytest.mark.parametrize(("collective", "algorithm"), representative(OURS))
def test_results_past_the_caches(collective: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages so long that their results are written past the caches; elements that fill no cache line at the end."""
    monkeypatch.setattr(engine_builder, "last_level_nbytes", lambda: 4 << 20)
    assert run(fresh(), collective, (4 << 20) // 8 + 5, 0, algorithm=algorithm)


SHAPES: dict[str, Callable[[int], int]] = {  # elements of rank r's block
    "around_a_line": lambda r: (6, 7, 8, 0, 9)[r % 5],
    "one_huge": lambda r: 20_011 * (r == MPI.COMM_WORLD.size - 1),
    "short_and_long": lambda r: (3, 5000)[r % 2],
}
VARYING_ROWS = [
    pytest.param(
        method, name, marks=() if f"{VARYING[method]}/{name}" in REPRESENTATIVE else pytest.mark.full
    )
    for method in VARYING
    for name in names(method)[2:]
]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("method", "algorithm"), VARYING_ROWS)
def test_blocks_of_very_different_size(method: str, algorithm: str, in_place: bool) -> None:
    ensure_none(wrong_blocks(communicator(), method, algorithm, in_place, SHAPES))


@pytest.mark.smoke
def test_ranks_run_ahead_of_each_other() -> None:
    """Many calls in a row, each rank slow now and then: nothing is overwritten before everybody has used it."""
    comm = communicator()
    same, own, wrong = random.Random(5), random.Random(comm.rank), []
    for i in range(200):
        collective, algorithm = same.choice(OURS)
        count, root = same.choice((1, 7, 8, 100, 3000, 20_000)), same.randrange(comm.size)
        if own.random() < 0.02:
            time.sleep(0.005)
        if not same.choice((run, run_in_place))(comm, collective, count, root, algorithm=algorithm):
            wrong.append((i, collective, algorithm, count, root))
    ensure_none(wrong)


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_a_short_message_before_a_long_one(algorithm: str) -> None:
    """A rank sends a short message and needs room for a long one; the short one is used only together with others' long ones."""
    comm, wrong = communicator(), []
    counts = [SHAPES["short_and_long"](r) for r in range(comm.size)]
    inputs = [contribution(r, sum(counts)) for r in range(comm.size)]
    first = sum(counts[: comm.rank])
    wanted = sum(inputs[1:], inputs[0])[first : first + counts[comm.rank]]
    for i in range(60):
        recv = Guarded(counts[comm.rank])
        comm.Reduce_scatter(inputs[comm.rank], recv.inner, counts, algorithm=algorithm)
        wrong += unless(recv.holds(wanted), i)
    ensure_none(wrong)


MAKERS: dict[str, Callable[[hpcoll.Communicator], hpcoll.Communicator]] = {
    "Dup": lambda comm: comm.Dup(),
    "Split": lambda comm: comm.Split(comm.rank % 2, -comm.rank),
    "Split_type": lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED),
}


@pytest.mark.once
@pytest.mark.parametrize("sizes", [(2048, 4096, 8192, 65536), (65536, 4096), (16384, 131072, 512)], ids=str)
def test_ten_calls_of_a_size_touch_the_memory_that_later_ones_need(sizes: tuple[int, ...]) -> None:
    free_kept()
    comm, found = fresh().Dup(), []
    for nbytes in sizes:
        source, target = np.ones(nbytes // 8), np.empty(nbytes // 8)
        for _ in range(10):
            comm.Allreduce(source, target)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(600):
            comm.Allreduce(source, target)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    ensure(max(found) <= 50 * max(1, comm.size - 1), str(found))
    comm.Free()


@pytest.mark.once
@pytest.mark.mpi(min_size=2)
def test_one_long_call_takes_no_more_memory_than_it_needs() -> None:
    free_kept()
    comm = fresh().Dup()
    if not shares(comm) or not populates():
        pytest.skip("without shared memory, or all of it was given pages at once")
    comm.Bcast(np.ones(1024))
    rings = resources(comm).message_contexts[0].rings
    ensure(rings is not None and int(rings._used[:, 2].sum()) <= 16 << 10, "more than a slot has pages")
    comm.Free()


@pytest.mark.once
@pytest.mark.parametrize("name", MAKERS)
def test_freed_communicators_leave_no_mapping(name: str) -> None:
    comm, found, wrong = communicator(), list[int](), list[Any]()
    for _ in range(3):
        for _ in range(2):
            made = MAKERS[name](comm)
            x = np.ones(100)
            made.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
            wrong += unless(x[0] == made.size, x[0])
            made.Free()
        found.append(mappings())
    ensure_none(wrong + unless(len(set(found)) == 1, found))


@pytest.mark.once
def test_a_live_communicator_has_a_mapping_without_a_name() -> None:
    """What the count of the test above counts."""
    free_kept()
    before = mappings()
    made = fresh()
    made.Barrier(algorithm="dissemination")
    shares = resources(made).node.nranks > 1
    ensure(mappings() == before + shares, (before, mappings()))
    for _ in range(20):  # some of what these need is made ahead, and used again
        made.Barrier_init(algorithm="dissemination").Free()
    ensure(mappings() <= before + 3 * shares, (before, mappings()))
    made.Free()
    free_kept()
    ensure(mappings() == before, (before, mappings()))


@pytest.mark.smoke
def test_communicators_that_are_kept_share_mappings() -> None:
    """Each new window takes time of all ranks, in programs that make very many communicators as well."""
    world, wrong = fresh(), list[Any]()
    world.Barrier()
    free_kept()
    before = mappings()
    kept = [world.Dup() for _ in range(16)]
    for turn, made in enumerate(kept + kept[::-1]):
        x = np.full(100, 1.0 + turn)
        made.Allreduce(MPI.IN_PLACE, x, algorithm="direct")
        wrong += unless((x == (1 + turn) * world.size).all(), (turn, x[0]))
    wrong += unless(mappings() - before < len(kept) / 2, (before, mappings()))
    for made in kept:
        made.Free()
    free_kept()
    wrong += unless(mappings() == before, (before, mappings()))
    ensure_none(wrong)
    world.Free()


def test_persistent_calls_that_get_no_shared_memory_say_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    comm = communicator().Dup()
    node, x = resources(comm).node, np.zeros(100)
    node.drop_ahead()
    with limited(resource.RLIMIT_FSIZE, 4096):
        requests = [comm.Allreduce_init(MPI.IN_PLACE, x, algorithm="ring") for _ in range(2)]
    for request in requests:
        x[:] = comm.rank
        request.Start()
        request.Wait()
        ensure((x == sum(range(comm.size))).all(), x)
        request.Free()
    texts = [text for text in caplog.messages if "ranks of this node exchange MPI messages: " in text]
    ensure(len(texts) == (node.nranks > 1 and node.rank == 0), texts)
    assert all("File too large" in text for text in texts), texts
    comm.Free()
