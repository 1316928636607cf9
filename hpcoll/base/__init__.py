"""Errors, units, operators and element types: what every other folder may import."""
