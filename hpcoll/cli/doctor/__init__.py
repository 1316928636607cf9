"""``hpcoll doctor``: checks MPI, GPUs, network and limits of this machine, and says what to change."""
