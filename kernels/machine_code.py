"""Machine code from the disk cache, loaded without a compiler.

Numba takes half a second to import and, with what it needs to load its own cache, some 50 MB of each process. So compiled functions are
kept as object files, and compilers are imported only where one is missing.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec, source_hash
from pathlib import Path
from typing import Any

from hpcoll.base.disk_cache import kept_all
from hpcoll.kernels.linking import placed


class _Definition(ctypes.Structure):
    """A PyMethodDef."""

    _fields_ = (("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_MAKER = Path(__file__).with_name("object_code.py")
_PROCESSOR = Path("/sys/devices/system/cpu/modalias")  # vendor, model, and all that it can do
_FASTCALL = 0x80  # METH_FASTCALL

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


def python_function(name: str, address: int) -> Callable[..., int]:
    """Return a function of Python that was compiled ``for_python``."""
    _definitions.append(_Definition(name.encode(), address, _FASTCALL, None))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(("PyCFunction_NewEx", ctypes.pythonapi))
    made: Callable[..., int] = make(ctypes.addressof(_definitions[-1]), None, None)
    return made


def target_machine() -> Any:
    """Return LLVM's target for this processor."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), opt=3, codemodel="jitdefault", jit=True
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
    return b"".join((_version("numba"), _version("llvmlite"), sys.version.encode(), _processor()))


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
