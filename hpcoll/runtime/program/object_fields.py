"""The fields of what compiled code reads of a call on a Python object, and of a region of the program."""

import sys

# Call of a Python function: function, arguments, how many have no keyword, keywords. CPython 3.10 takes these as a dictionary; later ones
# take a tuple of their names, whose values follow the arguments.
BY_NAMES = sys.version_info >= (3, 11)
VECTORCALL = "PyObject_Vectorcall" if BY_NAMES else "PyObject_VectorcallDict"

# answer besides those of `hpcoll.runtime.engine.compiled.interpreter.run`: nothing has been sent
LONG_WAY = 9

# Of a call on a Python object; addresses unless another thing is said.
(
    ENGINE,
    TARGET,  # of the cells that are received
    SENDS,  # this rank sends an object
    IN_PLACE,  # its cell is what it receives, too
    ROOM,  # bytes of a pickle that fits
    SERIALIZER,  # of `mpi4py.MPI.pickle`, of which the words from GIVEN_AT on are to be the three from GIVEN on
    GIVEN,
    _,
    _,
    BUFFERS,  # of the list of buffers out of band
    DUMPS,  # of a function
    LOADS,  # of a function
    KEYWORDS,  # of the keywords of DUMPS: their names, or a dictionary (`BY_NAMES`)
    MADE,  # of a list to which what was loaded is added, or the pickle that goes the long way
    LENGTH_AT,  # bytes from the start of a ``bytes`` object to its length
    NVIEWS,  # cells that are received
    VIEWS,  # of the addresses of their views
    SENT,  # the call has begun
    OBJECT,  # the first argument of DUMPS
    PROTOCOL,  # the second
    KEEP,  # the third
    VIEW,  # the argument of LOADS
    SIGNATURE,  # of a reduction, for the engine, as KINDS; both change with the operator
    KINDS,
    KIND,  # the kinds of this rank's object
    TYPES,  # of pairs: the element type of an array, or another object's type, and the kinds of its objects
    TYPES_END,
    ARRAY,  # the type of arrays
    OPCODES,  # of what follows each opcode of a pickle: bytes of argument, `UNKNOWN` or `LENGTH`
    NFIELDS,
) = range(30)
UNKNOWN = 255  # the opcode is not one of a plain object
LENGTH = 16  # the bytes of a length follow
GIVEN_AT = 2
# Of a region of the program.
(
    NUMBER_AT,  # address of the number of the region in which the process is
    OUTER,  # the number from which it was last entered
    INNER,  # its own number there
    ENTERS,  # a function of Python for where the process is in another region, with REGION as its argument
    LEAVES,  # the same
    REGION,
    NOTHING,  # None
    REGION_NFIELDS,
) = range(8)
