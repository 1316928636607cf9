"""Private parts of CPython, NumPy, Numba, mpi4py and MPI libraries that hpcoll uses: altered, their guards refuse or fall back.

`docs/development/internals.md` has a row for each place.
"""

import ctypes
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import platforms
import pytest
from mpi4py import MPI
from numba import njit

from hpcoll.base.errors import TransportError
from hpcoll.comm.objects import serializer
from hpcoll.comm.status import call_site
from hpcoll.kernels import machine_code, object_code
from hpcoll.runtime.engine import call_cache, object_layout
from hpcoll.runtime.program import call_fields as c
from hpcoll.runtime.transports import mpi

ROOT = Path(__file__).resolve().parents[2]
METHODS = tuple(object_code._LEFT_OUT)
SLOWER = r"hpcoll: Numba [\d.]+ is not as hpcoll knows it \(.*\): compiling takes several times as long"


def test_what_rows_of_the_page_name_is_there() -> None:
    page = (ROOT / "docs/development/internals.md").read_text()
    rows = re.findall(r"^\| `([\w/.]+)` (\(`\w+`\)) \|", page, re.MULTILINE)
    assert rows
    assert [file for file, name in rows if name.strip("(`)") not in (ROOT / file).read_text()] == []


def compiled_sum(n: int) -> int:
    """Return what a function that hpcoll compiles anew, and that calls another one, answers; its object file is placed and run."""

    @njit
    def square(x: Any) -> Any:
        return x * x

    def squares(n: Any) -> Any:
        total = 0
        for i in range(n):
            total += square(i)
        return total

    address = machine_code.placed(object_code.object_file(squares, "int64(int64)", "squares"), "squares")
    assert address
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(n))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    object_code._say_slower.cache_clear()
    yield lambda: capsys.readouterr().err
    object_code._say_slower.cache_clear()


def test_the_installed_numba_is_as_hpcoll_knows_it(said: Callable[[], str]) -> None:
    """Where this fails, a new Numba has other private methods: hpcoll works, and compiles several times as long."""
    assert compiled_sum(5) == 30
    assert said() == ""


def another_number(_: Any, __: Any, ___: Any, ____: Any, _____: Any) -> None:
    """Replace no method of Numba's: none has as many arguments."""


def raising(*names: str) -> Callable[..., Any]:
    """Return what raises as a method does that Numba calls in another way, with the arguments of the method in whose place it is."""
    made: dict[str, Any] = {}
    exec(f"def method({', '.join(names)}): raise TypeError('called in another way')", made)  # noqa: S102
    return made["method"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("change", ["gone", "its class", "its module", "arguments", "calls"])
@pytest.mark.parametrize("method", METHODS)
def test_another_numba_compiles_in_its_public_way(
    method: str, change: str, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    """Each private method differs in each way that a release may change it; the answers are right, and one line says that it is slower."""
    module, owner, name = method.split(".")
    instead = object_code._LEFT_OUT[method]
    path, replacement = {
        "gone": (f"{module}.{owner}.{name}_of_old", instead),
        "its class": (f"{module}.{owner}OfOld.{name}", instead),
        "its module": (f"{module}_of_old.{owner}.{name}", instead),
        "arguments": (method, another_number),
        "calls": (method, raising(*inspect.signature(instead).parameters)),
    }[change]
    changed = {path if one == method else one: to for one, to in object_code._LEFT_OUT.items()}
    monkeypatch.setattr(object_code, "_LEFT_OUT", changed | {path: replacement})
    before = methods()
    assert compiled_sum(5) == compiled_sum(5) == 30
    lines = said().splitlines()
    assert len(lines) == 1 or (change, lines) == ("calls", []), (
        "a method that is left out with its caller is not called"
    )
    assert [one for one in lines if not re.fullmatch(SLOWER, one)] == []
    assert methods() == before, "Numba has its own methods again"


def methods() -> list[Any]:
    """Return Numba's methods as they are now."""
    found = []
    for module, owner, name in (path.split(".") for path in METHODS):
        found.append(vars(getattr(import_module(f"numba.core.{module}"), owner))[name])
    return found


def test_the_oldest_python_has_what_compiled_code_calls() -> None:
    """Functions of CPython's C API are looked up by name: some are macros in an older release."""
    oldest = platforms.interpreter("3.10")
    if not oldest:
        pytest.skip("no Python 3.10")
    sources = [
        *(ROOT / "hpcoll/runtime/engine/compiled").glob("*.py"),
        ROOT / "hpcoll/kernels/object_code.py",
    ]
    names = set(re.findall(r'"(Py[A-Z]\w*_\w+|Py_\w+)"', "".join(path.read_text() for path in sources)))
    assert {"PyList_Append", "PyErr_Occurred"} <= names
    program = "import ctypes, sys; print([one for one in sys.argv[1:] if not hasattr(ctypes.pythonapi, one)])"
    command = [oldest, "-c", program, *names, "PyObject_VectorcallDict"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


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


def test_handles_at_another_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ctypes.create_string_buffer(8)
    monkeypatch.setattr(MPI, "_addressof", lambda _: ctypes.addressof(elsewhere))
    with pytest.raises(TransportError, match=r"mpi4py keeps handles elsewhere: that of MPI.BYTE is 0x"):
        mpi.library.__wrapped__()


@pytest.mark.parametrize("name", ["_addressof", "_handleof", "_sizeof"])
def test_an_mpi4py_that_tells_no_handles_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MPI, name)
    with pytest.raises(ImportError, match=rf"mpi4py [\d.]+ has no MPI\.{name}, which tells hpcoll handles"):
        runpy.run_path(str(object_layout.__file__))


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
