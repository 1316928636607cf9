"""``hpcoll tune`` on all ranks of a test."""

from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcoll.cli import main

WORLD = MPI.COMM_WORLD
QUICK = ["-b", "8", "-e", "40K", "-f", "64", "--types", "float32", "--seconds", "3"]


def table_in(folder: Path) -> Path:
    """One path for all ranks, in rank 0's folder."""
    return Path(WORLD.bcast(folder / "table.json"))


def tune(*arguments: Any) -> int:
    """Exit code; equal on all ranks, or the test fails on all."""
    codes = WORLD.allgather(main(["tune", *map(str, arguments)]))
    assert codes == codes[:1] * WORLD.size
    return codes[0]
