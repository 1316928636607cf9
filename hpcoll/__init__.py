"""MPI collectives for Python that are fast, proven and readable.

>>> from mpi4py import MPI
>>> import hpcoll
>>> comm = hpcoll.Communicator(MPI.COMM_WORLD)    # doctest: +SKIP
>>> comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)   # doctest: +SKIP

What needs MPI or a compiler, or is seldom used, is imported when it is first asked for, so that algorithms can be read, drawn and proven
where neither is installed. ``__all__`` is the public face.
"""

import atexit
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcoll.base import installed as _installed  # noqa: F401  # first: says what is missing
from hpcoll.base.errors import (
    ArgumentError,
    CollectiveTimeout,
    DeviceError,
    FileError,
    GradientError,
    HpcollError,
    KernelError,
    MismatchError,
    PeerFailed,
    ScheduleError,
    TransportError,
)
from hpcoll.base.launchers import is_fork
from hpcoll.base.ops import AVG, EXACT_SUM, ReduceOp, premul_sum, reduce_op
from hpcoll.launch.variables import of_this_process as _of_this_process
from hpcoll.runtime.gpu.local_gpu import local_device
from hpcoll.schedules.cartesian import dims_create
from hpcoll.schedules.catalogue import algorithms_of_form as algorithms
from hpcoll.schedules.ir import Writer, cell, inputs, outputs

if TYPE_CHECKING:
    from hpcoll import hooks
    from hpcoll.analysis.waits import Stragglers
    from hpcoll.comm.communicator import (
        CartCommunicator,
        Communicator,
        DistGraphCommunicator,
        GraphCommunicator,
    )
    from hpcoll.exact.accumulator import ExactAccumulator
    from hpcoll.exact.reductions import exact_dot, exact_mean, exact_norm, exact_sum
    from hpcoll.grids.checkpoint import load, save
    from hpcoll.grids.distribution import Distribution
    from hpcoll.grids.halo import Halo
    from hpcoll.grids.redistribution import Redistribution, redistribute
    from hpcoll.launch.run import run
    from hpcoll.launch.start import start
    from hpcoll.registry.decorator import algorithm
    from hpcoll.training.gradient_buckets import GradientBuckets
    from hpcoll.training.parameter_server import ParameterServer

__version__ = "0.3.0"
__all__ = [
    "AVG",
    "EXACT_SUM",
    "ArgumentError",
    "CartCommunicator",
    "CollectiveTimeout",
    "Communicator",
    "DeviceError",
    "DistGraphCommunicator",
    "Distribution",
    "ExactAccumulator",
    "FileError",
    "GradientBuckets",
    "GradientError",
    "GraphCommunicator",
    "Halo",
    "HpcollError",
    "KernelError",
    "MismatchError",
    "ParameterServer",
    "PeerFailed",
    "Redistribution",
    "ReduceOp",
    "ScheduleError",
    "Stragglers",
    "TransportError",
    "Writer",
    "algorithm",
    "algorithms",
    "cell",
    "dims_create",
    "exact_dot",
    "exact_mean",
    "exact_norm",
    "exact_sum",
    "hooks",
    "inputs",
    "load",
    "local_device",
    "outputs",
    "premul_sum",
    "redistribute",
    "reduce_op",
    "run",
    "save",
    "start",
]
_LATER = {
    "CartCommunicator": "hpcoll.comm.communicator",
    "Communicator": "hpcoll.comm.communicator",
    "DistGraphCommunicator": "hpcoll.comm.communicator",
    "Distribution": "hpcoll.grids.distribution",
    "ExactAccumulator": "hpcoll.exact.accumulator",
    "GradientBuckets": "hpcoll.training.gradient_buckets",
    "GraphCommunicator": "hpcoll.comm.communicator",
    "Halo": "hpcoll.grids.halo",
    "ParameterServer": "hpcoll.training.parameter_server",
    "Redistribution": "hpcoll.grids.redistribution",
    "Stragglers": "hpcoll.analysis.waits",
    "algorithm": "hpcoll.registry.decorator",
    "exact_dot": "hpcoll.exact.reductions",
    "exact_mean": "hpcoll.exact.reductions",
    "exact_norm": "hpcoll.exact.reductions",
    "exact_sum": "hpcoll.exact.reductions",
    "hooks": "hpcoll.hooks",
    "load": "hpcoll.grids.checkpoint",
    "redistribute": "hpcoll.grids.redistribution",
    "run": "hpcoll.launch.run",
    "save": "hpcoll.grids.checkpoint",
    "start": "hpcoll.launch.start",
}
if _place := _of_this_process():  # a launcher that knows nothing of MPI
    import_module("hpcoll.launch.start").prepare(_place)


@atexit.register
def _ending() -> None:
    """Tell the other ranks, where no communicator of this one has anything to tell; not of a fork."""
    if "mpi4py.MPI" in sys.modules and not is_fork():
        import_module("hpcoll.comm.status.early_exit").say()


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module = import_module(_LATER[name])
        return module if name == "hooks" else getattr(module, name)
    raise AttributeError(f"module 'hpcoll' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
