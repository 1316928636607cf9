"""Which algorithm serves a call: settings, measured tables, where ranks run, and the choice."""
