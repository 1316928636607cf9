"""Symmetric memory that cannot be had: the same error on every rank, nothing left behind, and ordinary memory where none is shared."""

import logging
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from internals import resources
from launching import command, finished
from mapped_memory import holdings, limited, shares
from mpi4py import MPI
from reference import agreed, communicator, ensure, ensure_none, fresh, unless

import hpcoll
from hpcoll.base.errors import ArgumentError
from hpcoll.runtime.transports import local_ranks, window

pytestmark = [pytest.mark.mpi, pytest.mark.once]
WORLD = MPI.COMM_WORLD
LAST = WORLD.size - 1
OTHER = "rank {last}: the call must be equal on all ranks, expected {expected!r} as on rank 0, got {got!r}"


def error_of(call: Callable[[], Any]) -> str:
    """Return what is raised, without what could keep memory alive."""
    try:
        call()
    except ArgumentError as error:
        return str(error)
    return "nothing was refused"


def same_everywhere(call: Callable[[], Any]) -> str:
    """The error's text, which must be the same on all ranks and leave the communicator usable."""
    comm = communicator()
    text = error_of(call)
    texts = comm.allgather(text)
    assert texts == texts[:1] * comm.size
    x = comm.zeros(100)
    x[:] = 1
    comm.Allreduce(MPI.IN_PLACE, x)
    ensure((x == comm.size).all(), x)
    return text


def on_last(wrong: Any, right: Any) -> Any:
    return wrong if communicator().rank == LAST else right


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "negative": (lambda c: c.empty(on_last(-1, 3)), "empty needs a shape of integers >= 0, got -1"),
    "fraction": (lambda c: c.empty(on_last(3.0, 3)), "empty needs a shape of integers >= 0, got 3.0"),
    "no array": (
        lambda c: c.like(on_last([1, 2], np.ones(2))),
        "like needs a shape of integers >= 0, got None",
    ),
    "objects": (
        lambda c: c.empty(3, on_last(object, "f8")),
        "empty needs elements of fixed size, got dtype('O')",
    ),
    "beyond": (
        lambda c: c.empty(on_last((1 << 40, 1 << 30), 3)),
        f"empty needs at most {1 << 46} bytes, got {1 << 73} for shape",
    ),
    "root": (
        lambda c: c.share(np.ones(3), root=on_last(c.size, 0)),
        f"root must be a rank below {WORLD.size}, got {WORLD.size}",
    ),
    "shared objects": (
        lambda c: c.share([None], root=LAST),
        "share needs elements of fixed size, got dtype('O')",
    ),
    "no shape": (lambda c: c.share([[1], [1, 2]], root=LAST), "share needs an array, got a list: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_rank_is_wrong(name: str) -> None:
    call, text = REFUSED[name]
    assert same_everywhere(lambda: call(communicator())).startswith(f"rank {LAST}: {text}")


DIFFERENT: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "shape": (
        lambda c: c.empty(on_last(4, 3)),
        "empty with shape (3,) of float64",
        "empty with shape (4,) of float64",
    ),
    "type": (
        lambda c: c.empty(3, on_last("f4", "f8")),
        "empty with shape (3,) of float64",
        "empty with shape (3,) of float32",
    ),
    "method": (
        lambda c: on_last(c.zeros, c.empty)(3),
        "empty with shape (3,) of float64",
        "zeros with shape (3,) of float64",
    ),
    "root": (
        lambda c: c.share(np.ones(3), root=on_last(LAST, 0)),
        "share with root 0",
        f"share with root {LAST}",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_differ(name: str) -> None:
    if WORLD.size == 1:
        pytest.skip("needs two ranks")
    call, expected, got = DIFFERENT[name]
    assert same_everywhere(lambda: call(communicator())) == OTHER.format(
        last=LAST, expected=expected, got=got
    )


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * window.PAGE


CALLS: dict[str, Callable[[Any], Any]] = {
    "empty": lambda comm: comm.empty(16 << 20),
    "share": lambda comm: comm.share(np.zeros(16 << 20) if comm.rank == 0 else None),
}


@pytest.mark.parametrize("method", CALLS)
def test_only_one_rank_has_no_room(method: str) -> None:
    """The last rank's share of the work fails, after others have done theirs."""
    comm = communicator()
    if agreed(unless(shares(comm), "alone")):
        pytest.skip("needs all ranks on nodes with others")
    comm.empty(3)
    before = holdings()
    with limited(resource.RLIMIT_AS, address_space() + (64 << 20), comm.rank == LAST):
        text = error_of(lambda: CALLS[method](comm))
    ensure(text.startswith(f"rank {LAST}: ") and "[Errno 12] Cannot allocate memory" in text, text)
    comm.empty(3)
    ensure_none([(holdings(), before)] if any(now > then for now, then in zip(holdings(), before)) else [])


def test_a_stranger_with_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between containers with processes of their own: the file that the number leads to is left alone."""
    comm = communicator()
    if agreed(unless(shares(comm), "alone")):
        pytest.skip("needs all ranks on nodes with others")
    before = holdings()
    if comm.rank == 0:
        monkeypatch.setattr(local_ranks.os, "getpid", os.getppid)
    text = error_of(lambda: comm.empty(1000))
    monkeypatch.undo()
    ensure(re.match(r"rank [1-9]\d*: .* shared memory cannot be had: .*/proc/\d+/fd/\d+", text), text)
    ensure_none([(holdings(), before)] if any(now > then for now, then in zip(holdings(), before)) else [])


def test_no_files_can_be_made() -> None:
    """Communicators made then use MPI messages; those that share memory refuse to make more."""
    comm = communicator()
    with limited(resource.RLIMIT_FSIZE, 0):
        text = error_of(lambda: comm.empty(1000))
        copy = fresh()
        x = copy.zeros(1000)
    assert not shares(copy)
    if shares(comm):
        assert "File too large" in text
        assert "File too large" in resources(copy).node.refused
    x[:] = 1
    copy.Allreduce(MPI.IN_PLACE, x)
    ensure((x == comm.size).all(), x)
    copy.Free()


def test_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts what all communicators have, and what was given back no more."""
    comm = communicator()
    if agreed(unless(shares(comm), "alone")):
        pytest.skip("needs all ranks on nodes with others")
    comm.empty(1)
    used = comm.allreduce(window.mapped_nbytes(), op=MPI.MAX)
    monkeypatch.setenv("HPCOLL_SHM", str(used + (100 << 20)))
    small = fresh()
    assert shares(small)
    count = (60 << 20) // comm.size
    x = small.empty(count, np.uint8)
    text = same_everywhere(lambda: small.empty(count, np.uint8))
    assert re.fullmatch(
        r"rank 0: 60(\.\d)? MiB of shared memory cannot be had: .* are in use, the limit is .* \(HPCOLL_SHM\)",
        text,
    )
    same_everywhere(lambda: small.share(np.zeros(60 << 20, np.uint8)))
    y = comm.empty(count, np.uint8)  # this one's limit is another, but it counts there
    del x
    assert "HPCOLL_SHM" in same_everywhere(lambda: small.empty(count, np.uint8))
    del y
    x = small.empty(count, np.uint8)
    x[:] = 1
    del x
    small.Free()


@pytest.mark.parametrize("setting", ["HPCOLL_SHM=0", "HPCOLL_SHM_RANKS=1", "alone"])
def test_ordinary_memory(
    setting: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name, _, value = setting.partition("=")
    if value:
        monkeypatch.setenv(name, value)
    comm = hpcoll.Communicator(MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank)) if setting == "alone" else fresh()
    monkeypatch.undo()
    before = holdings()
    with caplog.at_level(logging.INFO, "hpcoll"):
        x, table = comm.zeros((3, 5), np.float32), comm.share(np.arange(6.0) if comm.rank == 0 else None)
    why = (
        "HPCOLL_SHM is 0"
        if setting == "HPCOLL_SHM=0" and comm.size > 1
        else "no other rank of the communicator is on its node"
    )
    assert f"rank {comm.rank}: its arrays are ordinary memory: {why}" in caplog.text
    assert holdings()[0] <= before[0]
    assert (x.ctypes.data % 64, x.flags.c_contiguous, x.tolist()) == (0, True, [[0] * 5] * 3)
    assert table.tolist() == list(range(6))
    x[:] = 1
    comm.Allreduce(MPI.IN_PLACE, x)
    ensure((x == comm.size).all(), x)
    comm.Free()


def test_closed() -> None:
    comm = communicator().Dup()
    comm.Free()
    for call in (
        lambda: comm.empty(3),
        lambda: comm.zeros(3),
        lambda: comm.like(np.ones(3)),
        lambda: comm.share(3),
    ):
        assert (
            error_of(call)
            == f"rank {communicator().rank}: this communicator cannot be used: the communicator was freed"
        )


SCRIPT = """
import os
import numpy as np
from mpi4py import MPI
import hpcoll
comm = hpcoll.Communicator(MPI.COMM_WORLD)
comm_rank, x, table = comm.rank, comm.zeros(5000), comm.share(np.arange(9.0))
comm.Allreduce(MPI.IN_PLACE, x)
MPI.Finalize()
x += 1
assert x.sum() + table.sum() == 5036, x
os.write(1, b"fine\\n")
if comm_rank:
    del x, table
"""


def test_arrays_outlive_mpi() -> None:
    """In a job of two ranks of its own."""
    done = finished(command(2, SCRIPT, head=""), {}) if WORLD.rank == 0 else None
    WORLD.Barrier()
    assert done is None or (done.returncode, done.stdout) == (0, "fine\n" * 2), done.stderr
