"""The command ``hpcoll demo``."""
