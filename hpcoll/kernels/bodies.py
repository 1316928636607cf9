"""Bodies of the GPU kernels: how threads share out memory.

Each factory gives a Python function and the Numba signature to compile it for. Every parameter is 8 bytes wide. Threads stride
over the grid with 64-bit indices, so that any grid serves any count.
"""

from typing import Any

import numpy as np
from numba import cuda, types

from hpcoll.base.ops import ReduceOp
from hpcoll.kernels import MAX_DESTINATIONS, MAX_SOURCES, WIDE_NBYTES, vectors
from hpcoll.kernels import one_shot_layout as n
from hpcoll.kernels.numbers import Number, operator, times

address = vectors.address
_BYTES = types.CPointer(types.uint8)


def _apart(d0, d1, d2, d3, d4, d5, d6, d7, s0, s1, s2, s3, s4, s5, s6, s7):  # type: ignore[no-untyped-def]
    """0 where all addresses are equally far from a multiple of `WIDE_NBYTES`."""
    found = (d0 ^ d1) | (d0 ^ d2) | (d0 ^ d3) | (d0 ^ d4) | (d0 ^ d5) | (d0 ^ d6) | (d0 ^ d7)
    found |= (d0 ^ s0) | (d0 ^ s1) | (d0 ^ s2) | (d0 ^ s3) | (d0 ^ s4) | (d0 ^ s5) | (d0 ^ s6) | (d0 ^ s7)
    return found & (WIDE_NBYTES - 1)


def _combined(one: Number, op: ReduceOp) -> Any:
    """Return the function ``(s0, ..., s7, nsources, i)``: the canonical expression of element i of 2 to 8 sources, rounded once."""
    widen = vectors.calls(one.widen, one.work(one.stored))
    narrow = vectors.calls(one.narrow, one.stored(one.work))
    meet = vectors.calls(operator(op, one.work), one.work(one.work, one.work))

    def combine(s0, s1, s2, s3, s4, s5, s6, s7, nsources, i):  # type: ignore[no-untyped-def]
        part = meet(widen(s0[i]), widen(s1[i]))
        if nsources > 2:
            beside = widen(s2[i])
            if nsources > 3:
                beside = meet(beside, widen(s3[i]))
            part = meet(part, beside)
        if nsources > 4:
            above = widen(s4[i])
            if nsources > 5:
                above = meet(above, widen(s5[i]))
            if nsources > 6:
                beside = widen(s6[i])
                if nsources > 7:
                    beside = meet(beside, widen(s7[i]))
                above = meet(above, beside)
            part = meet(part, above)
        return narrow(part)

    pointers = [types.CPointer(one.stored)] * MAX_SOURCES
    return vectors.calls(combine, one.stored(*pointers, types.int64, types.int64))


def fold(one: Number, op: ReduceOp) -> tuple[Any, Any]:
    """``(d0, ..., d7, ndestinations, s0, ..., s7, nsources, count)``: the canonical expression of ``s0[i], s1[i], ...``, in all ``d[i]``.

    `hpcoll.base.canonical` has it: that of 7 is ``((s0 s1) (s2 s3)) ((s4 s5) s6)``. Pointers that are not in use repeat one that is.
    Elements in front of the first multiple of `WIDE_NBYTES` and behind the last go one by one, all others in vectors, where that is the
    same elements in all arrays. All sources of a vector are loaded before any is used, and all before a destination is written.
    """
    nlanes = WIDE_NBYTES * 8 // one.stored.bitwidth
    itemsize = WIDE_NBYTES // nlanes
    load, store, split, join = vectors.access(one.stored, nlanes)
    widen = vectors.lanewise(one.widen, one.work(one.stored), nlanes)
    narrow = vectors.lanewise(one.narrow, one.stored(one.work), nlanes)
    meet = vectors.lanewise(operator(op, one.work), one.work(one.work, one.work), nlanes)
    combined = _combined(one, op)
    apart = vectors.calls(_apart, types.uint64(*[types.uint64] * (MAX_DESTINATIONS + MAX_SOURCES)))
    ahead = vectors.ahead

    def kernel(  # type: ignore[no-untyped-def]
        d0, d1, d2, d3, d4, d5, d6, d7, ndestinations, s0, s1, s2, s3, s4, s5, s6, s7, nsources, count
    ):
        thread, nthreads = cuda.grid(1), cuda.gridsize(1)
        differ = apart(
            address(d0),
            address(d1),
            address(d2),
            address(d3),
            address(d4),
            address(d5),
            address(d6),
            address(d7),
            address(s0),
            address(s1),
            address(s2),
            address(s3),
            address(s4),
            address(s5),
            address(s6),
            address(s7),
        )
        beyond = np.int64(address(d0) & (WIDE_NBYTES - 1))
        head = (
            (WIDE_NBYTES - beyond) % WIDE_NBYTES // itemsize
            if differ == 0 and beyond % itemsize == 0
            else count
        )
        head = min(head, count)
        nvectors = (count - head) // nlanes
        a0, a1, a2, a3 = ahead(s0, head), ahead(s1, head), ahead(s2, head), ahead(s3, head)
        a4, a5, a6, a7 = ahead(s4, head), ahead(s5, head), ahead(s6, head), ahead(s7, head)
        i = thread
        while i < nvectors:
            v0, v1 = load(a0, i), load(a1, i)
            v2 = load(a2, i) if nsources > 2 else v1
            v3 = load(a3, i) if nsources > 3 else v1
            v4 = load(a4, i) if nsources > 4 else v1
            v5 = load(a5, i) if nsources > 5 else v1
            v6 = load(a6, i) if nsources > 6 else v1
            v7 = load(a7, i) if nsources > 7 else v1
            partial = meet(widen(split(v0)), widen(split(v1)))
            if nsources > 2:
                other = widen(split(v2))
                if nsources > 3:
                    other = meet(other, widen(split(v3)))
                partial = meet(partial, other)
            if nsources > 4:
                upper = widen(split(v4))
                if nsources > 5:
                    upper = meet(upper, widen(split(v5)))
                if nsources > 6:
                    other = widen(split(v6))
                    if nsources > 7:
                        other = meet(other, widen(split(v7)))
                    upper = meet(upper, other)
                partial = meet(partial, upper)
            result = join(narrow(partial))
            store(ahead(d0, head), i, result)
            if ndestinations > 1:
                store(ahead(d1, head), i, result)
            if ndestinations > 2:
                store(ahead(d2, head), i, result)
            if ndestinations > 3:
                store(ahead(d3, head), i, result)
            if ndestinations > 4:
                store(ahead(d4, head), i, result)
            if ndestinations > 5:
                store(ahead(d5, head), i, result)
            if ndestinations > 6:
                store(ahead(d6, head), i, result)
            if ndestinations > 7:
                store(ahead(d7, head), i, result)
            i += nthreads
        j = thread
        while j < count - nvectors * nlanes:
            i = j if j < head else j + nvectors * nlanes
            single = combined(s0, s1, s2, s3, s4, s5, s6, s7, nsources, i)
            d0[i] = single
            if ndestinations > 1:
                d1[i] = single
            if ndestinations > 2:
                d2[i] = single
            if ndestinations > 3:
                d3[i] = single
            if ndestinations > 4:
                d4[i] = single
            if ndestinations > 5:
                d5[i] = single
            if ndestinations > 6:
                d6[i] = single
            if ndestinations > 7:
                d7[i] = single
            j += nthreads

    pointer = types.CPointer(one.stored)
    return kernel, types.void(
        *[pointer] * MAX_DESTINATIONS, types.int64, *[pointer] * MAX_SOURCES, types.int64, types.int64
    )


def scale(source: Number, target: Number) -> tuple[Any, Any]:
    """``(dst, src, count, real, imag, divides)``: ``dst[i] = src[i]`` times a number, or by it, in the wider of the two types."""
    nlanes = WIDE_NBYTES * 8 // max(source.stored.bitwidth, target.stored.bitwidth)
    load, _, split, _ = vectors.access(source.stored, nlanes)
    _, store, _, join = vectors.access(target.stored, nlanes)
    widen = vectors.calls(source.widen, source.work(source.stored))
    scaled = vectors.calls(
        times(source.work), source.work(source.work, types.float64, types.float64, types.int64)
    )
    narrow = vectors.calls(target.narrow, target.stored(target.work))

    def change_one(element, real, imag, divides):  # type: ignore[no-untyped-def]
        return narrow(scaled(widen(element), real, imag, divides))

    signature = target.stored(source.stored, types.float64, types.float64, types.int64)
    change = vectors.lanewise(change_one, signature, nlanes)
    change_one = vectors.calls(change_one, signature)

    def kernel(dst, src, count, real, imag, divides):  # type: ignore[no-untyped-def]
        thread, nthreads = cuda.grid(1), cuda.gridsize(1)
        nvectors = 0 if (address(dst) | address(src)) & 15 else count // nlanes
        i = thread
        while i < nvectors:
            store(dst, i, join(change(split(load(src, i)), real, imag, divides)))
            i += nthreads
        i = nvectors * nlanes + thread
        while i < count:
            dst[i] = change_one(src[i], real, imag, divides)
            i += nthreads

    pointers = types.CPointer(target.stored), types.CPointer(source.stored)
    return kernel, types.void(*pointers, types.int64, types.float64, types.float64, types.int64)


def _offset(pieces, first, nloops, at):  # type: ignore[no-untyped-def]
    """Byte offset of a packed position in the piece whose words begin at ``first``; unsigned, because signed division costs more."""
    run, rest = np.uint64(pieces[first + 2]), np.uint64(at - pieces[first])
    index = rest // run
    offset = pieces[first + 1] + np.int64(rest - index * run)
    loop = first + 1 + 2 * nloops
    while loop > first + 3:
        count = np.uint64(pieces[loop])
        above = index // count
        offset += np.int64(index - above * count) * pieces[loop + 1]
        index = above
        loop -= 2
    return offset + np.int64(index) * pieces[first + 4] if nloops > 0 else offset


def move(itemsize: int) -> tuple[Any, Any]:
    """``(packed, memory, pieces, npieces, nloops, nitems, unpacks)``: items from where they lie to where they are packed, or back.

    ``pieces`` has 3 + 2 nloops int64 for each piece, in the order of packed positions: packed position, offset from ``memory`` on and
    bytes of its first run, then count and stride of each loop around it, the outermost first. All but the counts are multiples of the
    item. Neighbouring threads have neighbouring items of the packed side.
    """
    copy = vectors.copier(itemsize)
    words = types.CPointer(types.int64)
    offset_of = vectors.calls(_offset, types.int64(words, *[types.int64] * 3))

    def kernel(packed, memory, pieces, npieces, nloops, nitems, unpacks):  # type: ignore[no-untyped-def]
        i, width = cuda.grid(1), 3 + 2 * nloops
        while i < nitems:
            at, low, high = i * itemsize, 0, npieces
            while high - low > 1:
                middle = (low + high) // 2
                if pieces[middle * width] <= at:
                    low = middle
                else:
                    high = middle
            offset = offset_of(pieces, low * width, nloops, at)
            if unpacks:
                copy(memory, offset, packed, at)
            else:
                copy(packed, at, memory, offset)
            i += cuda.gridsize(1)

    return kernel, types.void(_BYTES, _BYTES, words, *[types.int64] * 4)


def one_shot(combined: tuple[Number, ReduceOp] | None) -> tuple[Any, Any]:
    """``(channel, sent, received, nbytes, chunk, npieces, first, nsources, part, check)``: a whole call, by one launch on every rank.

    `hpcoll.kernels.one_shot_layout` has the memory. A rank with `WRITES` sends ``npieces`` pieces of ``nbytes``, of which a block has up to
    ``chunk`` bytes each: one for all ranks, or one for each. A rank with `READS` receives its piece of ``nsources`` ranks from ``first``
    on: their canonical expression, or one behind the other. All ranks of the channel launch the same, with the same check. Chunks are
    multiples of `WIDE_NBYTES`.

    A slot is written anew two calls later. By then this block has seen the flags of the call between, which peers write behind all that
    they have read in this one.
    """
    word, byte = vectors.pointer_to(types.int64), vectors.pointer_to(types.uint8)
    load_acquire, store_release, ahead = vectors.load_acquire, vectors.store_release, vectors.ahead
    words = types.CPointer(types.int64)

    def meet(channel, block, side, generation, check):  # type: ignore[no-untyped-def]
        """Tell all ranks that the slot is written, and wait for theirs: a thread for each rank."""
        peer, row = cuda.threadIdx.x, (side * n.MOST_BLOCKS + block) * MAX_SOURCES
        if peer < channel[n.NRANKS]:
            flag = channel[n.AREAS + peer] + n.FLAGS_AT + n.FLAG_NBYTES * (row + channel[n.RANK])
            word(flag)[1] = check
            store_release(flag, generation)
            flag = channel[n.AREAS + channel[n.RANK]] + n.FLAGS_AT + n.FLAG_NBYTES * (row + peer)
            looks = 0
            while load_acquire(flag) != generation:
                looks += 1
                if looks % n.LOOKS == 0 and load_acquire(channel[n.STOP]) != 0:
                    break
            if word(flag)[1] != check:
                store_release(channel[n.STOP], 1)

    meet = vectors.calls(meet, types.void(words, *[types.int64] * 4))
    copy = vectors.calls(_copy, types.void(_BYTES, _BYTES, types.int64))
    read = _reader(combined)

    def kernel(channel, sent, received, nbytes, chunk, npieces, first, nsources, part, check):  # type: ignore[no-untyped-def]
        block, area = np.int64(cuda.blockIdx.x), channel[n.AREAS + channel[n.RANK]]
        generation = word(area)[block] + 1
        side = generation & 1
        slot = n.SLOTS_AT + (side * n.MOST_BLOCKS + block) * n.SLOT_NBYTES
        low = block * chunk
        mine = max(min(chunk, nbytes - low), 0)
        piece = 0 if part & n.WRITES else npieces
        while piece < npieces:
            copy(byte(area + slot + piece * chunk), ahead(sent, piece * nbytes + low), mine)
            piece += 1
        cuda.syncthreads()
        meet(channel, block, side, generation, check)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            word(area)[block] = generation
        if part & n.READS:
            slot += channel[n.RANK] * chunk if npieces > 1 else 0
            read(channel, slot, ahead(received, low), nbytes, mine, first, nsources)

    return kernel, types.void(words, _BYTES, _BYTES, *[types.int64] * 7)


def _copy(target, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy bytes by the threads of a block; in words where both sides are aligned to that."""
    i = np.int64(cuda.threadIdx.x)
    if (address(target) | address(source) | np.uint64(nbytes)) & np.uint64(3) == 0:
        while i < nbytes // 4:
            _copy_word(target, 4 * i, source, 4 * i)
            i += cuda.blockDim.x
    else:
        while i < nbytes:
            target[i] = source[i]
            i += cuda.blockDim.x


_copy_word = vectors.copier(4)


def _reader(combined: tuple[Number, ReduceOp] | None) -> Any:
    """Return the function by which a block of a one-shot kernel reads ``mine`` bytes in the slots of ``nsources`` ranks."""
    element = types.uint8 if combined is None else combined[0].stored
    pointer, words, ahead = vectors.pointer_to(element), types.CPointer(types.int64), vectors.ahead
    copy = vectors.calls(_copy, types.void(_BYTES, _BYTES, types.int64))
    combine: Any = combined and _combined(*combined)
    itemsize = element.bitwidth // 8

    def source(channel, rank, last, slot):  # type: ignore[no-untyped-def]
        return pointer(channel[n.AREAS + min(rank, last)] + slot)

    source = vectors.calls(source, types.CPointer(element)(words, *[types.int64] * 3))

    def read_all(channel, slot, received, nbytes, mine, first, nsources):  # type: ignore[no-untyped-def]
        which = 0
        while which < nsources:
            copy(ahead(received, which * nbytes), source(channel, first + which, first + which, slot), mine)
            which += 1

    def read_combined(channel, slot, received, nbytes, mine, first, nsources):  # type: ignore[no-untyped-def]
        i, last, target = np.int64(cuda.threadIdx.x), first + nsources - 1, pointer(address(received))
        s0, s1 = source(channel, first, last, slot), source(channel, first + 1, last, slot)
        s2, s3 = source(channel, first + 2, last, slot), source(channel, first + 3, last, slot)
        s4, s5 = source(channel, first + 4, last, slot), source(channel, first + 5, last, slot)
        s6, s7 = source(channel, first + 6, last, slot), source(channel, first + 7, last, slot)
        while i < mine // itemsize:
            target[i] = combine(s0, s1, s2, s3, s4, s5, s6, s7, nsources, i)
            i += cuda.blockDim.x

    signature = types.void(words, types.int64, _BYTES, *[types.int64] * 4)
    return vectors.calls(read_combined if combined else read_all, signature)
