"""Arrays in GPU memory: their host copies, launches before and after a call, programs for GPU memory, messages."""
