"""The search for schedules on given links: topologies, the search by a solver, and the schedules of what it finds."""
