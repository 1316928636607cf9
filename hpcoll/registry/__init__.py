"""Algorithms that are not the package's own: how programs, files and installed packages register them, and their proof at first use.

A program decorates a builder (`hpcoll.registry.decorator`). Files and packages are found by their names (`hpcoll.registry.sources`). A
registered row is proven before any message leaves (`hpcoll.registry.proof`). Its costs are its formulas, or derived from its schedules.
"""
