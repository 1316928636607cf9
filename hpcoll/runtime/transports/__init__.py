"""How messages get from rank to rank: the routes of host arrays (MPI messages, shared-memory rings), and what they travel through."""
