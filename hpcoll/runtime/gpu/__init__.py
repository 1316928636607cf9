"""GPU memory: the CUDA driver, arrays of other libraries, and how peers reach one another's memory."""
