"""The choice of algorithms: settings, measured tables, the topology of ranks, and the choice itself."""
