"""Transports: routes of host arrays (MPI messages, shared-memory rings), and the memory that ranks of a node share."""
