"""The methods of a communicator: blocking, non-blocking and persistent collectives, calls on objects, messages."""
