"""Norms of arrays that other packages distribute, with the same bits on any number of ranks.

Start it with ``mpirun -n 3 python -m mpi4py examples/exact_norms.py``. heat and pylops-mpi add up what each rank has, and then over the
ranks: another number of ranks, another last bit. `hpcoll.exact_norm` takes the same parts of the same arrays. It prints a fingerprint
of the norms of `NARRAYS` arrays by each package, and one by hpcoll, which never changes. Ends with status 1 when a norm by hpcoll is not
the correctly rounded one.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcoll

Array = NDArray[Any]
Norms = Callable[[Any, Array, hpcoll.Communicator], tuple[float, float]]
NARRAYS, COUNT = 50, 1001


def of_heat(heat: Any, whole: Array, comm: hpcoll.Communicator) -> tuple[float, float]:
    """Return the norm of an array by heat, and by hpcoll of the parts that heat gives the ranks."""
    array = heat.array(whole, split=0, comm=heat.communication.MPICommunication(comm))
    return heat.norm(array).item(), float(hpcoll.exact_norm(comm, array.larray.numpy()))


def of_pylops(pylops_mpi: Any, whole: Array, comm: hpcoll.Communicator) -> tuple[float, float]:
    """Return the norm of an array by pylops-mpi, and by hpcoll of its parts."""
    array = pylops_mpi.DistributedArray.to_dist(whole, base_comm=comm)
    return array.norm(), float(hpcoll.exact_norm(comm, array.local_array))


def rounded(whole: Array) -> float:
    """Return the correctly rounded norm, by decimals with more digits than the squares have."""
    with localcontext() as context:
        context.prec = 2000
        return float(sum((Decimal(one) ** 2 for one in whole.tolist()), Decimal(0)).sqrt())


def fingerprint(norms: Sequence[float]) -> str:
    """Return a hash of the bits."""
    return hashlib.blake2b(np.array(norms).tobytes(), digest_size=8).hexdigest()


PACKAGES: dict[str, Norms] = {"heat": of_heat, "pylops_mpi": of_pylops}


def main(packages: list[str]) -> int:
    """Compute norms by packages, those that are installed if none is named, and return the exit status."""
    comm, random = hpcoll.Communicator(MPI.COMM_WORLD), np.random.default_rng(0)
    arrays = random.standard_normal((NARRAYS, COUNT)) * 10.0 ** random.integers(-3, 3, (NARRAYS, COUNT))
    wanted, good = [rounded(whole) for whole in arrays], True
    for name in packages or filter(find_spec, PACKAGES):
        package = import_module(name)
        own, exact = zip(*(PACKAGES[name](package, whole, comm) for whole in arrays))
        right = list(exact) == wanted
        good = good and right
        if comm.rank == 0:
            print(
                f"{name} on {comm.size} ranks: its own norms {fingerprint(own)}, exact norms {fingerprint(exact)}",
                flush=True,
            )
            print(f"correctly rounded: {'yes' if right else 'NO'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
