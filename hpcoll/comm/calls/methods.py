"""From the arguments of each upper-case method to a `Call`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.comm.calls import data_movement, reductions
from hpcoll.comm.calls.call import Call, check_root


class Caller:
    """Who calls: what a description needs of a communicator.

    Attributes:
        comm: The private duplicate.
        rank, nranks: Of the communicator.
        token: The byte that a barrier passes round.
        one_fold: An algorithm will be picked that combines all contributions in one reduction on the GPU.
    """

    comm: MPI.Intracomm
    rank: int
    nranks: int
    token: np.ndarray
    one_fold = False

    def root(self, root: Any) -> int:
        """``root`` as an int in ``[0, nranks)``; raises `hpcoll.base.errors.ArgumentError`."""
        return check_root(root, self.nranks, self.rank)


def _barrier(me: Caller) -> Call:
    address = me.token.ctypes.data
    return Call("barrier", address, address, 1, me.token.dtype, in_place=True)


def _exscan(me: Caller, send: Any, recv: Any, op: Any) -> Call | None:
    call = reductions.reduction("exscan", send, recv, op, 0, me.rank, me.nranks)
    return call._replace(finish=None) if me.rank == 0 and call is not None else call


Describe = Callable[..., Call | None]

# By method; arguments in mpi4py's order. None: only the MPI library can serve the call. All raise ArgumentError.
DESCRIBE: dict[str, Describe] = {
    "Allreduce": lambda me, send, recv, op: reductions.reduction("allreduce", send, recv, op, 0, me.rank, me.nranks, me.one_fold),
    "Reduce": lambda me, send, recv, op, root: reductions.reduction(
        "reduce", send, recv, op, me.root(root), me.rank, me.nranks, me.one_fold
    ),
    "Reduce_scatter_block": lambda me, send, recv, op: reductions.reduction(
        "reduce_scatter", send, recv, op, 0, me.rank, me.nranks, me.one_fold
    ),
    "Reduce_scatter": lambda me, send, recv, counts, op: reductions.reduction_of_blocks(
        send, recv, counts, op, me.rank, me.nranks, me.comm.allgather
    ),
    "Scan": lambda me, send, recv, op: reductions.reduction("scan", send, recv, op, 0, me.rank, me.nranks),
    "Exscan": _exscan,
    "Barrier": _barrier,
    "Bcast": lambda me, buf, root: data_movement.bcast(buf, me.root(root), me.rank, me.nranks),
    "Allgather": lambda me, send, recv: data_movement.allgather(send, recv, me.rank, me.nranks),
    "Allgatherv": lambda me, send, recv: data_movement.allgatherv(send, recv, me.rank, me.nranks),
    "Gather": lambda me, send, recv, root: data_movement.gather(send, recv, me.root(root), me.rank, me.nranks),
    "Gatherv": lambda me, send, recv, root: data_movement.gatherv(send, recv, me.root(root), me.rank, me.nranks),
    "Scatter": lambda me, send, recv, root: data_movement.scatter(send, recv, me.root(root), me.rank, me.nranks),
    "Scatterv": lambda me, send, recv, root: data_movement.scatterv(send, recv, me.root(root), me.rank, me.nranks),
    "Alltoall": lambda me, send, recv: data_movement.alltoall(send, recv, me.rank, me.nranks),
    "Alltoallv": lambda me, send, recv: data_movement.alltoallv(send, recv, me.rank, me.nranks),
}
