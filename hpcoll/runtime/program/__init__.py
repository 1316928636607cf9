"""Lowering: from a schedule and the sizes of a call to a flat table of opcodes."""
