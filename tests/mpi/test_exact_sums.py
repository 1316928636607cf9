"""EXACT_SUM: the correctly rounded sum from every method, algorithm and element type, of numbers that are hard to add."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact_reference import exact_sums, hard_numbers
from mpi4py import MPI
from reference import Array, communicator, ensure, fresh, raised
from test_operators import bits, block, reduced

import hpcoll

pytestmark = pytest.mark.mpi
TYPES = ["float64", "float32", "float16", "bfloat16", "complex128", "complex64"]
UNASKED = [(collective, None) for collective in ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")]


def inputs(name: str, nranks: int, seed: int = 0, each: int = 18) -> list[Array]:
    """Per rank ``each`` elements for each rank."""
    rng, parts = (
        np.random.default_rng([seed, nranks]),
        {"complex128": "float64", "complex64": "float32"}.get(name),
    )
    found = hard_numbers(parts or name, nranks, each * nranks * (2 if parts else 1), rng)
    return [one.view(name) for one in found] if parts else found


def wanted(collective: str, everything: list[Array], rank: int, root: int = 0) -> Array | None:
    """The result on a rank, None where it gets none."""
    upto = {"scan": rank + 1, "exscan": rank}.get(collective, len(everything))
    if not upto or (collective == "reduce" and rank != root):
        return None
    return block(exact_sums(everything[:upto]), collective, rank, len(everything))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_blocks_of_several_sizes(algorithm: str | None, in_place: bool) -> None:
    comm = communicator()
    counts = [7 * ((rank + 1) % 3) for rank in range(comm.size)]
    everything = [one[: sum(counts)] for one in inputs("float64", comm.size)]
    x, own = everything[comm.rank].copy(), counts[comm.rank]
    y = x if in_place else np.empty(own)
    comm.Reduce_scatter(MPI.IN_PLACE if in_place else x, y, counts, hpcoll.EXACT_SUM, algorithm=algorithm)
    first = sum(counts[: comm.rank])
    expected = exact_sums(everything)[first : first + own]
    ensure(bits(y[:own]) == bits(expected), (y[:own], expected))


def test_long_messages_and_parts_of_arrays() -> None:
    """Several blocks of the kernel, and segments; twice, since the second call is found in the cache."""
    comm = communicator()
    everything = inputs("float64", comm.size, each=40000 // comm.size)
    count = everything[0].size - 7
    expected = exact_sums([one[3 : 3 + count] for one in everything])
    for segment in (None, "8K"):
        for _ in range(2):
            y = np.zeros(count + 2)
            comm.Allreduce(
                [everything[comm.rank][3:], count, MPI.DOUBLE], y[1:-1], hpcoll.EXACT_SUM, segment=segment
            )
            ensure(bits(y[1:-1]) == bits(expected) and not y[0] and not y[-1], segment)


def test_settings_force_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOLL_ALLREDUCE", "recursive_doubling")
    comm = fresh()
    everything = inputs("float64", comm.size)
    for _ in range(2):
        found = reduced(comm, "allreduce", everything[comm.rank], hpcoll.EXACT_SUM)
        ensure(bits(found) == bits(wanted("allreduce", everything, comm.rank)), found)
    assert {row.algorithm for row in comm.ledger.rows() if row.operation == "allreduce"} == {
        "recursive_doubling"
    }
    comm.Free()


def test_integers_wrap_as_in_a_sum() -> None:
    comm = communicator()
    for algorithm in (None, "ring"):
        x = np.full(5, 100, np.int8)
        comm.Allreduce(MPI.IN_PLACE, x, hpcoll.EXACT_SUM, algorithm=algorithm)
        assert x.tolist() == np.full(5, 100 * comm.size % 256, np.uint8).view(np.int8).tolist()


def test_the_library_never_serves_it() -> None:
    comm, x = communicator(), np.ones(3)
    for what in (x, np.ones(3, ml_dtypes.bfloat16), np.ones(3, np.int32)):
        error = raised(
            lambda what=what: comm.Allreduce(MPI.IN_PLACE, what, hpcoll.EXACT_SUM, algorithm="native")
        )
        assert isinstance(error, hpcoll.ArgumentError)
        assert "allreduce/native cannot serve this call" in str(error)
    refused: Any = raised(lambda: comm.Allreduce(MPI.IN_PLACE, np.ones(3, bool), hpcoll.EXACT_SUM))
    assert "operator exact_sum takes integer, real floating, complex elements, got bool" in str(refused)
