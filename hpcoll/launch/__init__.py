"""The start of MPI programs without a launcher of MPI: ranks meet, and MPI begins as a world of theirs."""
