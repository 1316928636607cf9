"""Compiled: buffer specs as mpi4py takes them, read from the Python objects: ``x``, ``[x, type]``, ``[x, counts, displs, type]``, ...

An array, list, tuple or int is read where CPython and NumPy keep it; `hpcoll.runtime.engine.object_layout.SUPPORTED` says whether they do
here. Whatever is not as the table's entry has it is no error: a call that is not recognised is looked at in Python.
"""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import load_int32, pointer
from hpcoll.runtime.program import call_fields as c

_NO = -1
_DIGIT_BITS, _TAG_BITS = 30, 3  # of an int; from Python 3.12 on the number of digits stands above a tag


@njit(nogil=True, forceinline=True)
def _items(table, spec):  # type: ignore[no-untyped-def]
    """Address of the items of a list or tuple; 0 for anything else."""
    fields = pointer(spec)
    if fields[c.TYPE_OF] == pointer(table)[c.LIST]:
        return fields[c.ITEMS]
    return spec + 8 * c.FIRST_ITEM if fields[c.TYPE_OF] == pointer(table)[c.TUPLE] else 0


@njit(nogil=True)
def _array(table, side, array):  # type: ignore[no-untyped-def]
    """Bytes of a C-ordered array of the side's element type, or of what holds memory; -1 for anything else."""
    wanted = pointer(side)
    return _array_nbytes(table, wanted, array) if wanted[c.DTYPE] else _held(side, array)


@njit(nogil=True, forceinline=True)
def _array_nbytes(table, wanted, array):  # type: ignore[no-untyped-def]
    fields = pointer(array)
    if fields[c.TYPE_OF] != pointer(table)[c.ARRAY] or fields[c.DESCR] != wanted[c.DTYPE]:
        return _NO
    if fields[c.FLAGS] & wanted[c.FLAGS_OF] != wanted[c.FLAGS_OF]:
        return _NO
    nbytes, dimensions = wanted[c.ITEMSIZE], pointer(fields[c.DIMENSIONS])
    for i in range(fields[c.NDIM] & 0xFFFFFFFF):
        nbytes *= dimensions[i]
    return nbytes


@njit(nogil=True)
def _held(side, holder):  # type: ignore[no-untyped-def]
    """Bytes of an object such as a bytearray; -1 for one of another type, one that may not be written, or a view with gaps."""
    fields, wanted = pointer(holder), pointer(side)
    if fields[c.TYPE_OF] != wanted[c.HOLDER]:
        return _NO
    if wanted[c.READONLY_AT] >= 0 and wanted[c.FLAGS_OF] & c.WRITEABLE and fields[wanted[c.READONLY_AT]] & 0xFFFFFFFF:
        return _NO
    if wanted[c.CHECK_AT] >= 0 and fields[wanted[c.CHECK_AT]] & wanted[c.MASK] != wanted[c.VALUE]:
        return _NO
    return fields[wanted[c.NITEMS_AT]] * wanted[c.ITEMSIZE]


@njit(nogil=True, forceinline=True)
def _data(side, array):  # type: ignore[no-untyped-def]
    """Address of the memory."""
    wanted = pointer(side)
    return pointer(array)[c.DATA if wanted[c.DTYPE] else wanted[c.DATA_AT]]


@njit(nogil=True)
def _integer(table, number):  # type: ignore[no-untyped-def]
    """An int that is not negative and fits; -1 for anything else."""
    fields, head = pointer(number), pointer(table)
    if fields[c.TYPE_OF] == head[c.INT64]:
        return max(fields[2], _NO)
    if fields[c.TYPE_OF] != head[c.INT]:
        return _NO
    tag = fields[2]
    ndigits = tag >> _TAG_BITS if head[c.TAGGED] else tag
    if head[c.TAGGED] and tag & 3 == 2:
        return _NO
    if ndigits < 0 or ndigits > 2:
        return _NO
    low, high = fields[3] & 0xFFFFFFFF, fields[3] >> 32 & 0xFFFFFFFF
    if ndigits == 0:
        return 0
    return low if ndigits == 1 else low + (high << _DIGIT_BITS)


@njit(nogil=True)
def _nth(table, numbers, i, factor):  # type: ignore[no-untyped-def]
    """One of several integers, in a list, tuple or array, or a lone one times a factor; -1 for anything else."""
    items = _items(table, numbers)
    if items:
        return _integer(table, pointer(items)[i])
    fields, head = pointer(numbers), pointer(table)
    if fields[c.TYPE_OF] != head[c.ARRAY]:
        return max(_integer(table, numbers) * factor, _NO)
    if fields[c.DESCR] == head[c.INT64_DTYPE]:
        return max(pointer(fields[c.DATA])[i], _NO)
    return max(load_int32(fields[c.DATA] + 4 * i), _NO)


@njit(nogil=True)
def _fills(table, numbers, n):  # type: ignore[no-untyped-def]
    """Whether `_nth` finds one for each of so many blocks."""
    several = _several(table, numbers)
    return several == n or (several < 0 and _integer(table, numbers) >= 0)


@njit(nogil=True)
def _several(table, numbers):  # type: ignore[no-untyped-def]
    """How many integers there are; -1 where they cannot be read."""
    fields, head = pointer(numbers), pointer(table)
    if fields[c.TYPE_OF] == head[c.LIST] or fields[c.TYPE_OF] == head[c.TUPLE]:
        return fields[c.SIZE]
    if fields[c.TYPE_OF] != head[c.ARRAY] or (fields[c.DESCR] != head[c.INT64_DTYPE] and fields[c.DESCR] != head[c.INT32_DTYPE]):
        return _NO
    if fields[c.NDIM] & 0xFFFFFFFF != 1 or fields[c.FLAGS] & c.CONTIGUOUS == 0:
        return _NO
    return pointer(fields[c.DIMENSIONS])[0]


@njit(nogil=True)
def _parts(table, side, spec):  # type: ignore[no-untyped-def]
    """Addresses of the array, its counts and its displacements in a spec, 0 where there are none; the array 0: it is another spec."""
    head, wanted = pointer(table), pointer(side)
    length = wanted[c.LENGTH]
    if length == 0:
        return spec, 0, 0
    items = _items(table, spec)
    if items == 0 or pointer(spec)[c.SIZE] != length:
        return 0, 0, 0
    found = pointer(items)
    if wanted[c.TYPE_AT] >= 0 and found[wanted[c.TYPE_AT]] != wanted[c.TYPE]:
        return 0, 0, 0
    counts, displs = (found[1] if wanted[c.TYPE_AT] != 1 else 0), (found[2] if length == 4 else 0)
    if length < 4 and counts:
        kind = pointer(counts)[c.TYPE_OF]
        if kind == head[c.TUPLE] or (kind == head[c.LIST] and wanted[c.KIND] != c.MANY):  # a pair
            if pointer(counts)[c.SIZE] != 2:
                return 0, 0, 0
            pair = pointer(_items(table, counts))
            counts, displs = pair[0], pair[1]
    return found[0], 0 if counts == head[c.NONE] else counts, 0 if displs == head[c.NONE] else displs


@njit(nogil=True)
def is_like(table, side, spec):  # type: ignore[no-untyped-def]
    """Whether a spec has the side's types, whatever its counts are."""
    array, _, _ = _parts(table, side, spec)
    return array != 0 and _array(table, side, array) >= 0


@njit(nogil=True)
def read_elements(table, side, spec):  # type: ignore[no-untyped-def]
    """Elements one after another: their address, and how many bytes of them travel; -1 where the spec is none of the side's."""
    wanted = pointer(side)
    if wanted[c.LENGTH] == 0 and wanted[c.DTYPE] != 0:  # an array, the commonest of all
        nbytes = _array_nbytes(table, wanted, spec)
        return pointer(spec)[c.DATA] if nbytes >= 0 else 0, nbytes
    array, counts, displs = _parts(table, side, spec)
    nbytes = _array(table, side, array) if array else _NO
    if nbytes < 0:
        return 0, _NO
    address, element = _data(side, array), wanted[c.ELEMENT]
    first = _integer(table, displs) * element if displs else 0
    if first < 0 or first > nbytes:
        return 0, _NO
    blocks = pointer(table)[c.NRANKS] if wanted[c.KIND] == c.BLOCKS else 1
    count = _integer(table, counts) if counts else 0
    if wanted[c.HANDLE]:
        if not counts and (nbytes - first) % (element * blocks) == 0:
            count = (nbytes - first) // (element * blocks)
        fits = (counts != 0 or count > 0) and _is_inside(wanted, first, count * blocks, nbytes)
        fits = fits and has_handle(table, pointer(_items(table, spec))[wanted[c.TYPE_AT]], wanted[c.HANDLE])
        return address + first, count * blocks * wanted[c.PACKED_SIZE] if fits else _NO
    if not counts:
        return address + first, nbytes - first
    if count < 0 or count * blocks > (nbytes - first) // element:
        return 0, _NO
    return address + first, count * blocks * element


@njit(nogil=True)
def _is_inside(wanted, first, count, nbytes):  # type: ignore[no-untyped-def]
    """Whether so many elements of a derived datatype from an offset on lie within so many bytes."""
    if count <= 0 or count - 1 > nbytes // wanted[c.ELEMENT]:  # a product that cannot overflow
        return count == 0
    return first + wanted[c.LOWER] >= 0 and first + (count - 1) * wanted[c.ELEMENT] + wanted[c.UPPER] <= nbytes


@njit(nogil=True)
def has_handle(table, thing, handle):  # type: ignore[no-untyped-def]
    """Whether a datatype or operator of mpi4py still has its handle: it has not been freed."""
    head = pointer(table)
    return pointer(thing)[head[c.HANDLE_AT]] & head[c.HANDLE_BITS] == handle


@njit(nogil=True)
def read_blocks(table, side, spec, room):  # type: ignore[no-untyped-def]
    """Blocks: the array's address and bytes, and how many blocks there are, of which displacement and size are written, in bytes.

    A side that is not looked at has none; -1 where the spec is none of the side's.
    """
    wanted, places = pointer(side), pointer(room)
    if wanted[c.KIND] == c.ABSENT:
        return 0, 0, 0
    if wanted[c.KIND] == c.ONE:
        address, nbytes = read_elements(table, side, spec)
        places[0], places[1] = 0, nbytes
        return address, nbytes, 1 if nbytes >= 0 else _NO
    array, counts, displs = _parts(table, side, spec)
    nbytes = _array(table, side, array) if array else _NO
    n, element = pointer(table)[c.NRANKS], wanted[c.ELEMENT]
    if nbytes < 0:
        return 0, 0, _NO
    if (counts and not _fills(table, counts, n)) or (displs and not _fills(table, displs, n)) or (not counts and nbytes % element):
        return 0, 0, _NO
    every, rest = nbytes // element // n, nbytes // element % n  # an even split, the rest to the first blocks
    packed = 0
    for i in range(n):
        count = _nth(table, counts, i, 1) if counts else every + (i < rest)
        displ = _nth(table, displs, i, i) if displs else packed
        if count < 0 or displ < 0 or (displ + count) * element > nbytes:
            return 0, 0, _NO
        places[2 * i], places[2 * i + 1] = displ * element, count * element
        packed += count
    return _data(side, array), nbytes, n
