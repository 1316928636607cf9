"""Symmetric memory: ordinary arrays to their owner, read in place by the node's other ranks, given back when they are gone."""

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from internals import resources
from mapped_memory import barrier, holdings, mapping_of, shares, staged_nbytes
from mpi4py import MPI
from reference import (
    ALGORITHMS,
    COLLECTIVES,
    agreed,
    communicator,
    contributions,
    ensure,
    ensure_none,
    expected,
    fresh,
    prefilled,
    representative,
    roots,
    unless,
)

import hpcoll

pytestmark = pytest.mark.mpi
COUNTS = (5, 1001, 40_009)  # within a line; one segment; more than a place of staging memory holds
DTYPES = [
    "f8",
    "f4",
    "i1",
    "?",
    "c16",
    ">i4",
    "U3",
    "M8[ns]",
    ml_dtypes.bfloat16,
    [("a", "i4"), ("b", "f8", (2,))],
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), 0, (3, 0, 2), 7, (2, 3, 4), np.int64(4), [2, 2]], ids=str)
def test_shapes_and_types(shape: Any, dtype: Any) -> None:
    comm = communicator()
    wanted = np.zeros(shape, dtype)
    made = comm.zeros(shape, dtype), comm.empty(shape, dtype), comm.like(wanted), comm.like(wanted.T)
    for array in made[:3]:
        assert (type(array), array.shape, array.dtype) == (np.ndarray, wanted.shape, wanted.dtype)
    assert made[3].shape == wanted.T.shape
    for array in made:
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned
        assert array.ctypes.data % 64 == 0 or array.size == 0
    assert made[0].tobytes() == wanted.tobytes()
    made[1][...] = np.ones(wanted.shape, np.uint8).astype(wanted.dtype)
    assert made[0].tobytes() == wanted.tobytes()


def laid_out(comm: hpcoll.Communicator, content: np.ndarray, symmetric: bool) -> np.ndarray:
    """An array with this content in one memory or the other; the content may differ in size between ranks."""
    most = comm.allreduce(content.size, op=MPI.MAX)
    array = comm.empty(most + 3)[3:]
    if not symmetric:
        array = np.empty(most)
    array[: content.size] = content
    return array[: content.size]


def wrong_in_symmetric_memory(
    comm: hpcoll.Communicator, collective: str, algorithm: str, everywhere: bool
) -> list[Any]:
    """Return what is wrong, out of place and in place, with every rank's buffers in symmetric memory or those of even ranks."""
    rank, nranks, wrong = comm.rank, comm.size, list[Any]()
    symmetric = everywhere or rank % 2 == 0
    for count in COUNTS:
        inputs = contributions(collective, nranks, count)
        for root in roots(collective, nranks)[-1:]:
            arguments: list[Any] = [root] if len(roots(collective, nranks)) > 1 else []
            want = expected(collective, rank, root, inputs)
            if collective != "bcast":
                send = laid_out(comm, inputs[rank], symmetric)
                recv = laid_out(
                    comm, np.full(inputs[rank].size if want is None else want.size, -1.0), symmetric
                )
                getattr(comm, COLLECTIVES[collective])(
                    send, recv, *named(collective, arguments), algorithm=algorithm
                )
                if not (np.array_equal(send, inputs[rank]) and (want is None or np.array_equal(recv, want))):
                    wrong.append((count, "out of place"))
            before = prefilled(collective, rank, root, inputs)
            both = laid_out(comm, inputs[rank] if before is None else before, symmetric)
            call_in_place(comm, collective, both, rank == root, arguments, algorithm)
            want = inputs[root] if collective == "scatter" and rank == root else want
            if want is not None and not np.array_equal(both[: want.size], want):
                wrong.append((count, "in place"))
    return wrong


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(("collective", "algorithm"), representative(ALGORITHMS))
def test_collectives(collective: str, algorithm: str, everywhere: bool) -> None:
    ensure_none(wrong_in_symmetric_memory(communicator(), collective, algorithm, everywhere))


def named(collective: str, arguments: list[Any]) -> list[Any]:
    return [MPI.SUM, *arguments] if collective == "reduce" else arguments


def call_in_place(
    comm: Any, collective: str, both: np.ndarray, is_root: bool, arguments: list[Any], algorithm: str
) -> None:
    buffers: list[Any] = [MPI.IN_PLACE, both]
    if collective == "bcast":
        buffers = [both]
    elif collective == "scatter":
        buffers = [both, MPI.IN_PLACE] if is_root else [None, both[: both.size // comm.size]]
    elif collective in ("reduce", "gather") and not is_root:
        buffers = [both, None]
    getattr(comm, COLLECTIVES[collective])(*buffers, *named(collective, arguments), algorithm=algorithm)


@pytest.mark.smoke
@pytest.mark.parametrize("symmetric", [True, False])
def test_peers_read_in_place(symmetric: bool) -> None:
    """Nothing is copied on its way out of symmetric memory; that this can be seen at all, ordinary memory shows."""
    comm = fresh()
    x = comm.empty((4, 1000)) if symmetric else np.empty((4, 1000))
    y, before = comm.empty(1000), staged_nbytes(comm)
    x[:] = 1.5
    for part in (x[1], x[2:], x.T):  # a row, rows, Fortran order
        comm.Bcast(part, root=comm.size - 1, algorithm="direct")
    comm.Allreduce(x[3], y, algorithm="direct")
    staged = staged_nbytes(comm) - before
    good = staged == 0 if symmetric or not shares(comm) or comm.size == 1 else staged > 0
    ensure(good and (y == 1.5 * comm.size).all(), staged)
    comm.Free()


@pytest.mark.parametrize("first", ["memory", "communicator"])
@pytest.mark.parametrize("derive", ["Dup", "Split", "Create", "again"])
def test_derived_communicators_read_in_place(derive: str, first: str) -> None:
    """Memory of a communicator on others of some of its ranks, whichever was made first."""
    world = communicator()
    make = {
        "Dup": world.Dup,
        "Split": lambda: world.Split(world.rank // 2, -world.rank),
        "Create": lambda: world.Create(world.Get_group().Range_incl([(world.size - 1, 0, -1)])),
        "again": lambda: hpcoll.Communicator(MPI.COMM_WORLD.Dup()),
    }[derive]
    x = world.empty(1000) if first == "memory" else None
    comm = make()
    x, before = world.empty(1000) if x is None else x, staged_nbytes(comm)
    x[:] = comm.rank + 1
    y = np.empty(1000)
    comm.Allreduce(x, y, algorithm="direct")
    good = (y == comm.size * (comm.size + 1) / 2).all() and staged_nbytes(comm) == before
    ensure(good, (y[0], staged_nbytes(comm)))
    comm.Free()


def test_memory_of_a_part_on_the_whole() -> None:
    """Ranks that have not mapped it get it as from ordinary memory."""
    world = communicator()
    part = world.Split(world.rank % 2, 0)
    x, y = part.empty(1000), np.empty(1000)
    comm = world.Dup()
    for _ in range(3):
        x[:] = world.rank + 1
        comm.Allreduce(x, y, algorithm="direct")
        ensure((y == comm.size * (comm.size + 1) / 2).all(), y[0])
    part.Free()
    comm.Free()


def test_part_and_whole_in_turns() -> None:
    """Numbers of windows never meet, whoever makes them in whichever order."""
    world = communicator()
    parts = [world, world.Split(world.rank % 2, 0), world.Split(world.rank // 2, 0)]
    arrays: list[tuple[Any, np.ndarray]] = []
    wrong = []
    for turn in range(30):
        comm = parts[(turn * 7) % 3]
        arrays.append((comm, comm.empty(500 + turn)))
        if turn % 4 == 3:
            del arrays[turn % 3]
        for owner, x in arrays:
            x[:] = owner.rank + turn
            y = np.empty(x.size)
            owner.Allreduce(x, y, algorithm="two_shot")
            if not (y == owner.size * (owner.size - 1) / 2 + owner.size * turn).all():
                wrong.append((turn, x.size))
    ensure_none(wrong)
    for comm in parts[1:]:
        comm.Free()


def test_calls_in_flight_keep_the_memory() -> None:
    comm = communicator()
    results = []
    for turn in range(20):
        x, y = comm.empty(3000), comm.zeros(3000)
        x[:] = turn + comm.rank
        request = comm.Iallreduce(x, y)
        del x
        comm.empty(7)
        request.Wait()
        results.append((y == comm.size * turn + comm.size * (comm.size - 1) / 2).all())
    ensure(all(results), results)


def test_memory_is_given_back_with_the_array() -> None:
    """As the others see it, who go on with theirs and have all of the window mapped."""
    comm = communicator()
    nbytes = 4 << 20
    x, y = comm.zeros(nbytes, np.uint8), comm.zeros(nbytes, np.uint8)
    if agreed(unless(shares(comm), "alone")):
        pytest.skip("needs all ranks on nodes with others")
    x[:], y[:] = 1, 1
    barrier()
    before = present_nbytes(y)
    barrier()
    y = y[:10] if comm.rank == 0 else x  # a view keeps rank 0's
    barrier()
    found = mapping_of(y) if comm.rank == 0 else {}
    after = 1024 * int(found.get("Rss", 0))
    given = (resources(comm).node.nranks - 1) * nbytes
    ensure_none(
        [(before, after)]
        if comm.rank == 0 and not before >= given + nbytes > given > nbytes / 2 > after - nbytes
        else []
    )
    assert (x == 1).all()


def present_nbytes(array: np.ndarray) -> int:
    """Bytes of an array's window that this process has before it, after reading all of it."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    mapping = owner.owner.window.mapping
    assert mapping.array(0, mapping.nbytes).max() == 1
    return 1024 * int(mapping_of(array)["Rss"])


@pytest.mark.once
def test_thousands_of_arrays(short: bool) -> None:
    comm = communicator()
    kept = comm.zeros(100)
    before = None
    for turn in range(600 if short else 3000):
        x = comm.empty(1 + turn * 37 % 20_000)
        x[-1] = turn
        if turn == 20:
            before = holdings()
    del x
    gc.collect()
    barrier()
    comm.empty(1)
    assert before is not None
    wrong = [(now, then) for now, then in zip(holdings(), before) if now > then + 2]
    ensure_none(wrong)
    assert not kept.any()
