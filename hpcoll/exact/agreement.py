"""The agreement of ranks before an exact reduction: one short allreduce, and texts where they differ."""

from hashlib import blake2b
from typing import Any

import numpy as np

from hpcoll.base.agreement import agreed as agreed_facts
from hpcoll.base.errors import ArgumentError
from hpcoll.kernels.digits import DigitWindow


def agreed(comm: Any, name: str, problem: str, description: str, window: DigitWindow) -> DigitWindow:
    """Return the digits that any rank needs; collective.

    Args:
        comm: Communicator, hpcoll's or mpi4py's, or None.
        name: Of the function.
        problem: Why this rank cannot make the call, or the empty string.
        description: What has to be equal on all ranks.
        window: The digits that this rank needs.

    Raises:
        ArgumentError: On all ranks: one has a problem, or descriptions differ.
    """
    if comm is None:
        if problem:
            raise ArgumentError(problem)
        return window
    from mpi4py import MPI

    digest = int.from_bytes(blake2b(f"{name} {description}".encode(), digest_size=7).digest(), "little")
    message = np.array([digest, -digest, bool(problem), window.end, -window.first], np.int64)
    comm.Allreduce(MPI.IN_PLACE, message, op=MPI.MAX)
    greatest, least, problems, end, first = map(int, message)
    if problems or greatest != -least:
        problem = problem and f"rank {comm.rank}: {problem}"
        agreed_facts(comm.allgather, problem, {"types and axes": f"{name} of {description}"})
    return DigitWindow(-first, end)
