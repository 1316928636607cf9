"""Where things are in what compiled code reads of a call: the tables of earlier calls, array objects, calls of the MPI library."""

MISS, NATIVE = 4, 5  # answers besides those of `hpcoll.runtime.engine.interpreter.run`

# An entry: operator, element type and engine as addresses, ENGINE negative where it is a call of the MPI library; counts, SENT_COUNT
# -1 in place; NBYTES: of both, which may not overlap.
OP, DTYPE, SENT_COUNT, COUNT, ENGINE, SENT_NBYTES, NBYTES, ENTRY = range(8)
# Of a PyObject and of a PyArrayObject, in words: type; data, number of dimensions, dimensions, element type, flags.
TYPE, DATA, NDIM, DIMENSIONS, DESCR, FLAGS = 1, 2, 3, 4, 7, 8
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400

# In a call's array (int64), which calls only read but for ERROR and CLOCK, two words. SOURCE_AT, TARGET_AT: which arguments `run_cached`
# finds, or -1; ACCOUNT: as in `hpcoll.runtime.program.fields`; from FIRST on the arguments.
FUNCTION, SOURCE_AT, TARGET_AT, ERROR, ACCOUNT, CLOCK_GETTIME, CLOCK, _, FIRST = range(9)
# A function is given eight arguments, and does not look at those that it does not have: with the calling conventions of Linux on x86-64
# and ARM the caller alone takes care of them.
NARGUMENTS = 8
