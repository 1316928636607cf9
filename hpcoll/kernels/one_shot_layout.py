"""The memory of one-shot kernels: what the ranks of a channel map of each other, and what a kernel is told.

Each rank has an **area** in its GPU's memory, zeros at first, which all ranks map. A block has its own part of all that is in there, for it
meets the blocks of its number alone:

    generation of each block: calls of it so far
    for both sides, each block and each rank: a flag and a check
    for both sides, each block: a slot

Calls take the two sides in turn, by the generation. A rank writes its slot, and then its flag in every area: the generation.
"""

MOST_BLOCKS = 8  # few, so that those of all ranks run at once
SLOT_NBYTES = 16 << 10
FLAG_NBYTES = 16  # the generation, and behind it the check of the call
FLAGS_AT, SLOTS_AT = 128, 4096
AREA_NBYTES = SLOTS_AT + 2 * MOST_BLOCKS * SLOT_NBYTES
# The words of a channel (int64): the first two are numbers, the others addresses.
(
    RANK,
    NRANKS,
    STOP,  # of a word of the host that is not 0 once a peer has called something else, or the call is given up
    AREAS,  # from here on of each rank's area
) = range(4)
NPARAMETERS = 10  # of a kernel: `hpcoll.kernels.bodies.one_shot`
LOOKS = 1024  # at a flag, from one look at STOP to the next
WRITES, READS = 1, 2  # of a rank's part in a call: it has something to send, it receives
