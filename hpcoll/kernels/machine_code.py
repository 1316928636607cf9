"""Machine code from the disk cache, loaded without a compiler.

Numba takes half a second to import and, with what it needs to load its own cache, some 50 MB of each process. So compiled functions are
kept as object files, and compilers are imported only where one is missing. Object files are put into memory without LLVM, too, whose
library takes as long to load as all modules of hpcoll. LLVM writes them for its large code model: a reference holds a whole address, and
so linking is addition. Other kinds of references, and other processors than x86-64, are left to LLVM.
"""

import ctypes
import mmap
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec, source_hash
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.disk_cache import found, keep, kept_all


class _Definition(ctypes.Structure):
    """A PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_MAKER = Path(__file__).with_name("object_code.py")
_PROCESSOR = Path("/sys/devices/system/cpu/modalias")  # vendor, model, and all that it can do
RAISED = -1 << 63  # answer of a function for Python that has set an error
_FASTCALL = 0x80  # METH_FASTCALL
_COMPILERS = "compilers"  # file of the versions of those that have compiled what is kept

# The ELF format: file header, section header, symbol, relocation.
_HEADER, _SECTION = struct.Struct("<6s12xH20xQ10xHHH"), struct.Struct("<4xIQ8xQQIIQ8x")
_SYMBOL, _RELOCATION, _ADDRESS = struct.Struct("<I2xHQ8x"), struct.Struct("<QIIq"), struct.Struct("<Q")
_OURS = b"\x7fELF\x02\x01", 62, 64  # 64 bits, little endian; x86-64; bytes of a section header
_SYMBOLS, _RELOCATIONS, _ZEROS, _UNWINDING = 2, 4, 8, 0x70000001  # kinds of sections
_WRITABLE, _IN_MEMORY = 1, 2  # their flags
_ABSOLUTE = 1  # R_X86_64_64
_MASK = (1 << 64) - 1

_placed: list[mmap.mmap] = []  # memory of what was placed

_lock = threading.Lock()
_loaded: dict[str, int] = {}  # address of each function
_definitions: list[_Definition] = []  # which Python functions refer to


def load(name: str, sources: Sequence[Path], make: Callable[[str], bytes]) -> int:
    """Return the address of a compiled function; it stays valid as long as the process.

    Args:
        name: One for each function.
        sources: Files that it is made from, the first its own.
        make: Compiles it, only where it is not kept: gives an object file in which the function has the name that it is given.
    """
    return load_all({name: make}, sources)[0]


def load_all(makers: Mapping[str, Callable[[str], bytes]], sources: Sequence[Path]) -> list[int]:
    """Return addresses as `load`, of functions that are made from the same files; processes of a node share the work."""
    content = b"".join(path.read_bytes() for path in (*sources, _MAKER))
    digest = source_hash(_setting() + content).hex()
    symbols = {f"{name}_{digest}": make for name, make in makers.items()}
    with _lock:
        missing = [symbol for symbol in symbols if symbol not in _loaded]
        files = kept_all({f"{symbol}.code": partial(symbols[symbol], symbol) for symbol in missing})
        for symbol, file in zip(missing, files, strict=True):
            _loaded[symbol] = placed(file, symbol) or _placed_by_llvm(file, symbol)
    return [_loaded[symbol] for symbol in symbols]


@cache
def kernel(name: str, modules: tuple[str, ...], *arguments: Any) -> int:
    """Return the address of a compiled function as `load`.

    The first of some modules of this folder, from which it is made, has a function ``kernel_file`` of the arguments and the name.
    """

    def make(symbol: str) -> bytes:
        made: bytes = import_module(f"hpcoll.kernels.{modules[0]}").kernel_file(*arguments, symbol)
        return made

    return load(name, [Path(__file__).with_name(f"{module}.py") for module in modules], make)


@cache
def integer_function(nargs: int, name: str, modules: tuple[str, ...], *arguments: Any) -> Callable[..., None]:
    """Return a `kernel` that takes so many integers, for Python."""
    made: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * nargs)(
        kernel(name, modules, *arguments)
    )
    return made


def python_function(name: str, address: int, owner: object = None) -> Callable[..., Any]:
    """Return a function of Python that was compiled ``for_python``; or one of its owner, the address of arguments, and their number."""
    _definitions.append(_Definition(name.encode(), address, _FASTCALL, None))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    made: Callable[..., Any] = make(
        ctypes.addressof(_definitions[-1]), None if owner is None else id(owner), None
    )
    return made


def target_machine() -> Any:
    """Return LLVM's target for this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


def _placed_by_llvm(file: bytes, symbol: str) -> int:
    import llvmlite.binding as llvm

    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(file))
    engine.finalize_object()
    return int(engine.get_function_address(symbol))


@lru_cache
def _engine() -> Any:
    import llvmlite.binding as llvm

    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())


@lru_cache
def _setting() -> bytes:
    """Return the settings of machine code besides its source: compilers, interpreter, processor."""
    return b"".join((_compilers() or found(_COMPILERS) or b"", sys.version.encode(), _processor()))


def note_compilers() -> None:
    """Keep the versions of the compilers, for processes where they are not installed."""
    if found(_COMPILERS) != _compilers():
        keep(_COMPILERS, _compilers())


def _compilers() -> bytes:
    return _version("numba") + _version("llvmlite")


def _version(package: str) -> bytes:
    """Return a package's version file; the package is not imported."""
    spec = find_spec(package)
    return Path(spec.origin).with_name("_version.py").read_bytes() if spec and spec.origin else b""


def _processor() -> bytes:
    try:
        return _PROCESSOR.read_bytes()
    except OSError:  # no Linux that says it
        import llvmlite.binding as llvm

        return repr((llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())).encode()


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    nbytes: int
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


def placed(content: bytes, name: str) -> int | None:
    """Place an object file in memory for good, and return the address of a function of it; None where only LLVM can do it.

    Args:
        content: The file. It refers to names of its own and of the process.
        name: Of the function.
    """
    sections = _sections(content)
    places, executable, nbytes = _laid_out(sections)
    references = [
        (places[section.info] + at, symbol, kind, addend)
        for section in sections
        if section.kind == _RELOCATIONS and section.info in places
        for at, kind, symbol, addend in _entries(content, section, _RELOCATION)
    ]
    if not places or any(kind != _ABSOLUTE for _, _, kind, _ in references):
        return None
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for index, place in places.items():
        one = sections[index]
        if one.kind != _ZEROS:
            memory[place : place + one.nbytes] = content[one.offset : one.offset + one.nbytes]
    symbols = list(_symbols(content, sections))
    for at, symbol, _, addend in references:
        _ADDRESS.pack_into(memory, at, _address(symbols[symbol], base, places) + addend & _MASK)
    _protect(base, executable)
    _placed.append(memory)
    return next(_address(entry, base, places) for entry in symbols if entry.name == name)


def _sections(content: bytes) -> list[_Section]:
    magic, processor, start, nbytes, n, _ = _HEADER.unpack_from(content)
    if (magic, processor, nbytes) != _OURS:
        return []
    return [_Section(*_SECTION.unpack_from(content, start + i * nbytes)) for i in range(n)]


def _laid_out(sections: list[_Section]) -> tuple[dict[int, int], int, int]:
    """Return the places of sections, read-only ones first; the bytes of these, whole pages; and the bytes of all."""
    places: dict[int, int] = {}
    end, executable = 0, 0
    for writable in (0, _WRITABLE):
        for index, section in enumerate(sections):
            if (
                section.flags & (_IN_MEMORY | _WRITABLE) == _IN_MEMORY | writable
                and section.nbytes
                and section.kind != _UNWINDING
            ):
                places[index] = -(-end // section.alignment) * section.alignment
                end = places[index] + section.nbytes
        end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        executable = executable or end
    return places, executable, end


def _symbols(content: bytes, sections: list[_Section]) -> Iterator[_Symbol]:
    table = next(one for one in sections if one.kind == _SYMBOLS)
    names = sections[table.link].offset
    for name, section, value in _entries(content, table, _SYMBOL):
        start = names + name
        yield _Symbol(content[start : content.index(b"\0", start)].decode(), section, value)


def _entries(content: bytes, table: _Section, layout: struct.Struct) -> Iterator[tuple[Any, ...]]:
    return layout.iter_unpack(content[table.offset : table.offset + table.nbytes])


def _address(symbol: _Symbol, base: int, places: dict[int, int]) -> int:
    if symbol.section:
        return base + places[symbol.section] + symbol.value
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, symbol.name))


def _protect(base: int, nbytes: int) -> None:
    """Make code executable and read-only: no memory may be written to and run."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    if protect(ctypes.c_void_p(base), ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect of compiled code")
