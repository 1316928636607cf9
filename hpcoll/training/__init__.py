"""Training on several ranks: gradients, parameters."""
