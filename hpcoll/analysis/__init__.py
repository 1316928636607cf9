"""Analysis of schedules without running them: proofs, costs, simulations and drawings."""
