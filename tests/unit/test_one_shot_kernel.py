"""One-shot kernels without a GPU: what their compiled text computes, where each rank is a process and areas are memory that all map."""

import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from kernel_numbers import BFLOAT16, by_numpy, numbers, spread
from one_shot_ranks import NTHREADS, Launch, Place, make_channel, play, words
from ptx_machine import Machine, Stuck

pytest.importorskip("numba.cuda.cudadrv.nvrtc", reason="needs numba-cuda", exc_type=ImportError)

from hpcoll.base import ops
from hpcoll.base.ops import ReduceOp
from hpcoll.kernels import MAX_SOURCES, WIDE_NBYTES, device
from hpcoll.kernels import one_shot_layout as layout
from hpcoll.kernels.one_shot_layout import READS, WRITES

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="a machine's stores keep their order on x86-64 only"
)
CC = (9, 0)
ROOT = 1
GUARD = 32  # bytes behind what is received
BYTES = np.dtype(np.uint8)
FOLDED = [np.dtype(name) for name in ("i1", "f2", "f4", "f8", "c16")] + [BFLOAT16]
# items, blocks, and by how many items arrays are shifted: not all blocks have items
FOLDS = [(37, 2, 0), (0, 3, 0), (5, 3, 1), (1, 3, 0), (65, 1, 1), (130, 8, 0)]
COPIES = [(148, 2, 0), (0, 3, 0), (37, 3, 0), (5, 3, 1), (200, 3, 4), (1, 3, 0), (200, 2, 2), (600, 8, 3)]
BOTH = READS | WRITES


class Collective(NamedTuple):
    """A collective as a launch.

    Attributes:
        scatters: Whether there is a piece for each rank.
        rooted: Whether only the root's slot is read.
        part: Of the root.
        others: Part of all other ranks.
        result: What rank r receives, of what all ranks have sent, a row for each piece; the last argument folds.
        folds: Whether it does.
    """

    scatters: bool
    rooted: bool
    part: int
    others: int
    result: Callable[[list[np.ndarray], int, Callable[[list[np.ndarray]], np.ndarray]], Any]
    folds: bool = False


COLLECTIVES = {
    "allreduce": Collective(False, False, BOTH, BOTH, lambda sent, r, fold: fold(sent), folds=True),
    "reduce_scatter_block": Collective(
        True, False, BOTH, BOTH, lambda sent, r, fold: fold([rows[r] for rows in sent]), folds=True
    ),
    "reduce": Collective(False, False, BOTH, WRITES, lambda sent, r, fold: fold(sent), folds=True),
    "allgather": Collective(False, False, BOTH, BOTH, lambda sent, r, fold: sent),
    "alltoall": Collective(True, False, BOTH, BOTH, lambda sent, r, fold: [rows[r] for rows in sent]),
    "bcast": Collective(False, True, WRITES, READS, lambda sent, r, fold: sent[ROOT]),
    "gather": Collective(False, False, BOTH, WRITES, lambda sent, r, fold: sent),
    "scatter": Collective(True, True, BOTH, READS, lambda sent, r, fold: sent[ROOT][r]),
}


class Call(NamedTuple):
    """A call of all ranks."""

    name: str
    dtype: np.dtype
    count: int
    nblocks: int
    shift: int = 0
    op: ReduceOp = ops.SUM
    in_place: bool = False

    def text(self) -> str:
        folds = COLLECTIVES[self.name].folds
        return device.one_shot(*((self.op, self.dtype) if folds else (None, None)), CC).ptx.decode()

    def launches(self, nranks: int, number: int) -> tuple[list[Launch], list[np.ndarray]]:
        """Return a launch for each rank, and the bytes that each shall have around and in what it receives."""
        kind, rng = COLLECTIVES[self.name], np.random.default_rng(number)
        npieces, (first, nsources) = nranks if kind.scatters else 1, (ROOT, 1) if kind.rooted else (0, nranks)
        draw = spread if kind.folds and self.dtype.kind not in "iu" else numbers
        sent = [draw(self.dtype, npieces * self.count, rng).reshape(npieces, -1) for _ in range(nranks)]
        nbytes, shift = self.count * self.dtype.itemsize, self.shift * self.dtype.itemsize
        chunk = -(-nbytes // self.nblocks // WIDE_NBYTES) * WIDE_NBYTES
        launches, expected = [], []
        for rank, given in enumerate(sent):
            part = kind.part if rank == ROOT else kind.others
            found = np.asarray(kind.result(sent, rank, lambda values: by_numpy(self.op, values)))
            room = np.full(shift + max(given.nbytes, found.nbytes) + GUARD, 0xA5, BYTES)
            source = Place(room if self.in_place else np.zeros(2 * shift + given.nbytes, BYTES), shift)
            if not self.in_place:
                source = source._replace(shift=2 * shift)
            source.array[source.shift :][: given.nbytes] = given.reshape(-1).view(BYTES)
            numbers_ = nbytes, chunk, npieces, first, nsources, part, 1000 + number
            launches.append(
                Launch(
                    self.text(),
                    source if part & WRITES else None,
                    Place(room, shift) if part & READS else None,
                    numbers_,
                    self.nblocks,
                    late=rng.choice([0.0, 0.0, 0.01]),
                )
            )
            wanted = room.copy()
            wanted[shift:][: found.nbytes] = found.reshape(-1).view(BYTES)
            expected.append(wanted)
        return launches, expected


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Processes that wait for ranks to play; they know nothing of this one."""
    with ProcessPoolExecutor(8, get_context("spawn")) as one:
        yield one


def start(
    pool: ProcessPoolExecutor, folder: Path, launches: Sequence[Sequence[Launch]], nranks: int
) -> list[Future[Any]]:
    """Have the first ranks of a new channel run their launches."""
    make_channel(folder, nranks)
    return [pool.submit(play, folder, rank, nranks, list(mine)) for rank, mine in enumerate(launches)]


def check(pool: ProcessPoolExecutor, folder: Path, nranks: int, calls: Sequence[Call]) -> None:
    """Run calls one after another on one channel."""
    made = [call.launches(nranks, number) for number, call in enumerate(calls)]
    playing = start(pool, folder, list(zip(*(launches for launches, _ in made), strict=True)), nranks)
    for rank, received in enumerate([one.result() for one in playing]):
        for number, (call, (_, wanted), room) in enumerate(zip(calls, made, received, strict=True)):
            wrong = [] if room is None else np.flatnonzero(room != wanted[rank]).tolist()
            assert not wrong, f"rank {rank}, call {number}, {call}: bytes {wrong}"
        assert words(folder / f"stop{rank}")[0] == 0
        area = words(folder / f"area{rank}")
        blocks = [sum(block < call.nblocks for call in calls) for block in range(layout.MOST_BLOCKS)]
        assert area[: layout.MOST_BLOCKS].tolist() == blocks, "calls of each block"


FOLDING = [name for name, kind in COLLECTIVES.items() if kind.folds]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_calls_of_any_size(name: str, pool: ProcessPoolExecutor, tmp_path: Path, short: bool) -> None:
    if name in FOLDING:
        dtypes = FOLDED[FOLDING.index(name) :: 3] if short else FOLDED
        check(pool, tmp_path, 2, [Call(name, dtype, *shape) for dtype in dtypes for shape in FOLDS])
    else:
        check(pool, tmp_path, 2, [Call(name, BYTES, *shape) for shape in COPIES])


@pytest.mark.parametrize("name", ["allreduce", "alltoall"])
def test_what_is_received_takes_the_place_of_what_was_sent(
    name: str, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    shapes = [(37, 2, 0), (90, 3, 1), (64, 8, 0)]
    check(pool, tmp_path, 2, [Call(name, np.dtype("f4"), *shape, in_place=True) for shape in shapes])


@pytest.mark.parametrize(
    "nranks", [3, pytest.param(5, marks=pytest.mark.full), pytest.param(8, marks=pytest.mark.full)]
)
def test_calls_of_all_kinds_on_one_channel(nranks: int, pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    """The numbers of blocks change, so that blocks are at calls of different numbers; and often only some ranks write, or read."""
    f4, names = (
        np.dtype("f4"),
        ["bcast", "bcast", "allreduce", "gather", "reduce", "scatter", "bcast", "alltoall"],
    )
    calls = [
        Call(name, f4, 30, 1 + i * 5 % 3, op=ops.MAX if i > 8 else ops.SUM)
        for i, name in enumerate(names * 2)
    ]
    check(pool, tmp_path, nranks, calls)


def test_a_slot_can_be_filled(pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    """Of two blocks in the one side, then of one block in the other; each has a part of both pieces. Nothing else is written."""
    u4 = np.dtype("u4")
    nitems = layout.SLOT_NBYTES // u4.itemsize // 2
    calls = [Call("scatter", u4, 2 * nitems, 2), Call("scatter", u4, nitems, 1)]
    check(pool, tmp_path, 2, calls)
    expected = np.zeros((2, layout.MOST_BLOCKS, 2, nitems), u4)
    for number, call in enumerate(calls):
        place = call.launches(2, number)[0][ROOT].sent
        assert place
        rows = place.array.view(u4).reshape(2, call.nblocks, nitems)
        expected[(number + 1) % 2, : call.nblocks] = rows.transpose(1, 0, 2)
    slots = words(tmp_path / f"area{ROOT}")[layout.SLOTS_AT // 8 :]
    assert slots.tobytes() == expected.tobytes()
    assert not words(tmp_path / "area0")[layout.SLOTS_AT // 8 :].any(), "rank 0 sends nothing"


ALL = Call("allreduce", np.dtype("f4"), 24, 2)


@pytest.mark.parametrize("nblocks", [2, 1], ids=["same-blocks", "fewer-blocks"])
def test_another_check_ends_the_call_on_all_ranks(
    nblocks: int, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """Each rank has a STOP word of its own. Blocks that the other call does not have are waited for in vain."""
    launches, _ = ALL.launches(3, 0)
    launches[1] = launches[1]._replace(numbers=(*launches[1].numbers[:-1], 5), nblocks=nblocks)
    for one in start(pool, tmp_path, [[launch] for launch in launches], 3):
        one.result()
    assert [words(tmp_path / f"stop{rank}")[0] for rank in range(3)] == [1, 1, 1]


def test_the_host_ends_a_call_to_which_a_rank_does_not_come(
    pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    launches, _ = ALL.launches(2, 0)
    (waiting,) = start(pool, tmp_path, [launches[:1]], 2)
    row = (layout.MOST_BLOCKS + np.arange(2)) * MAX_SOURCES
    flags = (layout.FLAGS_AT + layout.FLAG_NBYTES * row) // 8
    there = words(tmp_path / "area1")
    while not there[flags].all():
        time.sleep(0.01)
    assert there[flags].tolist() == [1, 1]
    assert there[flags + 1].tolist() == [1000, 1000]
    time.sleep(0.2)
    assert not waiting.done()
    words(tmp_path / "stop0")[0] = 1
    waiting.result()


def test_who_waits_in_vain_is_told(tmp_path: Path) -> None:
    make_channel(tmp_path, 2)
    launches, _ = ALL.launches(2, 0)
    with pytest.raises(Stuck, match=r"^nothing has moved for 0\.3 s: ") as found:
        play(tmp_path, 0, 2, launches[:1], patience=0.3)
    waits = re.findall(r"threads (\[.*?\]) of block (\d) wait at instruction \d+, ([\w.]+)", str(found.value))
    assert waits == [
        (str(threads), str(block), code)
        for block in range(2)
        for threads, code in (
            ([0, *range(2, NTHREADS)], "bar.sync"),
            ([1], "ld.acquire.sys.global.u64"),  # the other rank's flag
        )
    ]


def test_threads_that_end_before_a_barrier_are_told() -> None:
    text = "{ mov.u32 %r1, %tid.x; setp.eq.s32 %p1, %r1, 1; @%p1 bra $L; bar.sync 0;\n$L:\n ret; }"
    with pytest.raises(Stuck, match=r": threads \[0, 2\] of block 0 wait at instruction 3, bar\.sync$"):
        Machine(text).launch(1, 3, [])
