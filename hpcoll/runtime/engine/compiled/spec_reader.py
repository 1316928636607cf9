"""Compiled: buffer specs as mpi4py takes them, read from the Python objects: ``x``, ``[x, type]``, ``[x, counts, displs, type]``, ...

Whoever calls these functions has the GIL, so that no other thread changes a list meanwhile. Ints are read through CPython's C API; lists,
tuples, arrays and other holders of memory by their layout, which `hpcoll.runtime.engine.object_layout` has tried. A spec that is not as
the table's entry says is no error: Python looks at it. An 8-byte Allreduce of ``[x, 1, MPI.DOUBLE]`` on one rank takes 0.44 us by this.
"""

from numba import njit

from hpcoll.runtime.engine.compiled.ffi import (
    INT,
    LONG,
    VOID,
    byte_pointer,
    capi_function,
    load_int32,
    pointer,
)
from hpcoll.runtime.program import call_fields as c

_NO = -1
_MOST = 1 << 40  # elements: products with what they are counted in do not overflow

# int, where it is noted that it does not fit
_as_int64 = capi_function("PyLong_AsLongLongAndOverflow", LONG, LONG, LONG)
_append = capi_function("PyList_Append", INT, LONG, LONG)  # list, object
_keep = capi_function("Py_IncRef", VOID, LONG)
_drop = capi_function("Py_DecRef", VOID, LONG)


@njit(nogil=True, forceinline=True)
def _length(table, spec):  # type: ignore[no-untyped-def]
    """Return how many items a list or tuple has; -1 for anything else."""
    kind, head = pointer(spec)[c.TYPE_OF], pointer(table)
    return pointer(spec)[c.SIZE] if kind == head[c.LIST] or kind == head[c.TUPLE] else _NO


@njit(nogil=True, forceinline=True)
def _item(table, spec, i):  # type: ignore[no-untyped-def]
    """Return the address of an item of a list or tuple that is long enough."""
    fields = pointer(spec)
    return pointer(
        fields[c.ITEMS] if fields[c.TYPE_OF] == pointer(table)[c.LIST] else spec + 8 * c.FIRST_ITEM
    )[i]


@njit(nogil=True)
def read_floats(spec, count, kind, target):  # type: ignore[no-untyped-def]
    """Write the numbers of a list of so many floats to an address; return how many of its first objects are of the type ``kind``, float."""
    if pointer(spec)[c.SIZE] != count:
        return 0
    items, numbers = pointer(pointer(spec)[c.ITEMS]), pointer(target)
    for i in range(count):
        if pointer(items[i])[c.TYPE_OF] != kind:
            return i
        numbers[i] = pointer(items[i])[c.SCALAR]
    return count


@njit(nogil=True, forceinline=True)
def keep(table, side, spec):  # type: ignore[no-untyped-def]
    """Keep the array that a list names, which other threads may change, while they run; return its address, or 0 where the caller does."""
    if pointer(side)[c.LENGTH] == 0 or pointer(spec)[c.TYPE_OF] != pointer(table)[c.LIST]:
        return 0
    array = _item(table, spec, 0)
    _keep((array,))
    return array


@njit(nogil=True, forceinline=True)
def drop(table, array, pending):  # type: ignore[no-untyped-def]
    """Undo `keep`; what a call that has not ended, or has failed, works on goes to the table's list of kept objects, for Python to take."""
    if array != 0:
        if pending:
            _append((pointer(table)[c.KEPT], array))
        _drop((array,))


@njit(nogil=True)
def _array(table, side, array):  # type: ignore[no-untyped-def]
    """Return the bytes of an array of the side's element type and order, or of what holds memory; -1 for anything else."""
    wanted = pointer(side)
    return _array_nbytes(table, wanted, array) if wanted[c.DTYPE] else _held(side, array)


@njit(nogil=True, forceinline=True)
def _array_nbytes(table, wanted, array):  # type: ignore[no-untyped-def]
    """Return the bytes of an array of the side's element type and order; -1 for anything else."""
    fields = pointer(array)
    if fields[c.TYPE_OF] != pointer(table)[c.ARRAY] and fields[c.TYPE_OF] != wanted[c.HOLDER]:
        return _NO
    if fields[c.DESCR] != wanted[c.DTYPE] and not _is_alike(wanted, fields[c.DESCR]):
        return _NO
    if fields[c.FLAGS] & wanted[c.FLAGS_OF] != wanted[c.FLAGS_OF]:
        return _NO
    nbytes, dimensions = wanted[c.ITEMSIZE], pointer(fields[c.DIMENSIONS])
    for i in range(fields[c.NDIM] & 0xFFFFFFFF):
        nbytes *= dimensions[i]
    return nbytes


@njit(nogil=True)
def _is_alike(wanted, dtype):  # type: ignore[no-untyped-def]
    """Say whether another structured type is as long as the side's, and of numbers; the spec's datatype says of which."""
    words = pointer(dtype)
    return (
        wanted[c.VALUE] != 0
        and words[c.DESCR_KIND] == wanted[c.VALUE]
        and words[c.DESCR_NBYTES] == wanted[c.ITEMSIZE]
        and words[c.DESCR_FLAGS] & c.HAS_OBJECTS == 0
    )


@njit(nogil=True)
def _has_format(text, wanted):  # type: ignore[no-untyped-def]
    """Say whether the text at an address is the one that a word holds."""
    if text == 0:
        return False
    for i in range(8):
        letter = wanted >> 8 * i & 0xFF
        if byte_pointer(text)[i] != letter:
            return False
        if letter == 0:
            return True
    return False


@njit(nogil=True)
def _held(side, holder):  # type: ignore[no-untyped-def]
    """Return the bytes of a bytearray or the like; -1 for an object of another type, a read-only one to write to, or a view with gaps."""
    fields, wanted = pointer(holder), pointer(side)
    if fields[c.TYPE_OF] != wanted[c.HOLDER]:
        return _NO
    if (
        wanted[c.READONLY_AT] >= 0
        and wanted[c.FLAGS_OF] & c.WRITEABLE
        and fields[wanted[c.READONLY_AT]] & 0xFFFFFFFF
    ):
        return _NO
    if wanted[c.CHECK_AT] >= 0 and fields[wanted[c.CHECK_AT]] & wanted[c.MASK] != wanted[c.VALUE]:
        return _NO
    if wanted[c.FORMAT] != 0 and not _has_format(fields[wanted[c.FORMAT_AT]], wanted[c.FORMAT]):
        return _NO
    return (fields[wanted[c.NITEMS_AT]] if wanted[c.NITEMS_AT] >= 0 else 1) * wanted[c.ITEMSIZE]


@njit(nogil=True, forceinline=True)
def _data(side, array):  # type: ignore[no-untyped-def]
    """Return the address of the memory."""
    at = c.DATA if pointer(side)[c.DTYPE] else pointer(side)[c.DATA_AT]
    return pointer(array)[at] if at >= 0 else array - at


@njit(nogil=True, forceinline=True)
def _counted(number):  # type: ignore[no-untyped-def]
    """Return a number that can be a count; -1 in place of another."""
    return number if 0 <= number < _MOST else _NO


@njit(nogil=True)
def _integer(table, number):  # type: ignore[no-untyped-def]
    """Return an int that can be a count; -1 for anything else."""
    fields, head = pointer(number), pointer(table)
    if fields[c.TYPE_OF] == head[c.INT64]:
        return _counted(fields[c.SCALAR])
    return _counted(_as_int64((number, table + 8 * c.OVERFLOW))) if fields[c.TYPE_OF] == head[c.INT] else _NO


@njit(nogil=True)
def _nth(table, numbers, i, factor):  # type: ignore[no-untyped-def]
    """Return one of several integers, in a list, tuple or array, or a lone one times a factor; -1 for anything else."""
    fields, head = pointer(numbers), pointer(table)
    if fields[c.TYPE_OF] == head[c.LIST] or fields[c.TYPE_OF] == head[c.TUPLE]:
        return _integer(table, _item(table, numbers, i))
    if fields[c.TYPE_OF] != head[c.ARRAY]:
        return max(_integer(table, numbers) * factor, _NO)
    address = fields[c.DATA] + i * pointer(fields[c.STRIDES])[0]  # they may be a column of a matrix
    return _counted(pointer(address)[0] if fields[c.DESCR] == head[c.INT64_DTYPE] else load_int32(address))


@njit(nogil=True)
def _fills(table, numbers, n):  # type: ignore[no-untyped-def]
    """Say whether `_nth` finds an integer for each of so many blocks."""
    several = _several(table, numbers)
    return several == n or (several < 0 and _integer(table, numbers) >= 0)


@njit(nogil=True)
def _several(table, numbers):  # type: ignore[no-untyped-def]
    """Return how many integers there are; -1 where they cannot be read."""
    fields, head = pointer(numbers), pointer(table)
    if fields[c.TYPE_OF] != head[c.ARRAY]:
        return _length(table, numbers)
    if (fields[c.DESCR] != head[c.INT64_DTYPE] and fields[c.DESCR] != head[c.INT32_DTYPE]) or fields[
        c.FLAGS
    ] & c.ALIGNED == 0:
        return _NO
    return pointer(fields[c.DIMENSIONS])[0] if fields[c.NDIM] & 0xFFFFFFFF == 1 else _NO


@njit(nogil=True)
def _parts(table, side, spec):  # type: ignore[no-untyped-def]
    """Return the addresses of the array, its counts and its displacements in a spec, 0 where there are none; the array 0: another spec."""
    head, wanted = pointer(table), pointer(side)
    length = wanted[c.LENGTH]
    if length == 0:
        return spec, 0, 0
    if _length(table, spec) != length or (
        wanted[c.TYPE_AT] >= 0 and _item(table, spec, wanted[c.TYPE_AT]) != wanted[c.TYPE]
    ):
        return 0, 0, 0
    counts, displs = (
        (_item(table, spec, 1) if wanted[c.TYPE_AT] != 1 else 0),
        (_item(table, spec, 2) if length == 4 else 0),
    )
    if length < 4 and counts:
        kind = pointer(counts)[c.TYPE_OF]
        if kind == head[c.TUPLE] or (kind == head[c.LIST] and wanted[c.KIND] != c.MANY):  # a pair
            if _length(table, counts) != 2:
                return 0, 0, 0
            counts, displs = _item(table, counts, 0), _item(table, counts, 1)
    return (
        _item(table, spec, 0),
        0 if counts == head[c.NONE] else counts,
        0 if displs == head[c.NONE] else displs,
    )


@njit(nogil=True)
def is_like(table, side, spec):  # type: ignore[no-untyped-def]
    """Say whether a spec has the side's types, whatever its counts are."""
    array, _, _ = _parts(table, side, spec)
    return array != 0 and _array(table, side, array) >= 0


@njit(nogil=True)
def read_elements(table, side, spec):  # type: ignore[no-untyped-def]
    """Return the address of elements one after another, and how many bytes of them travel; -1 where the spec is none of the side's."""
    wanted = pointer(side)
    if wanted[c.LENGTH] == 0 and wanted[c.DTYPE] != 0:  # an array, the commonest of all
        nbytes = _array_nbytes(table, wanted, spec)
        return pointer(spec)[c.DATA] if nbytes >= 0 else 0, nbytes
    array, counts, displs = _parts(table, side, spec)
    nbytes = _array(table, side, array) if array else _NO
    if nbytes < 0:
        return 0, _NO
    address, element = _data(side, array), wanted[c.ELEMENT]
    first = _integer(table, displs) if displs else 0
    if first != 0 and not 0 < first <= nbytes // element:
        return 0, _NO
    first *= element
    blocks = wanted[c.NBLOCKS]
    count = _integer(table, counts) if counts else 0
    if wanted[c.HANDLE]:
        if not counts and (nbytes - first) % (element * blocks) == 0:
            count = (nbytes - first) // (element * blocks)
        fits = (counts != 0 or count > 0) and _is_inside(wanted, first, count * blocks, nbytes)
        fits = fits and has_handle(table, _item(table, spec, wanted[c.TYPE_AT]), wanted[c.HANDLE])
        return address + first, count * blocks * wanted[c.PACKED_SIZE] if fits else _NO
    if not counts:
        return address + first, nbytes - first
    if count < 0 or count * blocks > (nbytes - first) // element:
        return 0, _NO
    return address + first, count * blocks * element


@njit(nogil=True)
def _is_inside(wanted, first, count, nbytes):  # type: ignore[no-untyped-def]
    """Say whether so many elements of a derived datatype from an offset on lie within so many bytes."""
    if count <= 0 or count - 1 > nbytes // wanted[c.ELEMENT]:  # a product that cannot overflow
        return count == 0
    return (
        first + wanted[c.LOWER] >= 0 and first + (count - 1) * wanted[c.ELEMENT] + wanted[c.UPPER] <= nbytes
    )


@njit(nogil=True)
def has_handle(table, thing, handle):  # type: ignore[no-untyped-def]
    """Say whether a datatype or operator of mpi4py still has its handle: it has not been freed."""
    head = pointer(table)
    return pointer(thing)[head[c.HANDLE_AT]] & head[c.HANDLE_BITS] == handle


@njit(nogil=True)
def _read_typed(table, side, spec, room):  # type: ignore[no-untyped-def]
    """Read blocks with datatypes of their own, as `read_blocks`: they must be those of an earlier call, in an array that may be another."""
    wanted, places, length, n = (
        pointer(side),
        pointer(room),
        pointer(side)[c.LENGTH],
        pointer(side)[c.NBLOCKS],
    )
    if _length(table, spec) != length:
        return 0, 0, _NO
    types = _item(table, spec, length - 1)
    array, counts, displs = _parts(table, side, spec) if length > 2 else (_item(table, spec, 0), 0, 0)
    nbytes = _array(table, side, array) if array else _NO
    if nbytes < wanted[c.UPPER] or _length(table, types) != n:
        return 0, 0, _NO
    if length > 2 and (
        counts == 0 or displs == 0 or not _fills(table, counts, n) or not _fills(table, displs, n)
    ):
        return 0, 0, _NO
    for i in range(n):
        row, datatype = pointer(wanted[c.TYPE] + 8 * c.TYPED_NFIELDS * i), _item(table, types, i)
        count, displ = (_nth(table, counts, i, 1), _nth(table, displs, i, 1)) if length > 2 else (1, 0)
        if count != row[c.TYPED_COUNT] or displ != row[c.TYPED_DISPL] or datatype != row[c.TYPED_TYPE]:
            return 0, 0, _NO
        if not has_handle(table, datatype, row[c.TYPED_HANDLE]):
            return 0, 0, _NO
        places[2 * i], places[2 * i + 1] = row[c.TYPED_PLACE], row[c.TYPED_PLACE + 1]
    return _data(side, array), nbytes, n


@njit(nogil=True)
def read_blocks(table, side, spec, room):  # type: ignore[no-untyped-def]
    """Write displacement and size of each block, in bytes; return the array's address and bytes, and how many blocks there are.

    A side that is not looked at has none; -1 where the spec is none of the side's.
    """
    wanted, places = pointer(side), pointer(room)
    if wanted[c.KIND] == c.ABSENT:
        return 0, 0, 0
    if wanted[c.KIND] == c.ONE:
        address, nbytes = read_elements(table, side, spec)
        places[0], places[1] = 0, nbytes
        return address, nbytes, 1 if nbytes >= 0 else _NO
    if wanted[c.KIND] == c.TYPED:
        return _read_typed(table, side, spec, room)
    array, counts, displs = _parts(table, side, spec)
    nbytes = _array(table, side, array) if array else _NO
    n, element = wanted[c.NBLOCKS], wanted[c.ELEMENT]
    if nbytes < 0:
        return 0, 0, _NO
    if (
        (counts and not _fills(table, counts, n))
        or (displs and not _fills(table, displs, n))
        or (not counts and nbytes % element)
    ):
        return 0, 0, _NO
    every, rest = nbytes // element // n, nbytes // element % n  # an even split, the rest to the first blocks
    packed = 0
    for i in range(n):
        count = _nth(table, counts, i, 1) if counts else every + (i < rest)
        displ = _nth(table, displs, i, i) if displs else packed
        if count < 0 or displ < 0 or displ + count > nbytes // element:
            return 0, 0, _NO
        places[2 * i], places[2 * i + 1] = displ * element, count * element
        packed += count
    return _data(side, array), nbytes, n
