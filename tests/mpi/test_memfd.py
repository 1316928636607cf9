"""Ranks share memory of ``memfd_create`` where the file system of /dev/shm makes no files without names, as in some sandboxes."""

import errno
import logging
import operator
import os
from collections.abc import Iterator
from typing import Any

import pytest
from gpu_cases import forced
from gpu_double import allreduce
from internals import context, free_kept, resources
from mapped_memory import holdings, mapping_of, shares
from mpi4py import MPI
from reference import ALGORITHMS, ensure_none, fresh, unless
from test_collectives import run

import hpcoll

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def _no_nameless_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = os.open

    def refusing(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return real(path, flags, *arguments, **options)

    free_kept()
    monkeypatch.setattr(os, "open", refusing)
    yield
    free_kept()


def alone(comm: hpcoll.Communicator) -> bool:
    """Say whether this rank, if it has neighbours, shares memory with them."""
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    found = shares(comm) == (here.size > 1)
    here.Free()
    return found


@pytest.mark.once
def test_windows_and_collectives(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOLL_DEBUG", "info")  # a group of its own, which says what it finds
    with caplog.at_level(logging.INFO, "hpcoll"):
        comm = fresh()
    wrong: list[Any] = unless(alone(comm), "no shared memory")
    told = any(
        "files of memory alone (memfd), because /dev/shm makes none without a name" in text
        for text in caplog.messages
    )
    wrong += unless(told == (shares(comm) and resources(comm).node.rank == 0), caplog.messages)
    for collective, algorithm in ALGORITHMS:
        wrong += unless(run(comm, collective, 40_001, 0, algorithm=algorithm), (collective, algorithm))
    x, before = comm.empty(1000), holdings()
    wrong += unless(not shares(comm) or mapping_of(x)["name"].startswith("/memfd:hpcoll"), mapping_of(x))
    x[:] = 1
    comm.Allreduce(MPI.IN_PLACE, x)
    wrong += unless((x == comm.size).all(), x)
    # less: what earlier tests left has gone
    wrong += unless(all(map(operator.le, holdings(), before)), (holdings(), before))
    ensure_none(wrong)
    comm.Free()


@pytest.mark.double
def test_gpus_map_each_others_memory(double: Any) -> None:
    with forced("ipc"):
        comm = hpcoll.Communicator(MPI.COMM_WORLD.Dup())
    wrong = unless(allreduce(comm, double), "wrong")
    readers = len(context(comm).gpu._routes._readers)
    wrong += unless(readers == resources(comm).node.nranks - 1, readers)
    ensure_none(wrong)
    comm.Free()
