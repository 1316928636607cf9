"""Collective algorithms as schedules: data that says who sends which chunk to whom."""
