"""``hpcoll doctor``: what this machine offers, and what to change."""
