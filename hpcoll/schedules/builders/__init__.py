"""One file per algorithm: a function that writes one rank's schedule."""
