"""Telemetry that processes of a node show each other: the log of calls, status slots, and the status page."""
