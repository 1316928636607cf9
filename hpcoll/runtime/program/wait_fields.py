"""The fields of a comparison of calls: who began last, and how long others waited for it (`hpcoll.runtime.engine.compiled.waits`)."""

# Addresses unless another thing is said.
(
    LOG,  # of the array of a log
    FIRST,  # number of the first call
    NCALLS,  # calls in a row
    TOLD,  # of a word for each call: TICK_BITS of begin, in ticks of 16 ns since BASE, and microseconds in other calls before
    BASE,
    RANK,  # the first rank whose waits are found
    END,  # the rank behind the last one
    NRANKS,
    ARRIVALS,  # of addresses: for each rank its words of the same calls
    BASES,  # of the base of each rank
    KINDS,  # of the kind of each collective, by its number
    SOURCES,  # of NRANKS + 1 numbers: where each rank begins in NEAREST
    NEAREST,  # of the ranks from which each one receives in neighbourhood collectives
    IN_FLIGHT,  # only waits count
    LEAST,  # nanoseconds below which a difference is no finding
    RECORDS,  # of the records, rank by rank; 0: those of LOG, of one rank
    FOUND,  # of a row for each of RECORDS; 0: sums are added
    GROUPS,  # of rows for calls that have a place or a region
    NGROUPS,  # their number
    SUMS,  # of sums to which all is added
    HELD_UP,  # of sums for each rank, as the three that follow
    WAITED_FOR,
    CAUSED,
    INHERITED,
    NFIELDS,
) = range(25)
TICK_BITS, TICK_SHIFT, SPENT_SHIFT = 38, 4, 10
# In SUMS.
(
    CALLS,  # of the program's that were compared
    WAITED_NS,
    MOVED_NS,
    HIDDEN_NS,
    NSUMS,
) = range(5)
# In a row of FOUND.
(
    OWNER,  # rank that was awaited
    WAITED,  # nanoseconds
    DIVIDED,  # by the number of ranks that could wait for that one
    HELD,  # of DIVIDED, what the awaited rank had spent in other calls, longer than this one
    FOUND_NFIELDS,
) = range(5)
# In a row of GROUPS.
(
    ITS_NAMES,  # that its calls have in common, as ITS_OWNER
    ITS_OWNER,
    ITS_CALLS,  # how many these are
    ITS_WAITED,  # nanoseconds, as ITS_MOVED
    ITS_MOVED,
    GROUP_NFIELDS,
) = range(6)
# Kinds of collectives.
(
    ALL,  # all wait for the last
    FROM_ROOT,  # only the root is awaited
    TO_ROOT,  # only the root waits
    BEFORE,  # the ranks before are awaited
    NEAR,  # the neighbours are awaited
) = range(5)
COLLECTIVE_BITS, ROOT_AT, ROOT_BITS = 5, 43, 20  # of a signature
OBJECT = 18  # its element of calls on Python objects
NOBODY = -1  # of OWNER
