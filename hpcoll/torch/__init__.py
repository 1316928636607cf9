"""hpcoll as a backend of torch.distributed.

>>> import hpcoll.torch                    # doctest: +SKIP
>>> dist.init_process_group("hpcoll")      # doctest: +SKIP

Reductions by one expression in rank order, whatever algorithm and size:

>>> dist.init_process_group("hpcoll", pg_options=hpcoll.torch.GroupOptions(order="rank"))      # doctest: +SKIP

Started by mpirun or srun, nothing else need be set: ranks are those of ``MPI.COMM_WORLD``. Under torchrun and the like, MPI begins with
``init_process_group``. Tensors on CPUs and on GPUs are taken.
"""

from typing import Any

import torch
import torch.distributed as dist

from hpcoll.torch.options import DEVICES, NAME, GroupOptions
from hpcoll.torch.rendezvous import begin, take_over

__all__ = ["GroupOptions"]
_OLDEST = (2, 9)  # earlier releases wait for ever for work that Python has made

if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
    raise ImportError(
        f"hpcoll.torch needs PyTorch {'.'.join(map(str, _OLDEST))} or later, got {torch.__version__}"
    )


def _create(asked: Any, opts: Any = None) -> dist.ProcessGroup:
    """Return a group, as `hpcoll.torch.group.create`; that module needs MPI, which may not have begun."""
    begin(asked)
    from hpcoll.torch.group import create

    return create(asked, opts)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
take_over()


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
