"""The compiled engine: an interpreter of programs, and what it calls."""
