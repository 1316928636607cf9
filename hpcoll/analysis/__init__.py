"""What is known of a schedule without running it: proofs, costs, simulations and drawings."""
