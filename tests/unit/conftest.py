"""Hypothesis draws the same examples every time and has no deadline: cores are shared. Garbage is looked for seldom. MPI does not start."""

import gc

import mpi4py
from hypothesis import settings

mpi4py.rc.initialize = False  # when hpcoll.comm is imported
gc.set_threshold(20_000, 10, 1000)  # a third of all time goes into collections of everything otherwise
settings.register_profile("hpcoll", deadline=None, derandomize=True, database=None, max_examples=80)
settings.load_profile("hpcoll")
