"""The context of a communicator, which describes calls, finds their plans and runs them; and its parts."""
