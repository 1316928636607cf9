"""Torch's own reader of flight records, fr_trace, on records of hpcoll's calls, by Communicator and by torch.distributed."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from mpi4py import MPI
from operations import LAST, NRANKS, RANK, Caller
from operations import all_gather_into_tensor as gathered

import hpcoll
from hpcoll.base.errors import MismatchError
from hpcoll.cli.inspect import fr_trace
from hpcoll.cli.inspect.flight_records import read
from hpcoll.comm.diagnosis.flight_recorder import write_record

WORLD = MPI.COMM_WORLD


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that all ranks share."""
    return WORLD.bcast(tmp_path)


def named(name: str) -> hpcoll.Communicator:
    """Return a communicator of all ranks with a name."""
    comm = hpcoll.Communicator(WORLD.Dup())
    comm.Set_name(name)
    return comm


def read_by_torch(folder: Path, group: str) -> list[Any]:
    """The calls on a communicator that torch's reader makes of the records of all ranks, which are written now, on all ranks."""
    reader = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    assert write_record(str(folder / "records"), "a test") is not None
    WORLD.Barrier()
    if RANK == 0:
        fr_trace.write(read([str(file) for file in (folder / "records").iterdir()]), folder / "torch")
        reader.main([str(folder / "torch"), "-o", str(folder / "read")])
    WORLD.Barrier()
    return [
        one
        for one in pickle.loads((folder / "read").read_bytes())[1].collectives
        if f":{group}" in one.pg_desc
    ]


def test_calls_that_went_well_match(folder: Path) -> None:
    """Torch's operations are there under the group's name, and no call is one of which the reader knows no match."""
    for by in (Caller(False, torch.device("cpu")), Caller(True, torch.device("cpu"))):
        gathered(by)
    found = read_by_torch(folder, "process group 0 (default_pg)")
    assert all(one.pass_check for one in found)
    assert any("Iallgather" in one.collective_name for one in found)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_has_not_come_is_named(folder: Path) -> None:
    """The others are in a call, of which the reader says that the last rank is missing."""
    comm = named("with a rank missing")
    given, got = torch.ones(5).numpy(), torch.zeros(5).numpy()
    request = comm.Iallreduce(given, got) if RANK != LAST else None
    WORLD.Barrier()
    found = [
        one for one in read_by_torch(folder, "with a rank missing") if not one.pass_check or one.missing_ranks
    ]
    assert [(one.missing_ranks, one.input_sizes, one.collective_state) for one in found] == [
        ({LAST}, [[5]], "started")
    ]
    (request or comm.Iallreduce(given, got)).Wait()
    assert got.tolist() == [NRANKS] * 5
    comm.Free()


@pytest.mark.mpi(min_size=2)
def test_calls_that_differ_are_told(folder: Path) -> None:
    """The reader says of which types they are."""
    comm, given = named("with calls that differ"), torch.ones(5).numpy()
    call, got = (comm.Allgather, 5 * NRANKS) if RANK == LAST else (comm.Allreduce, 5)
    with pytest.raises(MismatchError):
        call(given, torch.zeros(got).numpy())
    (found,) = [one for one in read_by_torch(folder, "with calls that differ") if not one.pass_check]
    said = " ".join(str(other.type_of_mismatch) for other in found.mismatch_collectives.values())
    assert "COLLECTIVE_TYPE_MISMATCH" in said
    assert "all_reduce" in said
    assert "all_gather" in said
