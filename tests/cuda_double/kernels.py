"""The arithmetic of kernels, known by the name of their entry: NumPy on the memory behind the pointers."""

import ctypes
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from cuda_double.failures import INVALID_VALUE, MISALIGNED_ADDRESS, require
from cuda_double.memory import Memory
from cuda_double.streams import Span
from hpcoll.kernels import one_shot_layout as n

MAX_SOURCES = MAX_DESTINATIONS = 8
_MAX_RUNS = 4096  # of a strided array, told apart

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _logical(function: Combine) -> Combine:
    return lambda a, b: function(a != 0, b != 0).astype(a.dtype)


def _unsigned_zero(function: Combine) -> Combine:
    return lambda a, b: function(a, b) + a.dtype.type(0)


BUILTIN: dict[str, Combine] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": _unsigned_zero(np.minimum),
    "max": _unsigned_zero(np.maximum),
    "land": _logical(np.logical_and),
    "lor": _logical(np.logical_or),
    "lxor": _logical(np.logical_xor),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def per_element(function: Callable[[Any, Any], Any]) -> Combine:
    """A function of two scalars, applied to arrays."""
    return lambda a, b: np.array([function(x, y) for x, y in zip(a, b)]).astype(a.dtype)


def _combine(entry: str) -> Combine:
    """Return what a fold does: a user's function is found where `hpcoll.kernels.device` keeps what its kernels mean."""
    name = entry.partition("_")[2].rpartition("_")[0]
    if name in BUILTIN:
        return BUILTIN[name]
    known = getattr(sys.modules.get("hpcoll.kernels.device"), "OPERATORS", {})
    require(entry in known, INVALID_VALUE, f"what {entry} computes is not known here")
    return per_element(known[entry].function)


class Launch(NamedTuple):
    """A kernel with its operands.

    Attributes:
        run: Computes it; False where it waits for other processes, and is to be asked again.
        reads, writes: Bytes that it touches.
        in_place: It may write what it reads.
    """

    run: Callable[[], bool | None]
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    in_place: bool = False


def dtype_of(name: str) -> np.dtype:
    """Element type by its name in entries; bool is a byte."""
    return np.dtype({"bfloat16": ml_dtypes.bfloat16, "bool": np.uint8}.get(name, name))


def working_dtype(dtype: np.dtype) -> np.dtype:
    """In which a kernel computes."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def nparams(entry: str) -> int | None:
    """Return how many parameters a kernel has; None for one that is not known."""
    counts = {
        "fold": MAX_DESTINATIONS + MAX_SOURCES + 3,
        "scale": 6,
        "move": 7,
        "oneshot": n.NPARAMETERS,
    }
    return counts.get(entry.split("_")[0])


def launch(entry: str, values: list[int], memory: Memory, grid: int) -> Launch:
    """A kernel by name with so many blocks, its operands as 8-byte words."""
    kind, *rest = entry.split("_")
    if kind == "fold":
        return _fold(_combine(entry), dtype_of(rest[-1]), values, memory)
    if kind == "oneshot":
        return _one_shot(rest, values, memory, grid)
    if kind == "scale":
        return _scale(dtype_of(rest[0]), dtype_of(rest[1]), values, memory)
    return _move(int(rest[0]), values, memory)


def _elements(address: int, count: int, dtype: np.dtype, memory: Memory) -> np.ndarray:
    return memory.view(address, count * dtype.itemsize).view(dtype)


def _span(address: int, count: int, dtype: np.dtype) -> Span:
    require(count >= 0, INVALID_VALUE, f"a kernel for {count} elements")
    require(address % dtype.alignment == 0, MISALIGNED_ADDRESS, f"{dtype} at {address:#x}")
    return address, address + count * dtype.itemsize


def canonical(combine: Combine, values: list[np.ndarray]) -> np.ndarray:
    """Fold arrays as kernels do: the first part is the largest power of two that is not all."""
    if len(values) == 1:
        return values[0]
    first = 1 << (len(values) - 1).bit_length() - 1
    return combine(canonical(combine, values[:first]), canonical(combine, values[first:]))


def _fold(combine: Combine, dtype: np.dtype, values: list[int], memory: Memory) -> Launch:
    targets, (ntargets, *sources), (nsources, count) = (
        values[:MAX_DESTINATIONS],
        values[MAX_DESTINATIONS:-2],
        values[-2:],
    )
    require(2 <= nsources <= MAX_SOURCES, INVALID_VALUE, f"a fold of {nsources} sources")
    require(1 <= ntargets <= MAX_DESTINATIONS, INVALID_VALUE, f"a fold into {ntargets} arrays")
    for used, every in ((targets[:ntargets], targets), (sources[:nsources], sources)):
        require(set(every) == set(used), INVALID_VALUE, "an operand that is not in use repeats none that is")
    targets, sources = targets[:ntargets], sources[:nsources]

    def run() -> None:
        with np.errstate(all="ignore"):
            given = [
                _elements(source, count, dtype, memory).astype(working_dtype(dtype)) for source in sources
            ]
            result = canonical(combine, given).astype(dtype)
        for target in targets:
            _elements(target, count, dtype, memory)[...] = result

    return Launch(
        run, *(tuple(_span(one, count, dtype) for one in operands) for operands in (sources, targets))
    )


def _scale(from_dtype: np.dtype, to_dtype: np.dtype, values: list[int], memory: Memory) -> Launch:
    target, source, count, *factor, divides = values
    real, imaginary = (ctypes.c_double.from_buffer_copy(ctypes.c_int64(word)).value for word in factor)

    def run() -> None:
        work = np.result_type(working_dtype(from_dtype), working_dtype(to_dtype))
        by = work.type(complex(real, imaginary) if work.kind == "c" else real)
        with np.errstate(all="ignore"):
            value = _elements(source, count, from_dtype, memory).astype(work)
            _elements(target, count, to_dtype, memory)[...] = (value / by if divides else value * by).astype(
                to_dtype
            )

    return Launch(run, (_span(source, count, from_dtype),), (_span(target, count, to_dtype),))


def _offsets(shape: list[int], strides: list[int]) -> np.ndarray:
    """First byte of every item of a strided array, relative to its first item's, in order."""
    offsets = np.zeros(1, np.int64)
    for length, stride in zip(shape, strides):
        offsets = (offsets[:, None] + np.arange(length) * stride).ravel()
    return offsets


def _runs(first: int, offsets: np.ndarray, item: int) -> tuple[Span, ...]:
    """Bytes of a strided array, as few spans; where they are very many, what lies between them too."""
    if not offsets.size:
        return ()
    starts = np.unique(offsets)
    cuts = np.flatnonzero(np.diff(starts) > item) + 1
    if cuts.size >= _MAX_RUNS:
        return ((first + int(starts[0]), first + int(starts[-1]) + item),)
    lows, highs = starts[[0, *cuts]], starts[[*(cuts - 1), -1]] + item
    return tuple((first + int(lo), first + int(hi)) for lo, hi in zip(lows, highs))


def _move(item: int, values: list[int], memory: Memory) -> Launch:
    packed, there, table, npieces, nloops, nitems, unpacks = values
    words = 8 * npieces * (3 + 2 * nloops)
    pieces = memory.view(table, words).view(np.int64).reshape(npieces, -1)
    found = [np.zeros(0, np.int64)]
    for at, offset, run, *loops in pieces.tolist():
        require(
            sum(map(len, found)) * item == at,
            INVALID_VALUE,
            f"a piece at {at}, behind {found[-1].size} items",
        )
        require(run > 0 and run % item == 0, INVALID_VALUE, f"runs of {run} bytes, of items of {item}")
        shape, strides = [*loops[::2], run // item], [*loops[1::2], item]
        require(min(shape) > 0, INVALID_VALUE, f"loops {loops}")
        found.append(offset + _offsets(shape, strides))
    offsets, nbytes = np.concatenate(found), item * nitems
    require(offsets.size == nitems, INVALID_VALUE, f"{nitems} items, pieces of {offsets.size}")
    unaligned = [word for word in (packed, there, *offsets.tolist()) if word % min(item, 8)]
    require(not unaligned, MISALIGNED_ADDRESS, f"items of {item} bytes at or every {unaligned}")
    lo, hi = (int(offsets.min()), int(offsets.max()) + item) if offsets.size else (0, 0)
    index = (offsets - lo)[:, None] + np.arange(item)

    def run() -> None:
        dense, apart = memory.view(packed, nbytes).reshape(-1, item), memory.view(there + lo, hi - lo)
        if unpacks:
            apart[index] = dense
        else:
            dense[...] = apart[index]

    runs, whole = _runs(there, offsets, item), ((packed, packed + nbytes),) if nbytes else ()
    told = (table, table + words)
    return Launch(run, (*whole, told), runs) if unpacks else Launch(run, (*runs, told), whole)


def _one_shot(rest: list[str], values: list[int], memory: Memory, grid: int) -> Launch:
    """Blocks do one after the other what they do at once: all write, all tell, each waits until all others have told it, all read."""
    table, sent, received, nbytes, chunk, npieces, first, nsources, part, check = values
    rank, nranks, stop_at = memory.view(table, 24).view(np.int64).tolist()
    areas = memory.view(table + 8 * n.AREAS, 8 * nranks).view(np.int64).tolist()
    stop = ctypes.c_int64.from_address(stop_at)
    require(chunk % 16 == 0 and npieces * chunk <= n.SLOT_NBYTES, INVALID_VALUE, f"chunks of {chunk} bytes")
    require(grid <= n.MOST_BLOCKS and grid * chunk >= nbytes, INVALID_VALUE, f"{grid} blocks")
    combine = _combine("_".join(["oneshot", *rest])) if rest else None
    dtype = dtype_of(rest[-1]) if rest else np.dtype(np.uint8)
    blocks: list[int] = []  # generations
    lows = [block * chunk for block in range(grid)]

    def words(area: int, at: int, count: int = 1) -> np.ndarray:
        return memory.view(area + at, 8 * count).view(np.int64)

    def flag(area: int, block: int, peer: int) -> np.ndarray:
        row = (blocks[block] % 2 * n.MOST_BLOCKS + block) * MAX_SOURCES + peer
        return words(area, n.FLAGS_AT + n.FLAG_NBYTES * row, 2)

    def slot(area: int, block: int, piece: int) -> np.ndarray:
        at = n.SLOTS_AT + (blocks[block] % 2 * n.MOST_BLOCKS + block) * n.SLOT_NBYTES + piece * chunk
        return memory.view(area + at, max(0, min(chunk, nbytes - lows[block])))

    def tell() -> None:
        blocks[:] = (words(areas[rank], 0, grid) + 1).tolist()
        for block, low in enumerate(lows):
            for piece in range(npieces if part & n.WRITES else 0):
                mine = slot(areas[rank], block, piece)
                mine[...] = memory.view(sent + piece * nbytes + low, mine.size) if mine.size else 0
            for area in areas:
                flag(area, block, rank)[1] = check
                flag(area, block, rank)[0] = blocks[block]

    def run() -> bool:
        if not blocks:
            tell()
        theirs = [flag(areas[rank], block, peer) for block in range(grid) for peer in range(nranks)]
        if any(one[0] != blocks[i // nranks] for i, one in enumerate(theirs)) and not stop.value:
            return False
        if any(one[1] != check for one in theirs):
            stop.value = 1
        words(areas[rank], 0, grid)[:] = blocks
        for block, low in enumerate(lows if part & n.READS else ()):
            piece = rank if npieces > 1 else 0
            found = [slot(areas[first + i], block, piece).view(dtype) for i in range(nsources)]
            if combine:
                with np.errstate(all="ignore"):
                    found = [
                        canonical(combine, [one.astype(working_dtype(dtype)) for one in found]).astype(dtype)
                    ]
            for i, one in enumerate(found):
                if one.size:
                    memory.view(received + i * nbytes + low, one.nbytes)[...] = one.view(np.uint8)
        return True

    results = 1 if combine else nsources
    reads = ((sent, sent + npieces * nbytes),) if part & n.WRITES and nbytes else ()
    writes = ((received, received + results * nbytes),) if part & n.READS and nbytes else ()
    return Launch(run, reads, writes, in_place=True)


def entries(ptx: str) -> dict[str, list[str]]:
    """Kernels that a module's text declares, with the types of their parameters."""
    found = re.findall(r"\.entry\s+([\w$]+)\s*(\([^)]*\))?", ptx)
    return {
        name: re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", parameters) for name, parameters in found
    }


def operands(entry: str, parameters: Any, declared: list[str]) -> list[int]:
    """The operands of a launch, an array of pointers to 8-byte words."""
    expected = nparams(entry)
    require(expected, INVALID_VALUE, f"no kernel {entry} is known here")
    assert expected is not None
    right = not declared or (len(declared) == expected and all(one.endswith("64") for one in declared))
    require(
        right, INVALID_VALUE, f"{entry} declares parameters {declared}, {expected} of 8 bytes are expected"
    )
    require(parameters, INVALID_VALUE, f"{entry} is launched without parameters")
    pointers = (ctypes.c_void_p * expected).from_address(parameters)
    return [ctypes.c_int64.from_address(pointer or 0).value for pointer in pointers]
