"""From the arguments of an MPI call to what has to be moved and combined."""
