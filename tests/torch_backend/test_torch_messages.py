"""Messages between two ranks of a process group arrive where and as torch.distributed says, and its barrier names who is missing."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from operations import NRANKS, RANK, RANKS, Caller

LATE_S = 0.3


@pytest.fixture
def by(device: torch.device) -> Caller:
    return Caller(False, device)


@pytest.mark.mpi(min_size=2)
def test_tags_tell_messages_apart(by: Caller) -> None:
    """The later one is received first, into memory with gaps."""
    before, behind = (RANK - 1) % NRANKS, (RANK + 1) % NRANKS
    sent = [dist.isend(by.given(RANK, 4 + tag), behind, tag=tag) for tag in (0, 7)]
    around = by.empty(11, 2)
    assert dist.recv(around[:, 0], before, tag=7) == before
    first = by.empty(4)
    dist.recv(first, before, tag=0)
    for work in sent:
        work.wait()
    assert torch.equal(around[:, 0], by.given(before, 11))
    assert not around[:, 1].any()
    assert torch.equal(first, by.given(before, 4))


@pytest.mark.mpi(min_size=2)
def test_callbacks_of_messages_run_as_they_arrive() -> None:
    """The first waits for a message that comes last."""
    if RANK == 0:
        tensors, seen = [torch.zeros(1), torch.zeros(1)], []
        works = [dist.irecv(one, 1, tag=tag) for tag, one in enumerate(tensors)]
        done = [
            work.get_future().then(lambda future: seen.append(float(future.value()[0]))) for work in works
        ]
        done[1].wait()
        dist.send(torch.ones(1), 1)
        done[0].wait()
        assert seen == [1.0, 0.0]
    if RANK == 1:
        dist.send(torch.ones(1), 0, tag=1)
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.zeros(1), 0, tag=0)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("names_all", [False, True])
def test_monitored_barrier_names_who_is_missing(names_all: bool) -> None:
    group, limit = dist.new_group(), timedelta(seconds=LATE_S)
    if RANK == 0:
        missing = f"Ranks {', '.join(map(str, RANKS[1:]))}" if names_all and NRANKS > 2 else "Rank 1"
        with pytest.raises(
            RuntimeError, match=f"Rank 0 .*: {missing} failed to pass monitoredBarrier in {1e3 * LATE_S:g} ms"
        ):
            dist.monitored_barrier(group, limit, wait_all_ranks=names_all)
    time.sleep(LATE_S if RANK else 0)
    dist.barrier()
    if RANK:
        with pytest.raises(RuntimeError, match=f"Rank {RANK} .* rank 0"):
            dist.monitored_barrier(group, limit)
    dist.destroy_process_group(group)
