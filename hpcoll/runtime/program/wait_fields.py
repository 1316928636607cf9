"""The fields of a comparison of calls: who began last, and how long others waited for it (`hpcoll.runtime.engine.compiled.waits`)."""

# LOG: address of the array of a log; of NCALLS calls in a row FIRST is the first number; TOLD: address of a word for each call, of which
# TICK_BITS are the begin, in ticks of 16 ns since BASE, and the rest microseconds that the rank had spent in other calls since the call
# before. The waits of ranks from RANK up to END, of NRANKS, are found; ARRIVALS: for each rank the address of its words of the same calls,
# BASES: and its base; KINDS: address of the kind of each collective, by its number; SOURCES: address of NRANKS + 1 numbers: where the ranks
# begin and end, in those from NEAREST on, from which each rank receives in neighbourhood collectives; IN_FLIGHT: only waits count; LEAST:
# nanoseconds below which a difference is no finding. RECORDS: address of the records, rank by rank; 0: those of LOG, of one rank.
# Results: FOUND: address of rows for each of RECORDS; where it is 0, sums are added: GROUPS: address of rows for calls that have a place or
# a region, NGROUPS: their number; SUMS: address of sums to which all is added; HELD_UP, WAITED_FOR, CAUSED, INHERITED: addresses of sums
# for each rank.
(
    LOG,
    FIRST,
    NCALLS,
    TOLD,
    BASE,
    RANK,
    END,
    NRANKS,
    ARRIVALS,
    BASES,
    KINDS,
    SOURCES,
    NEAREST,
    IN_FLIGHT,
    LEAST,
    RECORDS,
    FOUND,
    GROUPS,
    NGROUPS,
    SUMS,
    HELD_UP,
    WAITED_FOR,
    CAUSED,
    INHERITED,
    NFIELDS,
) = range(25)
TICK_BITS, TICK_SHIFT, SPENT_SHIFT = 38, 4, 10
# Of SUMS: calls of the program's that were compared; nanoseconds.
CALLS, WAITED_NS, MOVED_NS, HIDDEN_NS, NSUMS = range(5)
# Of FOUND: rank that was awaited; nanoseconds; the same divided by the number of ranks that could wait for that one; and what of that the
# awaited rank had spent in other calls, longer than this one.
OWNER, WAITED, DIVIDED, HELD, FOUND_NFIELDS = range(5)
# Of such a row: names and owner that its calls have in common, how many these are, and nanoseconds waited and moved.
ITS_NAMES, ITS_OWNER, ITS_CALLS, ITS_WAITED, ITS_MOVED, GROUP_NFIELDS = range(6)
# Kinds: all wait for the last; only the root is awaited; only the root waits; the ranks before are awaited; the neighbours are.
ALL, FROM_ROOT, TO_ROOT, BEFORE, NEAR = range(5)
# of a signature; the last one is its element of calls on Python objects
COLLECTIVE_BITS, ROOT_AT, ROOT_BITS, OBJECT = (
    5,
    43,
    20,
    18,
)
NOBODY = -1  # of OWNER
