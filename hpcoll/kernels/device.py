"""GPU kernels, compiled by Numba CUDA to PTX text that the driver loads.

A kernel is a name and a text; compiling needs no GPU and no driver. The entry of the text has the kernel's name and takes
8-byte parameters only, so that ``cuLaunchKernel`` is handed an array of pointers to 8-byte values:

    fold_<op>_<dtype>(d0, ..., d7, ndestinations, s0, ..., s7, nsources, count)
    scale_<src>_<dst>(dst, src, count, real, imag, divides)      real and imag are float64
    move_<itemsize>(packed, memory, pieces, npieces, nloops, nitems, unpacks)    pieces: `hpcoll.kernels.bodies.move`
    oneshot[_<op>_<dtype>](channel, sent, received, nbytes, chunk, npieces, first, nsources, part, check)    `bodies.one_shot`

A fold has 2 to 8 sources; a destination may be any one of them.

Any grid of blocks of `BLOCK` threads serves. Elements are aligned to their size (complex numbers to half of it); whether vectors
of `WIDE_NBYTES` can be used is found out by the kernel. Texts of built-in operators are kept on disk.
"""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numba
import numpy as np
from cuda.bindings.nvvm import nvvmError
from numba import cuda
from numba.cuda.core.errors import NumbaError
from numba.cuda.cudadrv import nvrtc, nvvm
from numba.cuda.cudadrv.error import CCSupportError, CudaSupportError

from hpcoll.base.disk_cache import kept
from hpcoll.base.errors import KernelError
from hpcoll.base.ops import SUM, ReduceOp
from hpcoll.kernels import bodies
from hpcoll.kernels.numbers import number

BLOCK = 256  # threads per block
# The last one: what Numba itself implements in Python is compiled for the current GPU, and there may be none.
_COMPILE_ERRORS = (NumbaError, nvvmError, TypeError, CudaSupportError)

Capability = tuple[int, int]

# The oldest text format that knows an architecture. A compiler writes the newest one, which older drivers refuse.
_FORMAT: dict[Capability, str] = {
    (7, 5): "6.3",
    (8, 0): "7.0",
    (8, 6): "7.1",
    (8, 7): "7.4",
    (8, 9): "7.8",
    (9, 0): "7.8",
    (10, 0): "8.6",
    (10, 3): "8.8",
    (12, 0): "8.7",
    (12, 1): "8.8",
}


class Kernel(NamedTuple):
    """A kernel's entry name, and its module as PTX text."""

    name: str
    ptx: bytes


OPERATORS: dict[str, ReduceOp] = {}  # the program's, by the names of their kernels
_user_numbers = count()
_compiling = RLock()


@lru_cache(maxsize=256)
def fold(op: ReduceOp, dtype: np.dtype, cc: Capability) -> Kernel:
    """Return the kernel that folds 2 to 8 sources into 1 to 8 destinations; average and premultiplied sum are sums here.

    The result is the canonical expression (`hpcoll.base.canonical`) of the sources.

    Args:
        op: Operator that takes this element type.
        dtype: Native NumPy type, or ml_dtypes' bfloat16. The half types are folded in float32 and rounded once.
        cc: Compute capability of the GPU, as (9, 0).

    Raises:
        KernelError: the operator's function does not compile for this type, or the compiler knows no such old GPU.
    """
    if op.function is None:
        op = _plain(op)
        name = f"fold_{op.name}_{dtype.name}"
    else:
        name = f"fold_{re.sub(r'[^A-Za-z0-9]', '_', op.name)}_{next(_user_numbers)}_{dtype.name}"
        OPERATORS[name] = op
    try:
        return _kernel(name, lambda: bodies.fold(number(dtype), op), cc, keep=op.function is None)
    except _COMPILE_ERRORS as error:
        reason = str(error).strip().splitlines()[0]
        raise KernelError(f"operator {op.name} could not be compiled for {dtype}: {reason}") from error


@lru_cache(maxsize=256)
def scale(src: np.dtype, dst: np.dtype, cc: Capability) -> Kernel:
    """Return the kernel that multiplies or divides by a number and converts; exact between two types when the number is 1."""
    name = f"scale_{src.name}_{dst.name}"
    return _kernel(name, lambda: bodies.scale(number(src), number(dst)), cc)


@lru_cache(maxsize=256)
def move(itemsize: int, cc: Capability) -> Kernel:
    """Return the kernel that packs items of 1, 2, 4, 8 or 16 bytes, or unpacks them."""
    name = f"move_{itemsize}"
    return _kernel(name, lambda: bodies.move(itemsize), cc)


@lru_cache(maxsize=256)
def one_shot(op: ReduceOp | None, dtype: np.dtype | None, cc: Capability) -> Kernel:
    """Return the kernel that is a whole call of ranks that map each other's memory; with None it combines nothing.

    Args:
        op: A built-in operator, as of `fold`.
        dtype: Element type of ``op``.
        cc: Compute capability.
    """
    if op is None or dtype is None:
        return _kernel("oneshot", lambda: bodies.one_shot(None), cc)
    name = f"oneshot_{_plain(op).name}_{dtype.name}"
    return _kernel(name, lambda: bodies.one_shot((number(dtype), _plain(op))), cc)


def _plain(op: ReduceOp) -> ReduceOp:
    """Return an operator without factors, which other kernels apply."""
    return SUM if op.average or op.premultiplier is not None else op


def _kernel(name: str, body: Callable[[], tuple[Any, Any]], cc: Capability, *, keep: bool = True) -> Kernel:
    known = _known(cc)
    if not keep:
        return Kernel(name, _compile(name, body, known))
    text = kept(f"{name}-{known[0]}{known[1]}-{_digest()}.gpu", lambda: _compile(name, body, known))
    return Kernel(name, text)


def _known(cc: Capability) -> Capability:
    """Return the newest architecture that the compiler knows and the GPU runs."""
    try:
        major, minor = nvrtc.find_closest_arch(cc)
    except CCSupportError as error:
        raise KernelError(
            f"GPUs of compute capability {cc[0]}.{cc[1]} are too old for this CUDA compiler: {error}"
        ) from error
    return major, minor


def compile_text(function: Callable[..., None], signature: Any, cc: Capability) -> str:
    """Return the PTX text of a function for a signature of Numba's; raises Numba's errors."""
    with warnings.catch_warnings(), _unfused():
        warnings.simplefilter("ignore")
        _complete_numba()
        text, _ = cuda.compile_ptx(function, signature, cc=cc)
    return str(text)


@contextmanager
def _unfused() -> Iterator[None]:
    """Have no product and sum made one operation: a * b and b * a give a sum the same bits. Numba-cuda has no argument for that option."""
    with _compiling:
        compile_ir = nvvm.compile_ir
        nvvm.compile_ir = partial(compile_ir, fma=False)
        try:
            yield
        finally:
            nvvm.compile_ir = compile_ir


def _complete_numba() -> None:
    """Import the part of numba-cuda 0.30 that overloads `numpy.row_stack`, which NumPy 2.5 has dropped: no kernel compiles without."""
    if hasattr(np, "row_stack"):
        return
    np.row_stack = np.vstack
    try:
        import numba.cuda.np.arrayobj  # noqa: F401
    finally:
        del np.row_stack


def _compile(name: str, body: Callable[[], tuple[Any, Any]], cc: Capability) -> bytes:
    text = compile_text(*body(), cc)
    entry = re.search(r"\.entry\s+(\w+)", text)
    assert entry
    # what only the CPU's code uses
    text = re.sub(r"^\.common .*NumbaEnv.*\n", "", text.replace(entry[1], name), flags=re.MULTILINE)
    if cc in _FORMAT:
        text = re.sub(r"^\.version .*$", f".version {_FORMAT[cc]}", text, flags=re.MULTILINE)
    return text.encode() + b"\0"  # the driver reads up to a zero


@lru_cache(maxsize=1)
def _digest() -> str:
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    versions = f"{version('numba-cuda')} {numba.__version__} {nvvm.NVVM().get_version()} {nvvm.NVVM().get_ir_version()}"
    return hashlib.sha256(b"".join([*sources, versions.encode()])).hexdigest()[:16]
