"""Programs of files in calls: written as MSCCL XML, read again, put in lanes and run."""

from pathlib import Path

import pytest
from forms import Case, blocking
from mpi4py import MPI
from reference import COLLECTIVES, ensure_none

import hpcoll
from hpcoll.formats.msccl_write import msccl_text
from hpcoll.formats.write import program_of
from hpcoll.registry.sources import read_file
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.row import Algorithm, schedule

pytestmark = pytest.mark.mpi(min_size=2)
WORLD = MPI.COMM_WORLD
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


@pytest.mark.parametrize("key", KEYS)
def test_thread_blocks_in_lanes_give_the_right_results(
    key: str, registering: hpcoll.Communicator, tmp_path: Path
) -> None:
    """Any count, also fewer elements than chunks."""
    row = of_file(key, tmp_path)
    method, places = COLLECTIVES[row.collective], (False, True) if row.collective == "allreduce" else (False,)
    cases = [Case(registering, method, count, in_place=place) for count in COUNTS for place in places]
    ensure_none([case for case in cases if not blocking(registering, case, algorithm=row)])
