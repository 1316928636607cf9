"""Every collective where CPython, NumPy or what `gc` tells of mpi4py's objects differs from what hpcoll knows: the slower ways are right.

Each change is made once all packages are loaded, and before hpcoll looks at them. It starts a job of its own.
"""

from pathlib import Path

import pytest
from launching import STARTS_JOBS, command, finished

pytestmark = [*STARTS_JOBS, pytest.mark.once, pytest.mark.ci]

NRANKS = 2
HEAD = """
import gc, os, sys
import llvmlite.binding, ml_dtypes, numba, numpy
import numba.core
from mpi4py import MPI
"""
CHANGES = {
    "python": "sys.implementation.name = 'another'",
    "numpy": "from hpcoll.runtime.program import call_fields; call_fields.DATA = call_fields.DESCR",
    "referents": "gc.get_referents = lambda *_: []",
}
# what has noticed it, and what others still rely on
SEEN = {
    "python": "(not layout.SUPPORTED, not layout.HOLDERS, layout.BYTES_LENGTH_AT is None, not layout.FLOATS_SUPPORTED)",
    "numpy": "(not layout.SUPPORTED, bool(layout.HOLDERS), layout.BYTES_LENGTH_AT is not None)",
    "referents": "(layout.SUPPORTED, serializer.current().protocol is None, not replaced.install())",
}
PROGRAM = f"""
sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
import hpcoll, platform_smoke
from hpcoll.comm.objects import serializer
from hpcoll.comm.requests import replaced
from hpcoll.runtime.engine import object_layout as layout
platform_smoke.COUNTS = 5, 3000
wrong = platform_smoke.wrong(hpcoll.Communicator(MPI.COMM_WORLD))
with open(os.environ["SAID"], "a") as file:
    file.write(f"rank {{MPI.COMM_WORLD.rank}} {{wrong}} {{all(SEEN)}}\\n")
"""


@pytest.mark.parametrize("change", CHANGES)
def test_every_collective(change: str) -> None:
    script = f"{CHANGES[change]}\n{PROGRAM.replace('SEEN', SEEN[change])}"
    done = finished(command(NRANKS, script, head=HEAD), {})
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()[:NRANKS]) == [f"rank {rank} [] True" for rank in range(NRANKS)]
