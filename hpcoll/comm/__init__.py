"""The communicator that programs use, and what its calls run on."""
