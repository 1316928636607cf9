"""Object files: placed as LLVM places them, never writable and executable; loaded without Numba, made again when sources change."""

import ast
import ctypes
import os
import re
import signal
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

import hpcoll
from hpcoll.kernels import machine_code
from hpcoll.kernels.object_code import object_file

PROCESSOR_AT = 18  # in an ELF file


def powers(which: int, x: int) -> int:
    """Refers to a table of jumps, to constants, and to the C library by the code that raises."""
    if which == 0:
        return 1
    if which == 1:
        return x * 3
    if which == 2:
        return x * x - 7
    if which == 3:
        return x * x * x
    if which == 4:
        return int(x * 0.5)
    return x // which


@lru_cache
def file() -> bytes:
    return object_file(powers, "int64(int64, int64)", "powers")


def by_llvm(content: bytes, name: str) -> int:
    return machine_code._placed_by_llvm(
        content.replace(b"powers", b"p_llvm"), name.replace("powers", "p_llvm")
    )


def values(address: int) -> list[int]:
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)
    return [function(which, x) for which in range(8) for x in (-9, 0, 6, 2**20)]


def test_as_llvm_places_it() -> None:
    address = machine_code.placed(file(), "powers")
    assert address is not None
    assert (
        values(address)
        == values(by_llvm(file(), "powers"))
        == [powers(which, x) for which in range(8) for x in (-9, 0, 6, 2**20)]
    )


def test_code_is_not_writable() -> None:
    address = machine_code.placed(file(), "powers")
    assert address is not None
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= address < end:
            assert line.split()[1] == "r-xp"
            return
    raise AssertionError("mapped nowhere")


def test_an_object_file_for_another_processor_is_left_to_llvm() -> None:
    other = file()[:PROCESSOR_AT] + b"\xb7\0" + file()[PROCESSOR_AT + 2 :]
    assert machine_code.placed(other, "powers") is None


def test_a_name_that_nobody_knows_is_refused() -> None:
    unknown = file().replace(b"Py_FatalError", b"Py_NoSuchName")
    assert unknown != file()
    with pytest.raises(ValueError, match="Py_NoSuchName"):
        machine_code.placed(unknown, "powers")


def test_a_warm_start_loads_no_compiler() -> None:
    """What takes half a second and 50 MB of each process: the first process compiles if anything is missing, the second may not."""
    program = """
import sys, numpy
from hpcoll.base import ops
from hpcoll.kernels.host import kernel_address
from hpcoll.runtime.engine import entry
kernel_address(ops.SUM, numpy.dtype("f8"))
print(*sorted(set(sys.modules) & {"numba", "llvmlite"}))
"""
    outputs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert outputs[1].strip() == ""


@pytest.mark.ci
def test_a_warm_start_needs_no_compiler(tmp_path: Path) -> None:
    """As where Numba and llvmlite are not installed; a cold start says what is missing."""
    program = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
import numpy as np
import hpcoll
from mpi4py import MPI
x = np.ones(3)
hpcoll.Communicator(MPI.COMM_WORLD).Allreduce(MPI.IN_PLACE, x)
print(x)
"""
    kept, empty = (os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / name)} for name in ("kept", "empty"))
    warmup = [sys.executable, "-m", "hpcoll", "warmup", "--types", "double"]
    subprocess.run(warmup, env=kept, capture_output=True, check=True)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[1. 1. 1.]\n"), done.stderr
    cold = subprocess.run(command, env=empty, capture_output=True, text=True, check=False)
    assert cold.returncode == 1
    assert re.search("ModuleNotFoundError: .*(numba|llvmlite)", cold.stderr)


HPCOLL = Path(hpcoll.__file__).parent


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path / "hpcoll"


def twice(x: int) -> int:
    return 2 * x


def weighted(a: int, b: int) -> int:
    return a + 10 * b


def added(a: int, b: int, c: int) -> int:
    return a + b + c


def divided(a: int, b: int) -> int:
    return a // b


def signature(nargs: int) -> str:
    return f"int64({', '.join(['int64'] * nargs)})"


def test_made_again_when_a_source_changes(folder: Path, tmp_path: Path) -> None:
    sources, made = [tmp_path / "one", tmp_path / "other"], []

    def make(symbol: str) -> bytes:
        made.append(symbol)
        return object_file(twice, signature(1), symbol)

    for source in sources:
        source.write_text("first")
    address = machine_code.load("twice", sources, make)
    assert machine_code.load("twice", sources, make) == address
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(21) == 42
    sources[1].write_text("second")
    assert machine_code.load("twice", sources, make) != address
    assert [path.stem for path in sorted(folder.glob("*.code"))] == sorted(set(made))
    assert len(made) == 2


def test_a_function_for_python(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "source").touch()

    def make(symbol: str) -> bytes:
        return object_file(weighted, signature(2), symbol, for_python=True)

    function = machine_code.python_function(
        "weighted", machine_code.load("weighted", [tmp_path / "source"], make)
    )
    assert [function(*pair) for pair in ((1, 2), (-1, 0), (0, -1), (2**62, 0))] == [21, -1, -10, 2**62]
    for arguments in ((1,), (1, 2, 3), (1, "2"), (1.5, 2)):
        with pytest.raises(TypeError):
            function(*arguments)
    with pytest.raises(OverflowError):
        function(2**63, 0)


def test_a_function_for_python_on_objects(folder: Path, tmp_path: Path) -> None:
    """One argument less: the first is a constant, those behind the next are addresses; else as without."""
    (tmp_path / "source").touch()

    def make(symbol: str) -> bytes:
        return object_file(added, signature(3), symbol, for_python=True, on_objects=5)

    function = machine_code.python_function("added", machine_code.load("added", [tmp_path / "source"], make))
    thing = object()
    assert function(1000, thing) == 5 + 1000 + id(thing) == function(5, 1000, id(thing))
    for arguments in ((1,), (1, 2, 3, 4), (1, 2, thing)):
        with pytest.raises(TypeError):
            function(*arguments)


def test_code_that_allocates_is_refused() -> None:
    with pytest.raises(AssertionError, match="compiled code allocates"):
        object_file(lambda n: len(list(range(n))), signature(1), "allocates")


def test_code_that_raises_ends_the_process_and_says_so(folder: Path) -> None:
    program = f"""
import sys, pathlib
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_linking as t
make = lambda symbol: t.object_file(t.divided, t.signature(2), symbol, for_python=True)
function = t.machine_code.python_function("divided", t.machine_code.load("divided", [pathlib.Path(t.__file__)], make))
print(function(7, 2), flush=True)
function(7, 0)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == ("3\n", -signal.SIGABRT)
    assert "compiled code of hpcoll raised an exception" in ended.stderr


def imported(path: Path) -> set[Path]:
    """Files of hpcoll that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hpcoll."):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                file = HPCOLL.joinpath(*name.split(".")[1:]).with_suffix(".py")
                found |= {file} if file.exists() else set()
    return found


def test_the_digest_knows_all_that_compiled_code_is_made_of() -> None:
    from hpcoll.runtime.engine import entry

    listed = {HPCOLL / name for name in entry._MADE_OF}
    compiled = {
        path
        for path in (HPCOLL / "runtime").rglob("*.py")
        if re.search("^(from|import) numba", path.read_text(), re.MULTILINE)
    }
    assert compiled <= listed
    assert set().union(*map(imported, compiled)) <= listed
