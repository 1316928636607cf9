"""Messages that ranks of a node read in each other's own memory: right answers and the same bits, what is not read so, what goes wrong."""

import mmap
from typing import Any

import numpy as np
import pytest
from internals import context, resources
from mpi4py import MPI
from reference import ALGORITHMS, communicator, ensure, ensure_none, fresh, representative, unless
from test_collectives import run, run_in_place

import hpcoll
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.transports import local_ranks
from hpcoll.runtime.transports.cross_memory import LEAST_NBYTES

pytestmark = pytest.mark.mpi

OURS = [(collective, algorithm) for collective, algorithm in ALGORITHMS if algorithm != "native"]
COUNT = 40_009  # of 8 bytes: several lanes, the last one shorter


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> hpcoll.Communicator:
    """A communicator whose ranks read all but short messages where they lie."""
    if communicator().size == 1:
        pytest.skip("needs a peer")
    monkeypatch.setenv("HPCOLL_SHM_COPY", "cma")
    comm = fresh()
    assert resources(comm).node.own_memory is not None
    return comm


def engines(comm: Any) -> list[Any]:
    found: list[Any] = context(comm).planner.engines()
    return found


def lent(comm: Any) -> bool:
    """Say whether a buffer of any call, as an engine has it still, was lent to the peers."""
    least = f.OWN_MEMORY << f.OFFSET_BITS
    return any(
        engine.rings is not None and engine.state[[f.WHERE_INPUT, f.WHERE_OUTPUT]].max() >= least
        for engine in engines(comm)
    )


@pytest.mark.parametrize(("collective", "algorithm"), representative(OURS))
def test_right_answers(reading: hpcoll.Communicator, collective: str, algorithm: str) -> None:
    """Messages around the least that is read so, and of several lanes; others are staged in the same call, or travel in ring slots."""
    counts = (7, LEAST_NBYTES // 8 - 1, LEAST_NBYTES // 8, COUNT)
    wrong = [
        (runner.__name__, count)
        for runner in (run, run_in_place)
        for count in counts
        if not runner(reading, collective, count, reading.size - 1, algorithm=algorithm)
    ]
    ensure_none(wrong)
    reading.Free()


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("collective", "algorithm"), representative([one for one in OURS if one[0] == "allreduce"])
)
def test_same_bits(
    reading: hpcoll.Communicator, collective: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order in which contributions are combined is the algorithm's, whatever way they came."""
    monkeypatch.setenv("HPCOLL_SHM_COPY", "staged")
    comm, rng = fresh(), np.random.default_rng(reading.rank)
    x = rng.random(COUNT, np.float32)
    staged, read = np.zeros_like(x), np.zeros_like(x)
    comm.Allreduce(x, staged, algorithm=algorithm)
    reading.Allreduce(x, read, algorithm=algorithm)
    ensure(staged.tobytes() == read.tobytes(), algorithm)
    assert lent(reading)
    assert not lent(comm)
    comm.Free()
    reading.Free()


def test_requests(reading: hpcoll.Communicator) -> None:
    """What is in flight is lent until the wait, and a persistent request looks at its buffers each time."""
    x, wrong = np.full(COUNT, 1.0 + reading.rank), []
    for _ in range(3):
        sums = [np.zeros(COUNT) for _ in range(3)]
        MPI.Request.Waitall([reading.Iallreduce(x, one) for one in sums])
        wrong += [one[-1] for one in sums if (one != reading.size * (reading.size + 1) / 2).any()]
    again = np.zeros(COUNT)
    request = reading.Bcast_init(again, root=reading.size - 1)
    for turn in range(3):
        again[:] = turn if reading.rank == reading.size - 1 else -1
        request.Start()
        request.Wait()
        wrong += unless((again == turn).all(), (turn, again[0]))
    request.Free()
    ensure_none(wrong)
    reading.Free()


def test_where_ranks_cannot_read_each_others_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One rank that cannot is enough for all to stage; who asked for the other way is told why."""
    if communicator().size == 1:
        pytest.skip("needs a peer")
    last = communicator().rank == communicator().size - 1
    monkeypatch.setattr(local_ranks, "_reading", [])
    monkeypatch.setattr(
        local_ranks, "refusal", lambda word: "process_vm_readv: Operation not permitted" if last else ""
    )
    monkeypatch.setenv("HPCOLL_SHM_COPY", "cma")
    comm = fresh()
    assert resources(comm).node.own_memory is None
    ensure(run(comm, "allreduce", COUNT, 0, algorithm="two_shot"), "wrong")
    assert not lent(comm)
    if comm.rank == 0:
        assert (
            f"rank {comm.size - 1} not that of rank 0: process_vm_readv: Operation not permitted"
            in caplog.text
        )
    comm.Free()


def test_memory_that_peers_may_not_read_is_staged(reading: hpcoll.Communicator) -> None:
    """It is found out before it is announced. Here pages are for writing only, which the processor lets their process read, too."""
    with mmap.mmap(-1, 16 * mmap.PAGESIZE, prot=mmap.PROT_WRITE) as pages:
        x = np.frombuffer(pages, np.uint8)
        x[:] = 7 if reading.rank == 0 else 0
        reading.Bcast(x, algorithm="direct")
        wrong = unless((x == 7).all(), "answer")
        del x
    ensure_none(wrong + ["was lent"] * lent(reading))
    y = np.full(COUNT, reading.rank)
    reading.Bcast(y, algorithm="direct")
    ensure(lent(reading), "other memory is not")
    reading.Free()
