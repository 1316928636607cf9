"""Sizes of blocks of exact sums, and the memory that a call of a kernel has for them (`hpcoll.kernels.sums`)."""

BLOCK = 256  # elements that are added together
PART = 128  # of these, elements between two looks ahead: more lines at once than the processor can wait for would hold it up
AHEAD = 2048  # bytes that the processor is told of before they are read
COLUMNS = 1024  # of a tile
MOST_ROWS = 2048  # of a tile: their sum at one level fits in an int64
ROWS = 32  # of a tile that are looked at together, and stay in the second-level cache

# The room of a call, in int64 words.
LEVEL, SKIP, BUSY = 0, 1, 2  # of the last block; blocks that go to bins at once; whether bins are in use
BINS = 8  # sums of fractions by exponent and sign
COUNTS = BINS + 4096  # how many are in each, as int16
RESTS = COUNTS + 1024  # two blocks of numbers, or the sums of a tile's columns
ROOM = RESTS + 2 * max(BLOCK, COLUMNS)
