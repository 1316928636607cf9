"""Arrays that a grid of ranks shares: the exchange of their ghost layers."""
