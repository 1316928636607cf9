"""The fields of what compiled code reads of a call on a Python object, and of a region of the program."""

LONG_WAY = (
    9  # answer besides those of `hpcoll.runtime.engine.compiled.interpreter.run`: nothing has been sent
)

# ENGINE: address of the engine; TARGET: of the cells that are received; SENDS: this rank sends an object; IN_PLACE: its cell is what it
# receives, too; ROOM: bytes of a pickle that fits; SERIALIZER: address of `mpi4py.MPI.pickle`, of which the words from GIVEN_AT on are to
# be the three from GIVEN on; BUFFERS: of the list of buffers out of band; DUMPS, LOADS: of functions, KEYWORDS: of the names of the first
# one's keywords; MADE: of a list to which what was loaded is added, or the pickle that goes the long way; LENGTH_AT: bytes from the start
# of a ``bytes`` object to its length; NVIEWS: cells that are received, VIEWS: address of the addresses of their views;
# SENT: whether the call has begun; OBJECT, PROTOCOL, KEEP: arguments of DUMPS; VIEW: that of LOADS. Of reductions, SIGNATURE and KINDS for
# the engine, which change with the operator; KIND: the kinds of this rank's object; TYPES, TYPES_END: addresses of pairs, an array's
# element type or another object's type and the kinds of its objects; ARRAY: the type of arrays; OPCODES: address of what follows an opcode
# of a pickle: so many bytes of argument, or else `UNKNOWN`, where it is not one of a plain object, or `LENGTH` and the bytes of a length.
(
    ENGINE,
    TARGET,
    SENDS,
    IN_PLACE,
    ROOM,
    SERIALIZER,
    GIVEN,
    _,
    _,
    BUFFERS,
    DUMPS,
    LOADS,
    KEYWORDS,
    MADE,
    LENGTH_AT,
    NVIEWS,
    VIEWS,
    SENT,
    OBJECT,
    PROTOCOL,
    KEEP,
    VIEW,
    SIGNATURE,
    KINDS,
    KIND,
    TYPES,
    TYPES_END,
    ARRAY,
    OPCODES,
    NFIELDS,
) = range(30)
UNKNOWN, LENGTH = 255, 16
GIVEN_AT = 2
# Of a region of the program. NUMBER_AT: address of the number of the region in which the process is; OUTER, INNER: the number from which it
# was last entered, and its own there; ENTERS, LEAVES: functions of Python for where the process is in another region, with REGION as their
# argument; NOTHING: None.
NUMBER_AT, OUTER, INNER, ENTERS, LEAVES, REGION, NOTHING, REGION_NFIELDS = range(8)
