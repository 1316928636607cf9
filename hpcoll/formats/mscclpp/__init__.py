"""Reader of MSCCL++ execution plans: programs that write and read the memory of other gpus."""
