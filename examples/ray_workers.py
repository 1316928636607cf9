"""Workers of Ray that become ranks of MPI: `hpcoll.start` in an actor, and an allreduce between them.

Start it with ``python examples/ray_workers.py``; no launcher of MPI takes part, and the MPI library is MPICH or one of its relatives. The
actors may be on several hosts. Ends with status 1 when a sum is wrong.
"""

import argparse
import secrets
import socket
import sys

import numpy as np
import ray

import hpcoll


class Worker:
    """A rank of the job."""

    def address(self) -> str:
        """Return an address at which the others reach this worker, with a port that is free now."""
        with socket.create_server(("", 0)) as free:
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def add_up(self, rank: int, nranks: int, address: str, key: str, count: int) -> float:
        """Become a rank, and return an element of the sum of all ranks' arrays."""
        hpcoll.start(rank, nranks, address, key=key)
        from mpi4py import MPI

        comm, x = hpcoll.Communicator(MPI.COMM_WORLD), np.full(count, rank + 1.0)
        comm.Allreduce(MPI.IN_PLACE, x)
        MPI.Finalize()  # Ray kills its workers and all that they have started: nobody would do it
        return float(x[-1])


def main() -> int:
    """Start the workers, have them add up, and return the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("-n", "--nranks", type=int, default=2)
    parser.add_argument("--count", type=int, default=1 << 20, help="numbers in each array")
    options = parser.parse_args()
    nranks = options.nranks
    ray.init(num_cpus=nranks, include_dashboard=False, log_to_driver=False)
    actor = ray.remote(num_cpus=1)(Worker)
    workers = [actor.remote() for _ in range(nranks)]
    address = ray.get(workers[0].address.remote())
    job = nranks, address, secrets.token_hex(), options.count
    sums = ray.get([worker.add_up.remote(rank, *job) for rank, worker in enumerate(workers)])
    for rank, found in enumerate(sums):
        print(f"sum {rank} of {nranks}: {found:.0f}")
    ray.shutdown()
    return int(any(found != nranks * (nranks + 1) / 2 for found in sums))


if __name__ == "__main__":
    sys.exit(main())
