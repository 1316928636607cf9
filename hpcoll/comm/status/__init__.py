"""What this process says of itself: which call it is in, where the program made it, and that it leaves."""
