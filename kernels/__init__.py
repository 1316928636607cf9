"""Reduction kernels of hpcoll: one compiled fold per operator and element type."""
