"""What runs a schedule: programs, the routes between ranks, and the compiled engine."""
