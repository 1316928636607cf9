"""torch's own suite for backends of torch.distributed, unmodified, on the backend hpcoll: one process per rank, all cases in each.

The suite decides by name, when it is imported, what a backend can: it is told "gloo", whose cases are those for CPUs. What it then runs is
hpcoll. `table` says what does not run.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
import table
from mpi4py import MPI

from hpcoll.torch import NAME

WORLD = MPI.COMM_WORLD
ENOUGH = 4  # ranks for cases with groups of several
FOLDER = Path(WORLD.bcast(tempfile.mkdtemp() if WORLD.rank == 0 else None))  # where ranks of the suite meet
os.environ |= {
    "BACKEND": "gloo",
    "WORLD_SIZE": str(WORLD.size),
    "TEMP_DIR": str(FOLDER),
    "INIT_METHOD": "env://",
}

import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed, common_utils  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402


class Backend(str):
    """A backend's name that passes for gloo's, where cases ask for that."""

    def __eq__(self, other: object) -> bool:
        return other in ("gloo", NAME)

    __hash__ = str.__hash__


distributed_test.BACKEND = Backend(NAME)
# cases that want eight ranks of other backends want them not of MPI's
os.environ["BACKEND"] = "mpi" if WORLD.size >= ENOUGH else NAME
SKIPS = {one.exit_code: one.message for one in common_distributed.TEST_SKIPS.values()}


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[None]:
    """Goes with the last case."""
    yield
    WORLD.Barrier()
    if WORLD.rank == 0:
        shutil.rmtree(FOLDER)


class TestDistributed(distributed_test.DistributedTest._DistTestBase, common_utils.TestCase):
    """The suite's cases, each with a process group of its own."""

    rank, world_size = WORLD.rank, str(WORLD.size)
    init_method = None

    def setUp(self) -> None:
        """Do what the suite's own launcher does for each case."""
        super().setUp()
        WORLD.Barrier()  # nobody looks for files of the last case any more
        if WORLD.rank == 0:
            for name in ("barrier", "test_dir", "init_dir"):
                shutil.rmtree(FOLDER / name, ignore_errors=True)
                (FOLDER / name).mkdir()
        distributed_test.Barrier.barrier_id = 0
        WORLD.Barrier()
        limit_s = distributed_test.CUSTOM_PG_TIMEOUT.get(
            self._testMethodName, distributed_test.default_pg_timeout
        )
        dist.init_process_group(NAME, timeout=timedelta(seconds=limit_s))

    def tearDown(self) -> None:
        """Of groups that the case has left."""
        if dist.is_initialized():
            dist.destroy_process_group()
        super().tearDown()

    def run(self, result: Any = None) -> Any:
        """A case that leaves the process with a certain status says that it is skipped."""
        method = getattr(self, self._testMethodName)

        def leaving() -> None:
            try:
                method()
            except SystemExit as left:
                raise SkipTest(SKIPS[left.code]) from None

        setattr(self, self._testMethodName, leaving)
        return super().run(result)


for _name in dir(TestDistributed):
    _why = next((why for pattern, why in table.NOT_RUN.items() if fnmatchcase(_name, pattern)), None)
    if _name.startswith("test_") and _why:
        setattr(TestDistributed, _name, pytest.mark.skip(reason=_why)(getattr(TestDistributed, _name)))
