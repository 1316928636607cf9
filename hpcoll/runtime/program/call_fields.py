"""The fields of what compiled code reads of a call: tables of earlier calls, array objects, calls of the MPI library."""

MISS, NATIVE = 4, 5  # answers besides those of `hpcoll.runtime.engine.compiled.interpreter.run`

# A table.
(
    NENTRIES,
    LATEST,  # the entry found last
    RANK,  # of this process
    COUNTS,  # address of room for the counts of a call
    ARRAY,  # address of a type or object that is looked for, as those that follow to INT32_DTYPE
    LIST,
    TUPLE,
    INT,
    OVERFLOW,  # room for what CPython says of an int that is too large
    NONE,
    IN_PLACE,
    INT64,
    INT64_DTYPE,
    INT32_DTYPE,
    COUNT,  # of a call with one, else its bytes
    STARTS,  # 0, or for calls that are started only: address of how many operations have ended, and how many were issued before
    SOURCE,  # address of a buffer of a call that must wait for those
    TARGET,  # address of the other one
    HANDLE_AT,  # word of a datatype's or an operator's object in which its handle stands
    HANDLE_BITS,  # which bits of that word count
    KEPT,  # address of a Python list: arrays of calls that have not ended
    ENTRIES,
) = range(22)
# An entry. Blocks of their own sizes are counted in STRIDE bytes, but LEAST and MOST in bytes.
(
    OP,  # operator, as address
    ENGINE,  # address of what runs it, negative where it is a call of the MPI library
    LEAST,  # the entry is for calls of LEAST to MOST, as the call counts
    MOST,
    SENT_STRIDE,  # bytes of the sent buffer for which each of these stands
    STRIDE,  # bytes of the received one
    SIZES,  # whether all blocks have one size, or which side says the sizes of all: one of the values below
    SENT_MAP,  # address of the map by which INPUT lies in memory, or 0
    RECEIVED_MAP,  # the same of OUTPUT
    OP_HANDLE,  # handle of an operator that may be freed, or 0
    SENT,  # the first side
    RECEIVED,  # the second side
    ENTRY,
) = *range(11), 32, 54
# FILLED: the sent side, whose blocks fill its array; UNKNOWN: calls that only the MPI library understands; OF_EDGES: as OF_NONE, and no
# block stays on the rank.
ALL_ALIKE, OF_NONE, OF_SENT, OF_RECEIVED, FILLED, UNKNOWN, OF_EDGES = range(7)
# A side: what an argument must be. Words from DATA_AT to CHECK_AT are places in the object; -1: there is none.
(
    KIND,  # one of the kinds below
    LENGTH,  # items of the spec; 0: it is the array itself
    TYPE_AT,  # which item is the datatype, or -1
    TYPE,  # address of the datatype
    DTYPE,  # the array's element type, as address; 0: it is no array, but a HOLDER of memory
    ELEMENT,  # bytes of what is counted; of a derived datatype the extent of an element
    ITEMSIZE,  # bytes of an element of the array
    FLAGS_OF,  # flags that the array must have
    HOLDER,  # a type, as address; of an array its own, which may be a subclass
    DATA_AT,  # less than 0: the memory itself begins so many bytes behind the object's start
    NITEMS_AT,  # -1: it has one
    READONLY_AT,
    CHECK_AT,  # the word that must be VALUE, as far as MASK says
    MASK,
    VALUE,  # of an array of a structured type whose spec names a datatype: DESCR_KIND of its type; of another array 0
    FORMAT_AT,  # the word that is the address of a view's format
    FORMAT,  # the format, its first letter in the lowest byte; 0: it does not matter
    HANDLE,  # of a derived datatype, else 0
    PACKED_SIZE,  # bytes of its element that travel
    LOWER,  # its true bounds, as UPPER
    UPPER,
    NBLOCKS,  # blocks of the buffer
) = range(22)
# Kinds: not looked at; in place; elements; equal blocks, which a count says the size of; blocks with counts of their own; and with
# datatypes of their own, where TYPE is the address of rows that a call must match to the letter.
ABSENT, ALIASED, ONE, BLOCKS, MANY, TYPED = range(6)
# Such a row: count, displacement in bytes, address of the datatype, its handle; displacement and bytes of the block as programs have it.
TYPED_COUNT, TYPED_DISPL, TYPED_TYPE, TYPED_HANDLE, TYPED_PLACE, TYPED_NFIELDS = *range(5), 6
# Of a PyObject and of a PyArrayObject, in words: type; data, number of dimensions, dimensions, strides, element type, flags. Of a
# scalar of NumPy's: its value. Of a list: how many items, and their address; of a tuple: where items begin.
TYPE_OF, DATA, NDIM, DIMENSIONS, STRIDES, DESCR, FLAGS = 1, 2, 3, 4, 5, 7, 8
SCALAR, SIZE, ITEMS, FIRST_ITEM = 2, 2, 3, tuple.__basicsize__ // 8
CONTIGUOUS, FORTRAN, ALIGNED, WRITEABLE = 0x1, 0x2, 0x100, 0x400
# Of an element type since NumPy 2: kind and number of the type, flags, bytes; the flag of one with Python objects.
DESCR_KIND, DESCR_FLAGS, DESCR_NBYTES, HAS_OBJECTS = 3, 4, 5, 0x1

# In a call's array (int64), which calls only read but for ERROR and CLOCK.
(
    FUNCTION,
    SOURCE_AT,  # which argument `run_cached` finds as the source, or -1
    TARGET_AT,  # the same of the target
    COUNTS_AT,  # which arguments are the count, as bits
    ERROR,
    ACCOUNT,  # address, as in `hpcoll.runtime.program.fields`
    ELEMENT_NBYTES,  # that each element of the count adds to it
    CLOCK_GETTIME,
    CLOCK,  # two words
    _,
    HISTORY,  # address of where the rank says that it is in the call
    METHOD,  # as which it says that
    FIRST,  # from here on the arguments
) = range(13)
# A function is given eight arguments, and does not look at those that it does not have: with the calling conventions of Linux on x86-64
# and ARM the caller alone takes care of them.
NARGUMENTS = 8
