"""Communication patterns: trees, hypercubes and circulant graphs as arithmetic on rank numbers."""
