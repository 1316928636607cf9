"""Workers of Dask that become ranks of MPI: `hpcoll.start` in a task of each, and an allreduce between them.

Start it with ``python examples/dask_workers.py``; no launcher of MPI takes part, and the MPI library is MPICH or one of its relatives. Ends
with status 1 when a sum is wrong.
"""

import argparse
import os
import secrets
import socket
import sys

import numpy as np
from distributed import Client, LocalCluster

import hpcoll


def address_here() -> str:
    """Return an address at which the others reach this worker, with a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def add_up(rank: int, nranks: int, address: str, key: str, count: int) -> float:
    """Become a rank, and return an element of the sum of all ranks' arrays."""
    hpcoll.start(rank, nranks, address, key=key)
    from mpi4py import MPI

    comm, x = hpcoll.Communicator(MPI.COMM_WORLD), np.full(count, rank + 1.0)
    comm.Allreduce(MPI.IN_PLACE, x)
    return float(x[-1])


def main() -> int:
    """Start the workers, have them add up, and return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("-n", "--nranks", type=int, default=2)
    parser.add_argument("--count", type=int, default=1 << 20, help="numbers in each array")
    options = parser.parse_args()
    nranks = options.nranks
    with (
        LocalCluster(
            n_workers=nranks, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(nranks)
        names = list(client.run(os.getpid))  # the address of each worker
        address = client.submit(address_here, workers=names[:1]).result()
        job = nranks, address, secrets.token_hex(), options.count
        tasks = [
            client.submit(add_up, rank, *job, workers=[name], pure=False) for rank, name in enumerate(names)
        ]
        sums = client.gather(tasks)
    for rank, found in enumerate(sums):
        print(f"sum {rank} of {nranks}: {found:.0f}")
    return int(any(found != nranks * (nranks + 1) / 2 for found in sums))


if __name__ == "__main__":
    sys.exit(main())
