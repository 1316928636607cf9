"""Layouts of datatypes: compiled code packs and unpacks the bytes that the MPI library does, of any constructors one in another."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI
from reference import ensure, ensure_none

from hpcoll.comm.arguments.datatypes import layout_of_datatype
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.program.fields import PACK, UNPACK
from hpcoll.runtime.program.layouts import Map

pytestmark = pytest.mark.mpi
# Not complex ones: Open MPI 5.0.11 packs a vector of pairs of them wrong where its stride is no whole number of them.
BASIC = [MPI.BYTE, MPI.SHORT, MPI.INT, MPI.DOUBLE, MPI.SHORT_INT, MPI.DOUBLE_INT, MPI.LONG_DOUBLE_INT]
MOST_NBYTES = 1 << 16  # of an element's extent


def _few(draw: random.Random, n: int, most: int) -> list[int]:
    return [draw.randint(0, most) for _ in range(n)]


def _box(draw: random.Random, old: MPI.Datatype) -> MPI.Datatype:
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
    lengths = [draw.randint(1, size) for size in sizes]
    firsts = [draw.randint(0, size - length) for size, length in zip(sizes, lengths, strict=True)]
    return old.Create_subarray(sizes, lengths, firsts, draw.choice([MPI.ORDER_C, MPI.ORDER_FORTRAN]))


def _distributed(draw: random.Random, old: MPI.Datatype) -> MPI.Datatype:
    kinds = [
        draw.choice([MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_NONE]) for _ in range(2)
    ]
    arguments = [
        draw.choice([MPI.DISTRIBUTE_DFLT_DARG, 3 if kind == MPI.DISTRIBUTE_BLOCK else 2]) for kind in kinds
    ]
    arguments = [
        MPI.DISTRIBUTE_DFLT_DARG if kind == MPI.DISTRIBUTE_NONE else one
        for kind, one in zip(kinds, arguments, strict=True)
    ]
    processes = [1 if kind == MPI.DISTRIBUTE_NONE else 2 for kind in kinds]
    order, rank = draw.choice([MPI.ORDER_C, MPI.ORDER_FORTRAN]), draw.randrange(processes[0] * processes[1])
    return old.Create_darray(processes[0] * processes[1], rank, [5, 6], kinds, arguments, processes, order)


def _struct(draw: random.Random, old: MPI.Datatype) -> MPI.Datatype:
    return MPI.Datatype.Create_struct(
        _few(draw, 3, 2), [0, 3 * old.extent, 800], [old, draw.choice(BASIC), old]
    )


MAKERS: list[Callable[[random.Random, MPI.Datatype], MPI.Datatype]] = [
    lambda draw, old: old.Dup(),
    lambda draw, old: old.Create_contiguous(draw.randint(1, 3)),
    lambda draw, old: old.Create_vector(draw.randint(1, 4), draw.randint(1, 3), draw.randint(3, 5)),
    lambda draw, old: old.Create_hvector(draw.randint(1, 4), 2, 2 * old.extent + draw.choice([0, 8, 24])),
    lambda draw, old: old.Create_indexed(_few(draw, 3, 2), [0, 2, 7]),
    lambda draw, old: old.Create_hindexed(_few(draw, 3, 2), [16, 16 + 2 * old.extent, 5 * old.extent]),
    lambda draw, old: old.Create_indexed_block(2, [0, 2, 5, 7][: draw.randint(1, 4)]),
    lambda draw, old: old.Create_hindexed_block(1, [0, old.extent, 3 * old.extent + 4]),
    lambda draw, old: old.Create_resized(-8, old.extent + draw.choice([0, 8])),
    _struct,
    _box,
    _distributed,
]


def _drawn(draw: random.Random) -> MPI.Datatype:
    """A datatype of up to four constructors, of an element that has an extent and bytes."""
    made = draw.choice(BASIC)
    for _ in range(draw.randint(1, 4)):
        further = draw.choice(MAKERS)(draw, made)
        if not further.size or further.extent <= 0 or further.Get_true_extent()[1] > MOST_NBYTES:
            further.Free()
            continue
        if not made.is_predefined:
            made.Free()
        made = further
    return made.Commit()


def _fails(datatype: MPI.Datatype, draw: random.Random) -> bool:
    """Say whether elements are packed or unpacked otherwise than by the library, as a whole or in two parts."""
    layout, count = layout_of_datatype(datatype), draw.randint(1, 3)
    assert layout is not None
    assert layout.size == datatype.size
    lower, extent = datatype.Get_true_extent()
    memory = np.frombuffer(
        draw.randbytes(max(0, -lower) + max(0, lower) + extent + (count - 1) * datatype.extent), np.uint8
    ).copy()
    start = memory.ctypes.data + max(0, -lower)
    elements, size = MPI.buffer.fromaddress(start, count * datatype.extent), count * layout.size
    expected, found, copy = (np.zeros(size, np.uint8) for _ in range(3))
    datatype.Pack(elements, expected, 0, MPI.COMM_SELF)
    table = layout.table(datatype.extent)
    whole = Map([(size, 0, table)])
    call_compiled(PACK, whole.address, start, found.ctypes.data, size)
    before = memory.copy()
    memory[:] = 0
    datatype.Unpack(expected, 0, elements, MPI.COMM_SELF)
    unpacked = memory.copy()
    memory[:] = 0
    call_compiled(UNPACK, whole.address, start, found.ctypes.data, size)
    right = (expected == found).all() and (memory == unpacked).all()
    places = _places(whole) + max(0, -lower)
    right = right and (before[places] == expected).all()
    if count > 1:  # an element, and the others as a block of their own
        memory[:] = before
        parts = Map([(layout.size, 0, table), (0, 0, table), (size - layout.size, datatype.extent, table)])
        call_compiled(PACK, parts.address, start, copy.ctypes.data, size)
        right = right and (copy == expected).all() and (_places(parts) + max(0, -lower) == places).all()
    return not right


def _places(blocks: Map) -> np.ndarray:
    """Offsets of all bytes in the order in which they are packed, as a GPU's kernel finds them by the pieces."""
    found = [np.zeros(0, np.int64)]
    for at, offset, nbytes, *loops in blocks.pieces.tolist():
        assert at == sum(map(len, found))
        offsets = np.array([offset])
        for n, step in [*zip(loops[::2], loops[1::2], strict=True), (nbytes, 1)]:
            offsets = (offsets[:, None] + step * np.arange(n)).ravel()
        found.append(offsets)
    return np.concatenate(found)


def test_as_the_library_packs(short: bool) -> None:
    """Any constructors one in another, offsets below 0 and elements in blocks of their own too."""
    wrong = []
    for seed in range(200 if short else 3000):
        draw = random.Random(1000 * MPI.COMM_WORLD.rank + seed)
        datatype = _drawn(draw)
        wrong += [seed] if _fails(datatype, draw) else []
        if not datatype.is_predefined:
            datatype.Free()
    ensure_none(wrong)


def test_types_made_again_are_remembered() -> None:
    """By what they are made of: programs make and free the same ones for each call. One that starts elsewhere is another."""

    def made(first: int) -> MPI.Datatype:
        return MPI.DOUBLE.Create_subarray([8, 8], [8, 2], [0, first]).Create_vector(2, 1, 3)

    one, again, other = map(layout_of_datatype, map(made, (2, 2, 4)))
    ensure(one is again is not None, "read twice")
    ensure(other is not None and other.pieces[0, 1] == 4 * 8, other)
