"""Symmetric memory: ordinary arrays to their owner, read in place by the node's other ranks, given back when they are gone."""

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from forms import Case, blocking
from internals import resources
from mapped_memory import barrier, holdings, mapping_of, shares, staged_nbytes
from mpi4py import MPI
from reference import (
    ALGORITHMS,
    COLLECTIVES,
    GUARD,
    agreed,
    communicator,
    ensure,
    ensure_none,
    fresh,
    representative,
    unless,
)

import hpcoll
from hpcoll.comm.team import symmetric_memory

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


def wrong_in_symmetric_memory(
    comm: hpcoll.Communicator, collective: str, algorithm: str, everywhere: bool
) -> list[Any]:
    """Return what is wrong, out of place and in place, with every rank's buffers in symmetric memory or those of even ranks."""
    wrong = list[Any]()
    for count in COUNTS:
        room = comm.empty(2 * (comm.size * count + 2 * GUARD))
        for in_place in (False, True):
            given = room if everywhere or comm.rank % 2 == 0 else None
            case = Case(comm, COLLECTIVES[collective], count, comm.size - 1, in_place, room=given)
            wrong += unless(blocking(comm, case, algorithm=algorithm), case)
    return wrong


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(("collective", "algorithm"), representative(ALGORITHMS))
def test_collectives(collective: str, algorithm: str, everywhere: bool) -> None:
    ensure_none(wrong_in_symmetric_memory(communicator(), collective, algorithm, everywhere))


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
    for turn in range(200 if short else 3000):
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


SOURCES: dict[str, Any] = {
    "vector": np.arange(1000.0),
    "matrix": np.arange(600).reshape(20, 30),
    "fortran": np.arange(600.0).reshape(20, 30).T,
    "strided": np.arange(900)[::-3],
    "scalar": np.float32(7.5),
    "number": 3,
    "list": [[1, 2], [3, 4]],
    "nothing": np.empty((3, 0, 2), "i2"),
    "bfloat16": np.arange(50).astype(ml_dtypes.bfloat16),
    "text": np.array(["a", "bcd"]),
    "bytes": b"some bytes",
    "fields": np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]),
    "times": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "read-only": np.broadcast_to(np.arange(5), (3, 5)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_root(kind: str) -> None:
    comm = communicator()
    wrong = []
    for root in range(comm.size):
        want = np.asarray(SOURCES[kind])
        found = comm.share(SOURCES[kind] if comm.rank == root else [root], root)
        if (type(found), found.shape, found.dtype) != (
            np.ndarray,
            want.shape,
            want.dtype,
        ) or found.tobytes() != want.tobytes():
            wrong.append((root, found))
        if found.flags.writeable or not found.flags.c_contiguous:
            wrong.append((root, found.flags))
    ensure_none(wrong)


def test_nobody_can_write() -> None:
    comm = communicator()
    found = comm.share(np.arange(10.0) if comm.rank == 0 else None)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
        found.flags.writeable = True
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag to True"):
        found[2:].flags.writeable = True
    rights = mapping_of(found).get("rights")
    ensure(rights == "r--s" or not shares(comm), rights)


def test_contents_are_those_of_the_call() -> None:
    comm = communicator()
    mine = np.full(1000, comm.rank + 1.0)
    found = comm.share(mine, root=comm.size - 1)
    mine[:] = -1
    barrier()
    ensure((found == comm.size).all(), found)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_several_nodes(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of ranks that share memory stand for nodes; the message between them is cut into pieces."""
    monkeypatch.setenv("HPCOLL_SHM_RANKS", str(most))
    comm = communicator().Dup()
    monkeypatch.setattr(symmetric_memory, "_PIECE_NBYTES", 1000)
    wrong = []
    for root in range(comm.size):
        for count in (1, 125, 126, 3000):
            want = np.arange(count) + 100.0 * root
            found = comm.share(want if comm.rank == root else None, root)
            if not np.array_equal(found, want):
                wrong.append((root, count))
    seen = comm.allgather(mapping_of(found).get("inode") if shares(comm) else comm.rank)
    if len(set(seen)) != -(-comm.size // most):
        wrong.append(seen)
    ensure_none(wrong)
    comm.Free()


def test_as_a_buffer() -> None:
    comm = communicator()
    table = comm.share(np.arange(3000.0) if comm.rank == 0 else None)
    total = np.empty(3000)
    comm.Allreduce(table, total)
    ensure((total == comm.size * np.arange(3000)).all(), total)
    if comm.rank == 0:
        comm.Bcast(table)
    else:
        comm.Bcast(total)
        assert (total == np.arange(3000)).all()


@pytest.mark.once
def test_given_back() -> None:
    comm = communicator()
    gc.collect()  # what others left does not go meanwhile
    found = [holdings()]
    tables = [comm.share(np.full(1000, turn)) for turn in range(20)]
    found.append(holdings())
    tables = tables[-1:]
    found.append(holdings())
    kept = bool((tables[0] == 19).all())
    del tables
    found.append(holdings())
    nfreed = found[1][0] - found[2][0]
    ensure(kept and nfreed == (19 if shares(comm) else 0) and found[3] <= found[0], (kept, found))
