"""Data-parallel training: gradient buckets and a parameter server."""
