"""Exact sums of distributed arrays: correctly rounded, and so independent of any order. Named in `hpcoll`."""
