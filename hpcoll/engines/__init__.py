"""Engines: they run programs and know opcodes, never an algorithm's name. Floor 5."""
