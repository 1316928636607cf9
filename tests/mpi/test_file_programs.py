"""Programs of files in calls: written as MSCCL XML, read again, put in lanes and run on arrays of the host and of a GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_double import Double
from gpu_cases import read
from mpi4py import MPI
from reference import COLLECTIVES

import hpcoll
from hpcoll.formats.msccl_write import msccl_text
from hpcoll.formats.write import program_of
from hpcoll.registry.sources import read_file
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm, schedule

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD
OPERATORS = ((MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum))
KEYS = (
    "allreduce/two_shot",
    "allreduce/circulant",
    "allreduce/double_tree",
    "allgather/ring",
    "alltoall/pairwise",
    "reduce_scatter/ring",
)
COUNTS = (1, WORLD.size + 1, 30_001)  # elements of a vector or of a block


def of_file(key: str, folder: Path) -> Algorithm:
    """The row of a file that has a row's schedules for all ranks as thread blocks."""
    row = CATALOGUE[key]
    program = program_of(row, [schedule(row, WORLD.size, rank) for rank in range(WORLD.size)])
    path = folder / "of_file.xml"
    path.write_text(msccl_text(program).text)
    (found,) = read_file(path)
    return found


def contributions(count: int) -> np.ndarray:
    """Every rank's array of so many elements: small integers, so that sums and products are exact."""
    return np.random.default_rng(count).integers(1, 4, (WORLD.size, count)).astype("f8")


def values_of(array: Any) -> np.ndarray:
    """What an array of the host or of a GPU holds."""
    return array if isinstance(array, np.ndarray) else read(array)


def check(comm: hpcoll.Communicator, row: Algorithm, count: int, array: Any) -> None:
    """Call a row with so many elements in a vector or block, by every operator that it can have; ``array`` makes one of the elements."""
    p, r = comm.size, comm.rank
    blocks = row.collective != "allreduce"
    x = contributions(count * p if row.collective in ("alltoall", "reduce_scatter") else count)
    method = getattr(comm, COLLECTIVES[row.collective])
    for op, combine in OPERATORS if row.collective in ("allreduce", "reduce_scatter") else OPERATORS[:1]:
        if row.collective == "allgather":
            want = x.ravel()
        elif row.collective == "alltoall":
            want = x.reshape(p, p, count)[:, r].ravel()
        else:
            want = combine.reduce(x).reshape(-1, count)[r if blocks else 0]
        named = {"op": op} if row.collective in ("allreduce", "reduce_scatter") else {}
        received = array(np.full_like(want, -1))
        method(array(x[r].copy()), received, algorithm=row, **named)
        assert np.array_equal(values_of(received), want), (row.key, count, combine)
    if row.collective == "allreduce":
        both = array(x[r].copy())
        comm.Allreduce(MPI.IN_PLACE, both, algorithm=row.name)
        assert np.array_equal(values_of(both), x.sum(axis=0)), "in place"


@pytest.mark.parametrize("key", KEYS)
def test_thread_blocks_in_lanes_give_the_right_results(
    key: str, registering: hpcoll.Communicator, tmp_path: Path
) -> None:
    """Any count, also fewer elements than chunks, and every operator."""
    row = of_file(key, tmp_path)
    for count in COUNTS:
        check(registering, row, count, lambda values: values)


@pytest.mark.parametrize("key", ["allreduce/two_shot", "allgather/ring"])
def test_they_run_on_gpu_arrays(
    key: str, double: Double, registering: hpcoll.Communicator, tmp_path: Path
) -> None:
    """The same programs, lowered for streams of a GPU's double."""
    row = of_file(key, tmp_path)
    for count in COUNTS:
        check(registering, row, count, lambda values: double.Array(len(values), np.float64).fill(values))
