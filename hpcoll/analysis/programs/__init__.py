"""Programs whose channels depend on one another, as thread blocks of other formats do: their proof, and lanes in their place."""
