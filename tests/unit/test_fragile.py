"""Private parts of CPython, NumPy, Numba, mpi4py and MPI libraries that hpcoll uses: altered, their guards refuse or fall back.

`docs/development/internals.md` has a row for each place.
"""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest
from mpi4py import MPI

from hpcoll.base.errors import TransportError
from hpcoll.comm.objects import serializer
from hpcoll.comm.status import call_site
from hpcoll.kernels import object_code
from hpcoll.runtime.engine import call_cache, object_layout
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.transports import mpi

ROOT = Path(__file__).resolve().parents[2]


def test_what_rows_of_the_page_name_is_there() -> None:
    page = (ROOT / "docs/development/internals.md").read_text()
    rows = re.findall(r"^\| `([\w/.]+)` (\(`\w+`\)) \|", page, re.MULTILINE)
    assert rows
    assert [file for file, name in rows if name.strip("(`)") not in (ROOT / file).read_text()] == []


def test_numba_is_one_that_was_tried() -> None:
    bound = re.search(r"numba>=[\d.]+,<([\d.]+)", (ROOT / "setup.cfg").read_text())
    assert bound, "setup.cfg needs an upper bound of Numba"
    untried = tuple(map(int, bound[1].split(".")))
    assert untried == object_code._UNTRIED, "hpcoll/kernels/object_code.py has another bound than setup.cfg"
    passed = tuple(map(int, numba.__version__.split(".")[:2])) >= untried
    assert not passed, (
        f"Numba {numba.__version__} is past the bound {bound[1]}: run tests/run.sh full with it, then move both bounds"
    )


def test_a_numba_cuda_without_a_name_is_refused() -> None:
    program = """
import sys
sys.modules["numba.cuda.cudadrv"] = None
from hpcoll.base.errors import KernelError
from hpcoll.runtime.gpu.device import kernels
try:
    kernels()
except KernelError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("kernels for GPU arrays need numba-cuda")


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("TYPE_OF", 0),
        ("DATA", 4),
        ("NDIM", 0),
        ("DIMENSIONS", 5),
        ("DESCR", 6),
        ("FLAGS", 0),
        ("SCALAR", 1),
        ("SIZE", 1),
        ("ITEMS", 1),
        ("FIRST_ITEM", 2),
    ],
)
def test_another_layout_of_objects_is_seen(field: str, word: int) -> None:
    assert object_layout.SUPPORTED
    assert not object_layout.is_supported(SimpleNamespace(**vars(c) | {field: word}))


def test_the_call_cache_stays_empty_where_the_layout_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported in (True, False):
        monkeypatch.setattr(call_cache, "SUPPORTED", supported)
        table = call_cache.CallTable(0, 1, 0)
        table.enter(
            None,
            call_cache.BufferPattern(c.ABSENT),
            call_cache.BufferPattern(c.ABSENT),
            call_cache.CachedCall(None, None),
        )
        assert len(table.calls) == supported


def test_another_serializer_is_seen() -> None:
    """A pickle that the program has set is called by its methods."""
    assert serializer.current().protocol == MPI.pickle.PROTOCOL
    MPI.pickle.__init__(lambda obj, protocol=None: b"theirs", lambda data: "loaded")  # type: ignore[misc]
    try:
        used = serializer.current()
        assert (used.dumps(1), used.loads(b""), used.protocol) == (b"theirs", "loaded", None)
    finally:
        MPI.pickle.__init__()  # type: ignore[misc]
    assert serializer.current().protocol == MPI.pickle.PROTOCOL


def test_other_statuses_are_refused() -> None:
    assert mpi.library()
    with pytest.raises(TransportError, match="statuses and requests need"):
        mpi.library.__wrapped__(8)


def test_a_function_that_is_missing_is_named() -> None:
    assert mpi.function_address("memcpy")
    with pytest.raises(AttributeError, match="MPI_No_such_function"):
        mpi.function_address("MPI_No_such_function")


def test_a_variable_of_the_library_is_set() -> None:
    """Open MPI has it; whether it is set shows in another process, whose MPI never starts."""
    program = "import ctypes, mpi4py; mpi4py.rc.initialize = False; from hpcoll.runtime.transports import mpi; mpi.end_without_barrier()"
    shown = "; print(ctypes.c_bool.in_dll(ctypes.CDLL(mpi.MPI.__file__), mpi._ASYNC_FINALIZE).value)"
    if "Open MPI" in MPI.Get_library_version():
        command = [sys.executable, "-c", program + shown]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.parametrize("name", ["context", "renamed"])
def test_a_context_of_another_name_counts_as_not_alone(name: str) -> None:
    space: dict[str, Any] = {"__name__": "hpcoll.comm.methods.blocking", "left_alone": call_site.left_alone}
    exec(f"def Allreduce({name}):\n    return left_alone({name})", space)
    assert space["Allreduce"](object()) == (name == "context")
