"""How bytes get from rank to rank: MPI messages, and shared memory on a node."""
