"""The program with a mistake that ``hpcoll demo`` runs."""

import numpy as np
from mpi4py import MPI

import hpcoll

comm = hpcoll.Communicator(MPI.COMM_WORLD)
x, total = np.ones(8), np.empty(8)
try:
    if comm.rank == 1:
        comm.Bcast(x)  # the mistake
    else:
        comm.Allreduce(x, total)
except hpcoll.MismatchError as error:
    if comm.rank == 0:
        print(error)

comm.recover()  # all ranks are alive: go on
comm.Allreduce(x, total)
if comm.rank == 0:
    print("afterwards, the sum of all:", total)
