"""Hypothesis draws the same examples every time and has no deadline: cores are shared. Garbage is looked for seldom: caches hold much."""

import gc

from hypothesis import settings

gc.set_threshold(20_000, 10, 1000)  # a third of all time goes into collections of everything otherwise
settings.register_profile("hpcoll", deadline=None, derandomize=True, database=None, max_examples=80)
settings.load_profile("hpcoll")
