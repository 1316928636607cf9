"""What one communicator has: the context, which describes calls, finds their plans and runs them, and what it is made of."""
