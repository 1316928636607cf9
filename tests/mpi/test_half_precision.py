"""float16 and bfloat16: summed in float32 and rounded once, so that neither size nor number of ranks costs more than one rounding."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from reference import (
    REDUCTIONS,
    Array,
    communicator,
    ensure,
    representative,
)
from test_operators import block, reduced

import hpcoll

pytestmark = pytest.mark.mpi
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def inputs(case: str, nranks: int, dtype: Any) -> list[Array]:
    """Per rank 4 elements for each rank."""
    count = 4 * nranks
    if case == "passes the maximum and comes back":  # 40000 + 40000 is infinite in float16
        return [
            np.full(count, 40000.0 * (1 if rank % 2 == 0 else -1)).astype(dtype) for rank in range(nranks)
        ]
    if case == "tiny addends":  # each alone would be lost beside the first
        return [np.full(count, 2048.0 if rank == 0 else 0.75).astype(dtype) for rank in range(nranks)]
    return [np.random.default_rng(rank).standard_normal(count).astype(dtype) for rank in range(nranks)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", ["passes the maximum and comes back", "tiny addends", "random"])
@pytest.mark.parametrize(("collective", "algorithm"), representative(REDUCTIONS))
def test_rounded_once(collective: str, algorithm: str, case: str, dtype: Any) -> None:
    """The float32 sum, rounded; in float32 these few numbers add exactly or to within far less than a half's last bit."""
    comm = communicator()
    everything = inputs(case, comm.size, dtype)
    upto = {"scan": comm.rank + 1, "exscan": max(1, comm.rank)}.get(collective, comm.size)
    found = reduced(comm, collective, everything[comm.rank], MPI.SUM, algorithm=algorithm)
    exact = block(
        np.sum([one.astype(np.float64) for one in everything[:upto]], axis=0),
        collective,
        comm.rank,
        comm.size,
    )
    last_bit = 2.0 ** (np.frexp(exact)[1] - (11 if dtype == np.float16 else 8))
    # the float32 sums of these depend on the order, by less than this
    slack = 1e-6 * comm.size if case == "random" else 0
    good = found is None or (
        found.dtype == dtype
        and bool((np.abs(found.astype(np.float64) - exact) <= last_bit / 2 + slack).all())
    )
    ensure(good, (found, exact))


@pytest.mark.parametrize("after", [np.float32, np.float16])
def test_promise_does_not_depend_on_earlier_calls(after: Any) -> None:
    """float16 works in float32, but is not the same call as a float32 one of equal size, which the MPI library may serve."""
    comm = communicator().Dup()
    for dtype in (after, np.float16, np.float32):
        x = np.full(3, 2048.0 if comm.rank == 0 else 0.75, dtype)
        y = np.empty_like(x)
        comm.Allreduce(x, y)
        total = np.float32(2048 + 0.75 * (comm.size - 1)).astype(dtype)
        ensure((y == total).all(), y)
    comm.Free()


def test_native_is_served_when_asked_for() -> None:
    comm = communicator()
    x = np.ones(3, np.float16)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="native")
    assert x.tolist() == [comm.size] * 3
    with pytest.raises(
        hpcoll.ArgumentError, match="allreduce/native cannot serve this call: the MPI library does not know"
    ):
        comm.Allreduce(MPI.IN_PLACE, np.ones(3, ml_dtypes.bfloat16), algorithm="native")
