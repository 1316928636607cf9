"""Read-only copies of the root's array, one for all ranks of a node."""

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from internals import resources
from mapped_memory import barrier, holdings, mapping_of, shares
from reference import communicator, ensure, ensure_none

from hpcoll.comm.team import symmetric_memory

pytestmark = pytest.mark.mpi
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


def test_ranks_of_a_node_have_one_copy() -> None:
    comm = communicator()
    found = comm.share(np.arange(1000.0), root=comm.size // 2)
    if not shares(comm):
        pytest.skip("needs two ranks on a node")
    seen = resources(comm).node.comm.allgather(mapping_of(found)["inode"])
    ensure_none([] if len(set(seen)) == 1 and seen[0] != "0" else seen)


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
    nmapped = [one[0] - found[0][0] for one in found]
    right = kept and nmapped[1] == (20 if shares(comm) else 0) and nmapped[2] <= 1 and found[3] <= found[0]
    ensure(right, (kept, found))
