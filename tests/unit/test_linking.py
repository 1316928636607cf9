"""Object files in memory: placed as LLVM places them, without it; never both writable and executable; what is not known is left to LLVM."""

import ctypes
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from hpcoll.kernels import linking, machine_code
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
    return machine_code._placed_by_llvm(content.replace(b"powers", b"p_llvm"), name.replace("powers", "p_llvm"))


def values(address: int) -> list[int]:
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)
    return [function(which, x) for which in range(8) for x in (-9, 0, 6, 2**20)]


def test_as_llvm_places_it() -> None:
    address = linking.placed(file(), "powers")
    assert address is not None
    assert values(address) == values(by_llvm(file(), "powers")) == [powers(which, x) for which in range(8) for x in (-9, 0, 6, 2**20)]


def test_code_is_not_writable() -> None:
    address = linking.placed(file(), "powers")
    assert address is not None
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        if start <= address < end:
            assert line.split()[1] == "r-xp"
            return
    raise AssertionError("mapped nowhere")


def with_other_references(content: bytes) -> bytes:
    """The file with all absolute references to its own sections turned into relative ones."""
    changed = bytearray(content)
    for one in linking._sections(content):
        if one.kind == linking._RELOCATIONS:
            for at in range(one.offset, one.offset + one.nbytes, linking._RELOCATION.size):
                struct.pack_into("<I", changed, at + 8, 2)
    return bytes(changed)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda: file()[:PROCESSOR_AT] + b"\xb7\0" + file()[PROCESSOR_AT + 2 :], id="of another processor"),
        pytest.param(lambda: with_other_references(file()), id="other references"),
    ],
)
def test_left_to_llvm(changed: Callable[[], bytes]) -> None:
    assert linking.placed(changed(), "powers") is None


def test_llvm_does_what_is_left_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(machine_code, "placed", lambda content, name: None)
    (tmp_path / "source").touch()
    address = machine_code.load("left", [tmp_path / "source"], lambda name: object_file(powers, "int64(int64, int64)", name))
    assert values(address)[3] == 1


def test_a_name_that_nobody_knows_is_refused() -> None:
    unknown = file().replace(b"Py_FatalError", b"Py_NoSuchName")
    assert unknown != file()
    with pytest.raises(ValueError, match="Py_NoSuchName"):
        linking.placed(unknown, "powers")


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
    outputs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert outputs[1].strip() == ""
