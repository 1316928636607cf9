"""Measures collectives and checks their answers: ``hpcoll bench``.

`values` says what the messages hold, `cases` lays out and calls a collective, `modes` are the ways to call it, `measure` times
calls, `request` says what to measure, `session` runs everything for all sizes, `results` turns times into numbers, `report`
writes them, `plot` draws them.
"""
