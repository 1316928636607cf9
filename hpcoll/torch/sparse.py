"""The sum of sparse tensors over ranks."""

import math

import numpy as np
import torch
from mpi4py import MPI

from hpcoll.base.errors import ArgumentTypeError
from hpcoll.comm.communicator import Communicator
from hpcoll.torch.operators import operator_for
from hpcoll.torch.tensors import array_of


def add_up(comm: Communicator, tensor: torch.Tensor, op: object) -> None:
    """Replace a sparse tensor (COO) by the sum over ranks, whose indices are those of all; blocking.

    Raises:
        ArgumentTypeError: Layout, device or operator is another one.
    """
    if tensor.layout != torch.sparse_coo or tensor.is_cuda or operator_for(op, tensor.dtype) is not MPI.SUM:
        wanted = "a sum of COO tensors on CPUs"
        raise ArgumentTypeError(f"rank {comm.rank}: a sparse all_reduce needs {wanted}, got {tensor.layout} on {tensor.device} and {op}")
    mine = tensor.detach().coalesce()
    counts = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([mine._nnz()]), counts)
    indices, values = (_gathered(comm, rows, counts) for rows in (mine.indices().T, mine.values()))
    with torch.no_grad():
        tensor.copy_(torch.sparse_coo_tensor(indices.T, values, tensor.shape).coalesce())


def _gathered(comm: Communicator, rows: torch.Tensor, counts: np.ndarray) -> torch.Tensor:
    """Return the rows of all ranks, of which each has ``counts``."""
    every = torch.empty((int(counts.sum()), *rows.shape[1:]), dtype=rows.dtype)
    width = math.prod(rows.shape[1:])
    comm.Allgatherv(array_of(rows.contiguous()), (array_of(every), (counts * width).tolist()))
    return every
