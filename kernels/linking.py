"""Object files put into memory without LLVM, whose library takes as long to load as all modules of hpcoll.

LLVM writes them for its large code model: what refers to something holds its whole address, and so linking is addition. Other kinds of
references, and other processors than x86-64, are left to LLVM.
"""

import ctypes
import mmap
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

# The ELF format: file header, section header, symbol, relocation.
_HEADER, _SECTION = struct.Struct("<6s12xH20xQ10xHHH"), struct.Struct("<4xIQ8xQQIIQ8x")
_SYMBOL, _RELOCATION, _ADDRESS = struct.Struct("<I2xHQ8x"), struct.Struct("<QIIq"), struct.Struct("<Q")
_OURS = b"\x7fELF\x02\x01", 62, 64  # 64 bits, little endian; x86-64; bytes of a section header
_SYMBOLS, _RELOCATIONS, _ZEROS, _UNWINDING = 2, 4, 8, 0x70000001  # kinds of sections
_WRITABLE, _IN_MEMORY = 1, 2  # their flags
_ABSOLUTE = 1  # R_X86_64_64
_MASK = (1 << 64) - 1

_kept: list[mmap.mmap] = []  # memory of what was placed


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
        (places[one.info] + at, symbol, kind, addend)
        for one in sections if one.kind == _RELOCATIONS and one.info in places
        for at, kind, symbol, addend in _entries(content, one, _RELOCATION)
    ]  # fmt: skip
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
    _kept.append(memory)
    return next(_address(one, base, places) for one in symbols if one.name == name)


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
        for index, one in enumerate(sections):
            if one.flags & (_IN_MEMORY | _WRITABLE) == _IN_MEMORY | writable and one.nbytes and one.kind != _UNWINDING:
                places[index] = -(-end // one.alignment) * one.alignment
                end = places[index] + one.nbytes
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
