"""Rank arithmetic: who is whose neighbour, parent or child. Floor 1: integers in, integers out."""
