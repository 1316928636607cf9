"""The same bits: results of `order="rank"`, of exact sums and of exact functions of arrays, compared bit by bit with plain Python's.

`benchmarks/same_bits/runs.py` tries many more, on hosts, both libraries and up to eight ranks.
"""

import hashlib
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import agreed, communicator, ensure, ensure_none

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/same_bits"))
import cut_arrays
from contributions import DTYPES, operators
from right_bits import bits
from same_cases import (
    DOUBLE,
    FORMS,
    METHODS,
    SINGLE,
    Memory,
    SameCase,
    canonical_rows,
    exact_rows,
    keeps_order,
    key,
    run,
)

pytestmark = pytest.mark.mpi
ORDER: dict[str, Any] = {"order": "rank"}
NUMPY = Memory(np.copy, np.copyto, np.asarray)
SHORT = ("float64", "bfloat16", "complex64", "int32")  # what the short run has of the element types
OF_EIGHT = "7d50f15ce1ca14c9"  # of the sum of eight contributions, however many ranks add them


def wrong(comm: Any, cases: list[SameCase], memory: Memory = NUMPY) -> list[Any]:
    """Run cases, and return those that gave other bits on any rank; all but exact sums in rank order."""
    found = [
        (str(case), run(comm, case, comm.rank, memory, **({} if case.op == "exact" else ORDER)))
        for case in cases
    ]
    return agreed([name for name, ran in found if not ran.good])


@pytest.mark.parametrize("collective", METHODS)
def test_every_row_that_claims_it(collective: str) -> None:
    """In segments too; the user's operator depends on order and on brackets."""
    comm = communicator()
    rows = [None, *canonical_rows(collective, comm.size, (0,) * comm.size)]
    cases = [SameCase(collective, row, "sum", count=1001, segment=512) for row in rows]
    assert (
        wrong(
            comm, cases + [SameCase(collective, row, "lean") for row in rows if keeps_order(collective, row)]
        )
        == []
    )


@pytest.mark.parametrize("collective", METHODS)
def test_exact_sums_by_every_row(collective: str) -> None:
    comm = communicator()
    rows = [None, *exact_rows(collective, comm.size)]
    assert (
        wrong(
            comm,
            [
                SameCase(collective, row, "exact", count=count, segment=512)
                for row in rows
                for count in (3, 301)
            ],
        )
        == []
    )


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(one, id=one.name, marks=() if one.name in SHORT else pytest.mark.full) for one in DTYPES],
)
def test_every_type_and_operator(dtype: np.dtype) -> None:
    """Numbers of every size, infinities and what is no number; of integers a few types say all."""
    assert wrong(communicator(), [SameCase("allreduce", None, op, dtype) for op in operators(dtype)]) == []


@pytest.mark.parametrize("op", ["sum", "exact"])
def test_forms_places_and_memory(op: str) -> None:
    comm = communicator()

    def symmetric(values: np.ndarray) -> np.ndarray:
        made = comm.empty(values.shape, values.dtype)
        made[...] = values
        return made

    for memory in (NUMPY, Memory(symmetric, np.copyto, np.asarray)):
        places = product(METHODS, FORMS, ("out of place", "in place"), (DOUBLE, SINGLE))
        cases = [
            SameCase(name, None, op, dtype, 100, None, form, place, root=comm.size - 1)
            for name, form, place, dtype in places
        ]
        assert wrong(comm, cases, memory) == []


@pytest.mark.parametrize("op", ["sum", "lean", "exact"])
def test_ranks_in_another_order(op: str) -> None:
    """Contributions go with the ranks; those of an exact sum may be anybody's."""
    other, comm = communicator("reversed"), communicator()
    assert wrong(other, [SameCase(collective, None, op) for collective in METHODS]) == []
    if op == "exact":
        ran = run(comm, SameCase("allreduce", None, op), comm.size - 1 - comm.rank, NUMPY)
        ensure(ran.good, "allreduce")


@pytest.mark.smoke
def test_any_number_of_ranks() -> None:
    """Eight contributions, cut where the canonical expression is, have one sum; the run on each number of ranks has this hash."""
    case = SameCase("allreduce", None, "sum")
    found = run(communicator(), case, communicator().rank, NUMPY, **ORDER).found
    assert key(case, 5) == key(case, 2)
    assert found is not None
    assert hashlib.sha256(bits(found)).hexdigest()[:16] == OF_EIGHT


@pytest.mark.smoke
@pytest.mark.parametrize("function", cut_arrays.FUNCTIONS, ids=lambda one: one.name)
def test_arrays_cut_in_any_way(function: cut_arrays.Function, short: bool) -> None:
    """Even and uneven cuts, all on one rank; in C and Fortran order, strided, backwards; along every axis.

    In the short run each cut in one of the layouts, another along each axis.
    """
    types = [
        dtype
        for dtype in cut_arrays.DTYPES
        if dtype.kind in function.kinds and not (short and dtype.name not in SHORT)
    ]
    found = [
        one for dtype in types for one in cut_arrays.of_type(communicator(), None, function, dtype, few=short)
    ]
    ensure_none([what for _, _, good, what in found if not good])
    assert len(found) >= 8
