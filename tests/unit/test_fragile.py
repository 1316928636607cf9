"""Each private part of CPython, NumPy, Numba, mpi4py and MPI libraries that hpcoll uses: altered, its guard refuses or falls back.

`docs/development/internals.md` has a row for each place, and each row has a test here, or where `PLACES` says.
"""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest
from mpi4py import MPI

from hpcoll.base.errors import TransportError
from hpcoll.comm.objects import serializer
from hpcoll.comm.requests import replaced
from hpcoll.comm.status import call_site
from hpcoll.comm.team import hard_exit
from hpcoll.kernels import machine_code, object_code
from hpcoll.runtime.engine import call_cache, object_layout
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.transports import cross_memory, mpi

ROOT = Path(__file__).resolve().parents[2]
PLACES = {
    "hpcoll/runtime/engine/compiled/spec_reader.py (`keep`)",  # tests/mpi/test_call_patterns.py
    "hpcoll/comm/status/regions.py (`Region`)",  # tests/unit/test_regions.py
}


def guards(place: str) -> Callable[[Any], Any]:
    """Note which row of the page a test is of."""
    PLACES.add(place)
    return lambda test: test


def twice(number: int) -> int:
    return 2 * number


def test_the_page_has_a_row_for_each_place() -> None:
    page = (ROOT / "docs/development/internals.md").read_text()
    rows = re.findall(r"^\| `([\w/.]+)` (\(`\w+`\)) \|", page, re.MULTILINE)
    assert {f"{file} {name}" for file, name in rows} == PLACES
    assert [file for file, name in rows if name.strip("(`)") not in (ROOT / file).read_text()] == []


@guards("hpcoll/kernels/object_code.py (`_left_out`)")
@pytest.mark.parametrize("changed", ["release", "class"])
def test_another_numba_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    assert len(object_code._left_out()) == 6
    with monkeypatch.context() as patch:
        if changed == "release":
            patch.setattr(numba, "__version__", "0.70.1")
        else:
            patch.setattr(object_code, "import_module", lambda name: SimpleNamespace())
        assert object_code._left_out() == ()
        patch.delattr(object_code, "_without_machine_code")
        file = object_code.object_file(twice, "int64(int64)", "twice")
    address = machine_code.placed(file, "twice") or machine_code._placed_by_llvm(file, "twice")
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(21) == 42


@guards("setup.cfg (`install_requires`)")
def test_numba_is_one_that_was_tried() -> None:
    bound = re.search(r"numba>=[\d.]+,<([\d.]+)", (ROOT / "setup.cfg").read_text())
    assert bound, "setup.cfg needs an upper bound of Numba"
    untried = tuple(map(int, bound[1].split(".")))
    assert untried == object_code._UNTRIED, "hpcoll/kernels/object_code.py has another bound than setup.cfg"
    passed = tuple(map(int, numba.__version__.split(".")[:2])) >= untried
    assert not passed, (
        f"Numba {numba.__version__} is past the bound {bound[1]}: run tests/run.sh full with it, then move both bounds"
    )


@guards("hpcoll/kernels/machine_code.py (`placed`)")
def test_an_object_file_for_another_processor_is_left_to_llvm() -> None:
    file = bytearray(object_code.object_file(twice, "int64(int64)", "twice"))
    file[18:20] = (183).to_bytes(2, "little")  # ARM64
    assert machine_code.placed(bytes(file), "twice") is None


@guards("hpcoll/kernels/device.py (`fold`)")
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


@guards("hpcoll/runtime/engine/object_layout.py (`SUPPORTED`)")
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
def test_another_layout_of_objects_is_seen(monkeypatch: pytest.MonkeyPatch, field: str, word: int) -> None:
    assert object_layout.SUPPORTED
    assert object_layout._supported()
    monkeypatch.setattr(c, field, word)
    assert not object_layout._supported()


def test_another_place_of_handles_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_layout, "HANDLE_AT", object_layout.HANDLE_AT + 1)
    assert not object_layout._supported()


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


@guards("hpcoll/runtime/engine/object_layout.py (`HOLDERS`)")
def test_another_layout_of_holders_of_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    words = object_layout._words
    assert {bytearray, memoryview} <= set(object_layout._holders())
    monkeypatch.setattr(object_layout, "_words", lambda address, n: words(address + 8, n))
    assert object_layout._holders() == {}


@guards("hpcoll/runtime/engine/object_layout.py (`BYTES_LENGTH_AT`)")
@guards("hpcoll/runtime/engine/object_layout.py (`FLOATS_SUPPORTED`)")
def test_another_layout_of_bytes_and_floats_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pickle's memory is sent, nor a list's numbers are read, where CPython keeps them elsewhere."""
    words = object_layout._words
    assert object_layout._bytes_length_at() == object_layout.BYTES_LENGTH_AT is not None
    assert object_layout._reads_floats()
    monkeypatch.setattr(object_layout, "_words", lambda address, n: words(address + 8, n))
    assert object_layout._bytes_length_at() is None
    assert not object_layout._reads_floats()


@guards("hpcoll/comm/objects/serializer.py (`current`)")
def test_another_serializer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle that the program has set, or one whose parts `gc` does not tell, is called by its methods."""
    assert serializer.current().protocol == MPI.pickle.PROTOCOL
    theirs = MPI.Pickle(lambda obj, protocol=None: b"theirs", lambda data: "loaded")
    monkeypatch.setattr(MPI, "pickle", theirs)
    used = serializer.current()
    assert (used.dumps(1), used.loads(b""), used.protocol) == (b"theirs", "loaded", None)
    monkeypatch.undo()
    monkeypatch.setattr(serializer, "get_referents", lambda theirs: [])
    assert serializer.current().protocol is None


@guards("hpcoll/runtime/engine/object_layout.py (`_MACHINES`)")
def test_functions_get_no_more_arguments_on_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    assert not object_layout._supported()


@guards("hpcoll/runtime/transports/mpi.py (`library`)")
def test_other_handles_and_statuses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mpi.library.__wrapped__() == mpi.library()
    with monkeypatch.context() as patch:
        patch.setattr(mpi, "STATUS_NBYTES", 8)
        with pytest.raises(TransportError, match="statuses and requests need"):
            mpi.library.__wrapped__()
    elsewhere = MPI._addressof(MPI.INT)
    monkeypatch.setattr(MPI, "_addressof", lambda thing: elsewhere)
    with pytest.raises(TransportError, match="mpi4py keeps handles elsewhere"):
        mpi.library.__wrapped__()


@guards("hpcoll/runtime/transports/mpi.py (`function_address`)")
def test_a_function_that_is_missing_is_named() -> None:
    assert mpi.function_address("memcpy")
    with pytest.raises(AttributeError, match="MPI_No_such_function"):
        mpi.function_address("MPI_No_such_function")


@guards("hpcoll/runtime/transports/mpi.py (`end_without_barrier`)")
def test_a_variable_of_the_library_that_is_missing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI has the variable; whether it is set shows in another process, whose MPI never starts."""
    monkeypatch.setattr(mpi, "_ASYNC_FINALIZE", "ompi_no_such_variable")
    mpi.end_without_barrier()
    program = "import ctypes, mpi4py; mpi4py.rc.initialize = False; from hpcoll.runtime.transports import mpi; mpi.end_without_barrier()"
    shown = "; print(ctypes.c_bool.in_dll(ctypes.CDLL(mpi.MPI.__file__), mpi._ASYNC_FINALIZE).value)"
    if "Open MPI" in MPI.Get_library_version():
        assert (
            subprocess.run(
                [sys.executable, "-c", program + shown], capture_output=True, text=True, check=True
            ).stdout
            == "True\n"
        )


@guards("hpcoll/runtime/transports/cross_memory.py (`word`)")
@pytest.mark.parametrize(("scope", "ncalls"), [("0", 0), ("1", 1), ("2", 0)])
def test_leave_to_read_memory_is_given_where_yama_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str, ncalls: int
) -> None:
    called: list[int] = []
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(cross_memory, "_PTRACE_SCOPE", tmp_path / "scope")
    monkeypatch.setattr(
        cross_memory, "_libc", SimpleNamespace(prctl=lambda option, *_: called.append(option.value))
    )
    cross_memory._word.__wrapped__(os.getpid())
    assert called == [cross_memory._SET_PTRACER] * ncalls


@guards("hpcoll/comm/team/hard_exit.py (`install`)")
def test_a_fork_leaves_by_the_real_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os._exit
    try:
        hard_exit.install()
        assert (os._exit is hard_exit._leave) == ("MPICH" in MPI.Get_library_version())
    finally:
        os._exit = before
    world = SimpleNamespace(size=2, rank=0)  # where the parent would wait for others, and end the job
    monkeypatch.setattr(
        hard_exit,
        "MPI",
        SimpleNamespace(Is_initialized=lambda: True, Is_finalized=lambda: False, COMM_WORLD=world),
    )
    monkeypatch.setattr(hard_exit, "_all_leave", lambda: False)
    child = os.fork()
    if child == 0:
        hard_exit._leave(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@guards("hpcoll/comm/requests/replaced.py (`install`)")
@pytest.mark.parametrize("found", [[], [()], [{"Startall": None}]])
def test_classes_without_such_dictionaries_keep_their_methods(
    monkeypatch: pytest.MonkeyPatch, found: list[Any]
) -> None:
    monkeypatch.setattr(replaced.gc, "get_referents", lambda *_: found)
    before = MPI.Prequest.Startall, MPI.Request.Waitall
    assert not replaced.install()
    assert before == (MPI.Prequest.Startall, MPI.Request.Waitall)


@guards("hpcoll/comm/status/call_site.py (`left_alone`)")
@pytest.mark.parametrize("name", ["context", "renamed"])
def test_a_context_of_another_name_counts_as_not_alone(name: str) -> None:
    space: dict[str, Any] = {"__name__": "hpcoll.comm.methods.blocking", "left_alone": call_site.left_alone}
    exec(f"def Allreduce({name}):\n    return left_alone({name})", space)
    assert space["Allreduce"](object()) == (name == "context")
