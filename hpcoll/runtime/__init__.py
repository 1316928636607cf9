"""What runs a schedule: programs, the ways between ranks, and the compiled engine."""
