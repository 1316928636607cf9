"""Measures collectives and checks their answers: ``hpcoll bench``. Floor 7.

`values` says what the messages hold, `cases` lays out and calls a collective, `measure` times calls, `session` runs
everything for all sizes, `results` turns times into numbers, `report` writes them.
"""
