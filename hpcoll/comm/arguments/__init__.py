"""The arguments of a call: read, checked, and described as a value."""
