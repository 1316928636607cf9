"""Hypothesis draws the same examples every time and has no deadline: cores are shared."""

from hypothesis import settings

settings.register_profile("hpcoll", deadline=None, derandomize=True, database=None, max_examples=80)
settings.load_profile("hpcoll")
