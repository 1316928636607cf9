"""The fields of what compiled code reads of a call: tables of earlier calls, array objects, calls of the MPI library."""

MISS, NATIVE = 4, 5  # answers besides those of `hpcoll.runtime.engine.compiled.interpreter.run`

# A table. NENTRIES; LATEST: the entry found last; RANK: of this process; ARRAY to INT32_DTYPE: addresses of the types
# and of the objects that are looked for; OVERFLOW: room for what CPython says of an int that is too large; COUNTS: address of room for the
# counts of a call; KEPT: address of a Python list, of arrays of calls that have not ended; COUNT: of a call with one, else its bytes;
# STARTS: for calls that are started only, to be in flight, address of how many operations have ended and how many were issued before;
# SOURCE, TARGET: addresses of a call that must wait for those; HANDLE_AT: word of a datatype's or an operator's object in which its handle
# stands, of which HANDLE_BITS count; ENTRIES.
(
    NENTRIES,
    LATEST,
    RANK,
    COUNTS,
    ARRAY,
    LIST,
    TUPLE,
    INT,
    OVERFLOW,
    NONE,
    IN_PLACE,
    INT64,
    INT64_DTYPE,
    INT32_DTYPE,
    COUNT,
    STARTS,
    SOURCE,
    TARGET,
    HANDLE_AT,
    HANDLE_BITS,
    KEPT,
    ENTRIES,
) = range(22)
# An entry. OP: operator, as address; ENGINE: address of what runs it, negative where it is a call of the MPI library. It is for calls of
# LEAST to MOST, as the call counts; STRIDE and SENT_STRIDE: how many bytes of the two buffers each of these stands for. SIZES: whether all
# blocks have one size, or which side says the sizes of all; FILLED: the sent side, whose blocks fill its array; UNKNOWN: calls that only
# the MPI library understands; OF_EDGES: as OF_NONE, and no block stays on the rank. Blocks of their own sizes are counted in STRIDE
# bytes, but LEAST and MOST in bytes. SENT_MAP, RECEIVED_MAP: addresses of the maps by which INPUT and OUTPUT lie in memory, or 0.
# OP_HANDLE: that of an operator that may be freed, or 0. Then the two sides.
(
    OP,
    ENGINE,
    LEAST,
    MOST,
    SENT_STRIDE,
    STRIDE,
    SIZES,
    SENT_MAP,
    RECEIVED_MAP,
    OP_HANDLE,
    SENT,
    RECEIVED,
    ENTRY,
) = *range(11), 30, 50
ALL_ALIKE, OF_NONE, OF_SENT, OF_RECEIVED, FILLED, UNKNOWN, OF_EDGES = range(7)
# A side: what an argument must be. KIND: of it; LENGTH: items of the spec, 0: it is the array itself; TYPE_AT, TYPE: which item is the
# datatype, or -1, and its address; DTYPE, ITEMSIZE: the array's element type, as address, and its bytes;
# ELEMENT: bytes of what is counted; FLAGS_OF: flags that the array must have. Where DTYPE is 0 it is no array but a HOLDER of memory,
# a type as address: DATA_AT, NITEMS_AT, READONLY_AT, CHECK_AT: words of the object, the last of which, as far as MASK says, must be
# VALUE; -1: there is none. Of a derived datatype, which has a HANDLE, ELEMENT is the extent of an element, PACKED_SIZE the bytes of it
# that travel, LOWER and UPPER are its true bounds. NBLOCKS: blocks of the buffer.
(
    KIND,
    LENGTH,
    TYPE_AT,
    TYPE,
    DTYPE,
    ELEMENT,
    ITEMSIZE,
    FLAGS_OF,
    HOLDER,
    DATA_AT,
    NITEMS_AT,
    READONLY_AT,
    CHECK_AT,
    MASK,
    VALUE,
    HANDLE,
    PACKED_SIZE,
    LOWER,
    UPPER,
    NBLOCKS,
) = range(20)
# Kinds: not looked at; in place; elements; equal blocks, which a count says the size of; blocks with counts of their own; and with
# datatypes of their own, where TYPE is the address of rows that a call must match to the letter.
ABSENT, ALIASED, ONE, BLOCKS, MANY, TYPED = range(6)
# Such a row: count, displacement in bytes, address of the datatype, its handle; displacement and bytes of the block as programs have it.
TYPED_COUNT, TYPED_DISPL, TYPED_TYPE, TYPED_HANDLE, TYPED_PLACE, TYPED_NFIELDS = *range(5), 6
# Of a PyObject and of a PyArrayObject, in words: type; data, number of dimensions, dimensions, element type, flags. Of a
# scalar of NumPy's: its value. Of a list: how many items, and their address; of a tuple: where items begin.
TYPE_OF, DATA, NDIM, DIMENSIONS, DESCR, FLAGS = 1, 2, 3, 4, 7, 8
SCALAR, SIZE, ITEMS, FIRST_ITEM = 2, 2, 3, tuple.__basicsize__ // 8
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400

# In a call's array (int64), which calls only read but for ERROR and CLOCK, two words. SOURCE_AT, TARGET_AT: which arguments `run_cached`
# finds, or -1; COUNTS_AT: which ones are the count, as bits; ACCOUNT: as in `hpcoll.runtime.program.fields`, to which
# each element of the count adds ELEMENT_NBYTES; HISTORY: address of where the rank says that it is in it, as METHOD; from FIRST on the
# arguments.
(
    FUNCTION,
    SOURCE_AT,
    TARGET_AT,
    COUNTS_AT,
    ERROR,
    ACCOUNT,
    ELEMENT_NBYTES,
    CLOCK_GETTIME,
    CLOCK,
    _,
    HISTORY,
    METHOD,
    FIRST,
) = range(13)
# A function is given eight arguments, and does not look at those that it does not have: with the calling conventions of Linux on x86-64
# and ARM the caller alone takes care of them.
NARGUMENTS = 8
