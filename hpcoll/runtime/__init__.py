"""The runtime of schedules: programs, the routes between ranks, and the compiled engine."""
