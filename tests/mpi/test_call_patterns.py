"""Buffer specs as programs write them: right, and recognised when they come again; what only looks like them is refused."""

import array
import ctypes
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from memory_kinds import Dlpack
from mpi4py import MPI
from reference import ensure, ensure_none, fresh, unless

from hpcoll.base.errors import ArgumentError
from hpcoll.runtime.engine.object_layout import SUPPORTED

pytestmark = pytest.mark.mpi


SPECS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda x: x,
    "type": lambda x: [x, MPI.DOUBLE],
    "tuple": lambda x: (x, MPI.DOUBLE),
    "code": lambda x: [x, "d"],
    "count": lambda x: [x, x.size, MPI.DOUBLE],
    "count alone": lambda x: [x, x.size],
    "pair": lambda x: [x, (x.size, 0), MPI.DOUBLE],
    "displacement": lambda x: [np.concatenate((x, x)), x.size, x.size, MPI.DOUBLE],
    "none": lambda x: [x, None, MPI.DOUBLE],
    "other type": lambda x: [x.view(np.int64), MPI.DOUBLE],
    "longer": lambda x: [np.concatenate((x, x)), x.size, MPI.DOUBLE],
    "large count": lambda x: [np.resize(x, 3_000_000), 3_000_000, MPI.DOUBLE],
    "array.array": lambda x: array.array("d", x),
    "memoryview": lambda x: memoryview(x),
    "memoryview of two letters": lambda x: memoryview((ctypes.c_double * x.size)(*x)),
    "ctypes": lambda x: (ctypes.c_double * x.size)(*x),
    "bytes": lambda x: [x.tobytes(), MPI.DOUBLE],
    "bytearray": lambda x: [bytearray(x), MPI.DOUBLE],
    "of a type": lambda x: [array.array("d", x), "d"],
    "DLPack": lambda x: [Dlpack(x), "d"],
}


@pytest.mark.once
@pytest.mark.skipif(not SUPPORTED, reason="objects are laid out otherwise")
@pytest.mark.parametrize("algorithm", ["direct", "native"])
@pytest.mark.parametrize("name", SPECS)
def test_specs_are_recognised(name: str, algorithm: str, described: list[str]) -> None:
    comm, wrong = fresh(), []
    for turn in range(4):
        x = np.full(100 + turn % 2, comm.rank + 1.0)
        spec = SPECS[name](x)
        y = np.zeros(3_000_000 if name == "large count" else x.size)
        comm.Allreduce(spec, [y, MPI.DOUBLE], algorithm=algorithm)
        wrong += unless((y == comm.size * (comm.size + 1) / 2).all(), (turn, y))
    # two programs where a count is cut into blocks that differ
    wrong += unless(len(described) < 3, described)
    ensure_none(wrong)
    comm.Free()


BLOCKS: dict[
    str, tuple[int, Callable[[Any, int], Any]]
] = {  # elements between the blocks of a rank and the next; a spec for blocks of n
    "one count": (0, lambda x, n: [x, n]),
    "one count, one stride": (2, lambda x, n: (x, (n, n + 2), MPI.DOUBLE)),
    "counts, one stride": (2, lambda x, n: [x, [n] * (x.size // (n + 2)), n + 2, MPI.DOUBLE]),
    "nothing": (0, lambda x, n: x),
    "type": (0, lambda x, n: (x, MPI.DOUBLE)),
    "a column": (0, lambda x, n: [x, np.full((x.size // n, 3), n)[:, 1]]),
    "a column of int32": (0, lambda x, n: [x, np.full((x.size // n, 3), n, np.int32)[:, 1]]),
    "memory": (0, lambda x, n: [MPI.memory.frombuffer(x), n, "d"]),
}


@pytest.mark.skipif(not SUPPORTED, reason="objects are laid out otherwise")
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_without_lists_are_recognised(name: str, described: list[str]) -> None:
    """One number for all blocks, or none."""
    comm, wrong = fresh(), []
    gap, spec = BLOCKS[name]
    for turn in range(6):
        n = 3 + turn
        x, y = np.full(n, comm.rank + 1.0), np.zeros(comm.size * (n + gap))
        comm.Allgatherv(x, spec(y, n), algorithm="direct")
        found = y.reshape(comm.size, n + gap)
        right = (found[:, :n] == np.arange(1, comm.size + 1)[:, None]).all() and not found[:, n:].any()
        wrong += unless(right, (turn, y))
        z = np.zeros(n * comm.size)
        comm.Alltoallv(spec(y, n), z, algorithm="direct")
        wrong += unless((z == comm.rank + 1).all(), (turn, z))
    ensure_none(wrong)
    ensure(len(described) < 5, len(described))  # of 12 calls
    comm.Free()


@pytest.mark.once
@pytest.mark.parametrize("what", ["count", "displacement", "displacement beyond all memory", "type", "short"])
def test_what_only_looks_like_an_earlier_call_is_refused(what: str) -> None:
    """Behind calls that were recognised."""
    comm, y = fresh(), np.zeros(50)
    for _ in range(3):
        comm.Allreduce([np.ones(50), 50, MPI.DOUBLE], y)
        comm.Allgatherv(np.ones(5), [np.zeros(5 * comm.size), [5] * comm.size, None, MPI.DOUBLE])
    counts = [5] * comm.size
    calls = {
        "count": lambda: comm.Allreduce([np.ones(50), 51, MPI.DOUBLE], np.zeros(51)),
        "displacement": lambda: comm.Allgatherv(
            np.ones(5), [np.zeros(5 * comm.size), counts, [5 * comm.size] * comm.size, MPI.DOUBLE]
        ),
        "displacement beyond all memory": lambda: comm.Allgatherv(  # in bytes it is 0 again
            np.ones(5), [np.zeros(5 * comm.size), counts, np.full(comm.size, 2**61), MPI.DOUBLE]
        ),
        "type": lambda: comm.Allreduce([np.ones(50), 50, MPI.FLOAT], y),
        "short": lambda: comm.Allgatherv(np.ones(6), [np.zeros(5 * comm.size), counts, None, MPI.DOUBLE]),
    }
    with pytest.raises(ArgumentError):
        calls[what]()
    comm.Free()


def released(x: Any) -> memoryview:
    view = memoryview(x)
    view.release()
    return view


@pytest.mark.once
@pytest.mark.parametrize(
    "other",
    [
        lambda x: memoryview(x.view(np.int64)),
        lambda x: memoryview(np.full(2 * x.size, 1.0))[::-2],
        lambda x: [released(x), MPI.DOUBLE],
        lambda x: [np.zeros(x.size, "O,O"), x.size, MPI.DOUBLE],
    ],
    ids=["format", "gaps", "released", "objects"],
)
def test_views_and_structures_of_another_kind_are_described_anew(other: Any) -> None:
    """Behind calls that were recognised; what is no sum of floats is an error."""
    comm, x, y = fresh(), np.ones(8), np.zeros(8)
    for _ in range(3):
        comm.Allreduce(memoryview(x), y)
        comm.Allreduce([memoryview(x), MPI.DOUBLE], y)
        comm.Allreduce([np.zeros(8, "f8,f8"), 8, MPI.DOUBLE], y)
    with pytest.raises((ArgumentError, ValueError, MPI.Exception)):
        comm.Allreduce(other(x), y)
    comm.Free()


@pytest.mark.once
@pytest.mark.parametrize("kind", ["array.array", "memoryview", "ctypes"])
def test_the_library_is_given_elements(kind: str) -> None:
    """Of what stands alone, each time that it comes."""
    comm, y = fresh(), np.zeros(8)
    for turn in range(3):
        comm.Allreduce(SPECS[kind](np.full(8, turn + 1.0)), y, algorithm="native")
        assert (y == comm.size * (turn + 1)).all()
    comm.Free()


@pytest.mark.once
@pytest.mark.skipif(not SUPPORTED, reason="objects are laid out otherwise")
def test_calls_that_only_the_library_understands(described: list[str]) -> None:
    """MINLOC is described once, also where each call makes its structured type anew."""
    comm, wrong = fresh(), []
    pairs = np.zeros(4, np.dtype([("a", "f8"), ("b", "i4")], align=True))
    for turn in range(4):
        pairs["a"], pairs["b"] = comm.rank + turn, comm.rank
        found = pairs.astype(np.dtype([("a", "f8"), ("b", "i4")], align=True))
        comm.Allreduce([pairs, 4, MPI.DOUBLE_INT], [found, 4, MPI.DOUBLE_INT], MPI.MINLOC)
        wrong += unless((found["a"] == turn).all() and (found["b"] == 0).all(), found)
    wrong += unless(len(described) == 1, described)
    ensure_none(wrong)
    comm.Free()


def inside_call(thread: int) -> bool:
    """Say whether a thread is in a call that has not ended at once."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_name != "run_to_end":
        frame = frame.f_back
    return frame is not None


@pytest.mark.once
@pytest.mark.skipif(not SUPPORTED, reason="objects are laid out otherwise")
@pytest.mark.parametrize("form", ["blocking", "in flight", "persistent"])
def test_an_array_that_only_a_list_named_is_there_until_the_call_has_ended(form: str) -> None:
    """Another thread takes it out of the list, or the program does while the call is in flight; rank 0 calls behind that."""
    comm, y = fresh(), np.zeros(100)
    for _ in range(3):
        comm.Allreduce([np.ones(100), MPI.DOUBLE], y)
        comm.Iallreduce([np.ones(100), MPI.DOUBLE], y).Wait()
        comm.Allreduce_init([np.ones(100), MPI.DOUBLE], y).Free()
    spec = [np.full(100, comm.rank + 1.0), MPI.DOUBLE]
    array, main, lost = weakref.ref(spec[0]), threading.get_ident(), list[str]()

    def change() -> None:
        spec[0] = np.zeros(100)
        lost.extend(unless(array() is not None, "the array is gone"))
        MPI.COMM_WORLD.send(None, 0)

    def change_during_the_call() -> None:
        while not inside_call(main):
            pass
        change()

    request: Any = comm.Allreduce_init(spec, y) if form == "persistent" else None
    thread = threading.Thread(target=change_during_the_call)
    for rank in range(1, comm.size) if comm.rank == 0 else ():
        MPI.COMM_WORLD.recv(source=rank)
    if form == "blocking":
        if comm.rank:
            thread.start()
        comm.Allreduce(spec, y)
    else:
        request = comm.Iallreduce(spec, y) if request is None else request
        if comm.rank:
            change()
        if form == "persistent":
            request.Start()
        request.Wait()
    if thread.ident:
        thread.join()
    right = (y == comm.size * (comm.size + 1) / 2).all()
    ensure_none(lost + unless(right, y))
    comm.Free()
