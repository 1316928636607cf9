"""Telemetry of communicators: who came last, how long the others waited, where; traces and metrics made of that."""
