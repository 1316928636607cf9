"""Compiled: copies between packed bytes and the memory of a buffer that has a map (`hpcoll.runtime.program.layouts`).

Which of the two is written is told by a constant, so that each loop is compiled for either way.
"""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import copy_byte, copy_int32, copy_line, copy_pair, copy_word, pointer
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program.opcodes import CACHE_LINE_NBYTES


@njit(nogil=True)
def _copy_runs(to, to_step, source, step, nruns, nbytes):  # type: ignore[no-untyped-def]
    """Copy runs of equally many bytes, some bytes apart on both sides. The end of a run may be copied twice."""
    if nbytes == 8:
        for i in range(nruns):
            copy_word(to + i * to_step, source + i * step)
    elif nbytes == 4:
        for i in range(nruns):
            copy_int32(to + i * to_step, source + i * step)
    elif nbytes >= CACHE_LINE_NBYTES:
        last = nbytes - CACHE_LINE_NBYTES
        for _ in range(nruns):
            for at in range(0, last, CACHE_LINE_NBYTES):
                copy_line(to + at, source + at)
            copy_line(to + last, source + last)
            to, source = to + to_step, source + step
    elif nbytes >= 16:
        for _ in range(nruns):
            for at in range(0, nbytes - 16, 16):
                copy_pair(to + at, source + at)
            copy_pair(to + nbytes - 16, source + nbytes - 16)
            to, source = to + to_step, source + step
    elif nbytes > 8:
        for _ in range(nruns):
            copy_word(to, source)
            copy_word(to + nbytes - 8, source + nbytes - 8)
            to, source = to + to_step, source + step
    else:
        for _ in range(nruns):
            for at in range(nbytes):
                copy_byte(to + at, source + at)
            to, source = to + to_step, source + step


@njit(nogil=True)
def _move_runs(memory, stride, packed, nruns, nbytes, unpacks):  # type: ignore[no-untyped-def]
    """Copy runs of bytes that follow each other packed, and in memory are a stride apart."""
    if unpacks:
        _copy_runs(memory, stride, packed, nbytes, nruns, nbytes)
    else:
        _copy_runs(packed, nbytes, memory, stride, nruns, nbytes)


@njit(nogil=True)
def _run_address(piece, nloops, index, memory):  # type: ignore[no-untyped-def]
    """Return the address of a piece's run by its number."""
    address = memory + piece[f.PIECE_OFFSET]
    for i in range(nloops - 1, 0, -1):
        count, stride = piece[f.PIECE_NFIELDS + 2 * i], piece[f.PIECE_NFIELDS + 2 * i + 1]
        address += index % count * stride
        index //= count
    return address + index * piece[f.PIECE_NFIELDS + 1] if nloops else address


@njit(nogil=True)
def _move_piece(piece, nloops, memory, at, packed, nbytes, unpacks):  # type: ignore[no-untyped-def]
    """Copy bytes of one piece, from the packed position ``at`` in it on."""
    run = piece[f.PIECE_NBYTES]
    index, skipped = at // run, at % run
    inner, stride = (
        (piece[f.PIECE_NFIELDS + 2 * nloops - 2], piece[f.PIECE_NFIELDS + 2 * nloops - 1])
        if nloops
        else (1, 0)
    )
    while nbytes > 0:
        address = _run_address(piece, nloops, index, memory) + skipped
        nruns, each = 1, min(nbytes, run - skipped)
        if each == run:
            nruns = max(1, min(inner - index % inner, nbytes // run))
        _move_runs(address, stride, packed, nruns, each, unpacks)
        index, skipped = index + nruns, 0
        packed, nbytes = packed + nruns * each, nbytes - nruns * each


@njit(nogil=True)
def _last_at(table, width, n, at):  # type: ignore[no-untyped-def]
    """Return the last of some rows that begins at a packed position or before it."""
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if pointer(table + 8 * width * middle)[0] <= at:
            low = middle
        else:
            high = middle
    return low


@njit(nogil=True)
def _move_elements(layout, memory, at, packed, nbytes, unpacks):  # type: ignore[no-untyped-def]
    """Copy bytes of the elements of one block, from the packed position ``at`` in it on."""
    head = pointer(layout)
    size, npieces, nloops, pieces = head[f.SIZE], head[f.NPIECES], head[f.NLOOPS], layout + 8 * f.PIECES
    memory, at, width = memory + at // size * head[f.EXTENT], at % size, f.PIECE_NFIELDS + 2 * nloops
    i = _last_at(pieces, width, npieces, at)
    while nbytes > 0:
        piece = pointer(pieces + 8 * width * i)
        end = piece[width] if i + 1 < npieces else size
        n = min(nbytes, end - at)
        _move_piece(piece, nloops, memory, at - piece[f.PACKED_AT], packed, n, unpacks)
        at, packed, nbytes, i = at + n, packed + n, nbytes - n, i + 1
        if i == npieces:
            memory, at, i = memory + head[f.EXTENT], 0, 0


@njit(nogil=True)
def move(table, memory, at, packed, nbytes, unpacks):  # type: ignore[no-untyped-def]
    """Copy bytes of a buffer at an address, from the packed position ``at`` on; ``table`` is the address of its map."""
    nblocks, blocks = pointer(table)[f.NBLOCKS], table + 8 * f.BLOCKS
    i = _last_at(blocks, f.BLOCK_NFIELDS, nblocks, at)
    while nbytes > 0:
        block = pointer(blocks + 8 * f.BLOCK_NFIELDS * i)
        n = min(nbytes, block[f.BLOCK_NFIELDS] - at) if i + 1 < nblocks else nbytes
        _move_elements(
            block[f.BLOCK_LAYOUT], memory + block[f.BLOCK_DISPL], at - block[f.BLOCK_AT], packed, n, unpacks
        )
        at, packed, nbytes, i = at + n, packed + n, nbytes - n, i + 1
    return 0
