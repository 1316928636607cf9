"""Who talks to whom: rings, trees, hypercubes and circulant graphs as arithmetic on rank numbers."""
