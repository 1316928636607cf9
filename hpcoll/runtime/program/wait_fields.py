"""The fields of a comparison of calls: who began last, and how long this rank waited for it (`hpcoll.runtime.engine.compiled.waits`)."""

# RECORDS: address of this rank's records of NCALLS calls in a row; RANK of NRANKS; ARRIVALS: address of NRANKS addresses, of pairs of the
# same calls: begin on the common clock, nanoseconds spent in other calls; KINDS: address of the kind of each collective, by its number;
# NEIGHBOURS: address of NRANKS flags: the ranks from which this one receives in neighbourhood collectives; IN_FLIGHT: only waits count;
# LEAST: nanoseconds below which a difference is no finding. Results: OWNER, WAITED: addresses of a word for each call; SUMS: address of
# sums to which all is added; WAITED_FOR, CAUSED, INHERITED: addresses of sums for each rank.
(
    RECORDS, NCALLS, RANK, NRANKS, ARRIVALS, KINDS, NEIGHBOURS, IN_FLIGHT, LEAST, OWNER, WAITED, SUMS, WAITED_FOR, CAUSED, INHERITED,
    NFIELDS,
) = range(16)  # fmt: skip
# Of SUMS: calls of the program's that were compared; for which this rank came last; nanoseconds.
CALLS, LAST, WAITED_NS, MOVED_NS, HIDDEN_NS, NSUMS = range(6)
# Kinds: all wait for the last; only the root is awaited; only the root waits; the ranks before are awaited; the neighbours are.
ALL, FROM_ROOT, TO_ROOT, BEFORE, NEAR = range(5)
COLLECTIVE_BITS, ROOT_AT, ROOT_BITS, OBJECT = 5, 43, 20, 18  # of a signature; the last one is its element of calls on Python objects
NOBODY = -1  # of OWNER
