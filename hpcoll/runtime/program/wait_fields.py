"""The fields of a comparison of calls: who began last, and how long this rank waited for it (`hpcoll.runtime.engine.compiled.waits`)."""

# LOG: address of the array of a log; of NCALLS calls in a row FIRST is the first number; TOLD: address of a word for each call, of which
# TICK_BITS are the begin, in ticks of 16 ns since BASE, and the rest microseconds that the rank had spent in other calls since the call
# before. RANK of NRANKS; ARRIVALS: for each rank the address of its words of the same calls, BASES: and its base; KINDS: address of the
# kind of each collective, by its number; NEIGHBOURS: address of NRANKS flags: the ranks from which this one receives in neighbourhood
# collectives; IN_FLIGHT: only waits count; LEAST: nanoseconds below which a difference is no finding. Results: OWNER, WAITED: addresses
# of a word for each call, written where it waited; GROUPS: address of rows for calls that have a place or a region, NGROUPS: their number;
# SUMS: address of sums to which all is added; HELD_UP, WAITED_FOR, CAUSED, INHERITED: addresses of sums for each rank.
(
    LOG,
    FIRST,
    NCALLS,
    TOLD,
    BASE,
    RANK,
    NRANKS,
    ARRIVALS,
    BASES,
    KINDS,
    NEIGHBOURS,
    IN_FLIGHT,
    LEAST,
    OWNER,
    WAITED,
    GROUPS,
    NGROUPS,
    SUMS,
    HELD_UP,
    WAITED_FOR,
    CAUSED,
    INHERITED,
    NFIELDS,
) = range(23)
TICK_BITS, TICK_SHIFT, SPENT_SHIFT = 38, 4, 10
# Of SUMS: calls of the program's that were compared; nanoseconds.
CALLS, WAITED_NS, MOVED_NS, HIDDEN_NS, NSUMS = range(5)
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
