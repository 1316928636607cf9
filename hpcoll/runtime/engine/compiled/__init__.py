"""The functions that Numba compiles: the interpreter of programs, and what it calls."""
