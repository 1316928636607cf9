"""The GPU that a process should use; told before MPI is initialised, too, as some MPI libraries want it."""

import os
import sys
from typing import Any

from hpcoll.base import launchers
from hpcoll.base.errors import ArgumentError, DeviceError
from hpcoll.base.text import quoted
from hpcoll.runtime.gpu.cuda import driver


def local_device(comm: Any = None) -> int:
    """Return the number of the GPU that this process should use: ranks of a node take turns over the GPUs that they see.

    Call it first, and make that GPU current: ``cupy.cuda.Device(hpcoll.local_device()).use()``, or ``torch.cuda.set_device``.

    Let every rank see all GPUs of its node. One that sees a single GPU (``CUDA_VISIBLE_DEVICES`` of its own; under Slurm
    ``--gpus-per-task``, or ``--gpu-bind`` other than ``none``) is given that, number 0, but GPUs that are hidden from each other's ranks
    cannot read each other's memory, and what they exchange passes through the host. With Slurm: ``srun --gpus-per-node=N --gpu-bind=none``.

    Args:
        comm: A communicator of all ranks, such as ``MPI.COMM_WORLD``: they tell each other who shares a node, so that all must call.
            Without one the launcher's environment says it, after a check of its number of ranks against MPI's where MPI runs: a shell
            that ``srun`` started leaves the same SLURM_LOCALID to all ranks of an ``mpirun``. Where no launcher says anything,
            ``MPI.COMM_WORLD`` is used, if MPI runs.

    Returns:
        The number, as CuPy, PyTorch and the CUDA runtime count.

    Raises:
        DeviceError: this process sees no GPU.
        ArgumentError: nothing says which rank this is.
    """
    cuda = driver()
    if cuda is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = (
            "no CUDA driver or no GPU is here"
            if visible is None
            else f"CUDA_VISIBLE_DEVICES is {quoted(visible)}"
        )
        raise DeviceError(f"this process sees no GPU: {why}")
    return local_rank(comm) % cuda.count


def local_rank(comm: Any = None) -> int:
    """Return this rank's place among those of the node; arguments and errors as `local_device`."""
    world = _world()
    if comm is None:
        told = launchers.local_rank(os.environ, world and world.size)
        if told is not None:
            return told
    if (comm := comm or world) is None:
        raise ArgumentError(
            "no launcher says which rank of its node this process is, and MPI is not initialised: pass a communicator"
        )
    node = comm.Split_type(sys.modules["mpi4py.MPI"].COMM_TYPE_SHARED)
    rank = int(node.rank)
    node.Free()
    return rank


def _world() -> Any:
    """Return ``MPI.COMM_WORLD`` while MPI runs, else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi.COMM_WORLD if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None
