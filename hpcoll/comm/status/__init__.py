"""The status of this process: which call it is in, where the program made it, and that it leaves."""
