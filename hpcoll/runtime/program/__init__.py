"""Lowering: from a schedule, the sizes of a call and routes to a program, a flat table of opcodes."""
