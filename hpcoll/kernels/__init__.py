"""Reduction kernels of hpcoll: one compiled fold per operator and element type."""

MAX_SOURCES = 8  # of one reduction on a GPU: kernels take operands by value
MAX_DESTINATIONS = 8  # that get its result
WIDE_NBYTES = 16  # one load or store of a GPU's thread, where memory is aligned to it
