"""EXACT_SUM: the correctly rounded sum from every method, algorithm and element type, of numbers that are hard to add."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exact_reference import exact_sums, hard_numbers
from mpi4py import MPI
from reference import REDUCTIONS, Array, agreed, communicator, fresh, raised, representative
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


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("collective", "algorithm"), [*UNASKED, *representative(REDUCTIONS)])
def test_correctly_rounded_by_any_algorithm(collective: str, algorithm: str | None, name: str) -> None:
    """Partial sums of a ring travel as digits; contributions to a direct algorithm, and to the one that is chosen, as they are."""
    comm, root = communicator(), communicator().size - 1
    everything = inputs(name, comm.size)
    given = everything[comm.rank].copy()
    found = reduced(comm, collective, given, hpcoll.EXACT_SUM, root, algorithm=algorithm)
    good = bits(found) == bits(wanted(collective, everything, comm.rank, root)) and bits(given) == bits(
        everything[comm.rank]
    )
    assert agreed([] if good else [(found, wanted(collective, everything, comm.rank, root))]) == []


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_order_and_ranks_do_not_matter(algorithm: str | None, name: str) -> None:
    """The same contributions, on ranks in reverse order."""
    world, reverse = communicator(), communicator("reversed")
    everything = inputs(name, world.size, seed=1)
    found = [
        reduced(comm, "allreduce", everything[world.rank], hpcoll.EXACT_SUM, algorithm=algorithm)
        for comm in (world, reverse)
    ]
    assert agreed([] if bits(found[0]) == bits(found[1]) else [found]) == []


@pytest.mark.parametrize("name", ["float64", "bfloat16"])
@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_in_place_in_flight_and_persistent(algorithm: str | None, name: str) -> None:
    """A persistent request reads what its buffer holds at each start."""
    comm, wrong = communicator(), []
    for turn in range(3):
        everything = inputs(name, comm.size, seed=turn)
        x = everything[comm.rank].copy()
        comm.Allreduce(MPI.IN_PLACE, x, hpcoll.EXACT_SUM, algorithm=algorithm)
        y = everything[comm.rank].copy()
        comm.Iallreduce(MPI.IN_PLACE, y, hpcoll.EXACT_SUM, algorithm=algorithm).Wait()
        if not turn:
            source, target = np.empty_like(x), np.empty_like(x)
            request = comm.Allreduce_init(source, target, hpcoll.EXACT_SUM, algorithm=algorithm)
        source[:] = everything[comm.rank]
        request.Start()
        request.Wait()
        expected = bits(wanted("allreduce", everything, comm.rank))
        wrong += [turn] if {bits(x), bits(y), bits(target)} != {expected} else []
    request.Free()
    assert agreed(wrong) == []


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
    assert agreed([] if bits(y[:own]) == bits(expected) else [(y[:own], expected)]) == []


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
            assert (
                agreed([] if bits(y[1:-1]) == bits(expected) and not y[0] and not y[-1] else [segment]) == []
            )


def test_symmetric_memory() -> None:
    comm = communicator()
    everything = inputs("float64", comm.size)
    x, y = comm.empty(everything[0].shape), comm.empty(everything[0].shape)
    x[:] = everything[comm.rank]
    comm.Allreduce(x, y, hpcoll.EXACT_SUM)
    assert agreed([] if bits(y) == bits(wanted("allreduce", everything, comm.rank)) else [y]) == []


def test_settings_force_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOLL_ALLREDUCE", "recursive_doubling")
    comm = fresh()
    everything = inputs("float64", comm.size)
    for _ in range(2):
        found = reduced(comm, "allreduce", everything[comm.rank], hpcoll.EXACT_SUM)
        assert (
            agreed([] if bits(found) == bits(wanted("allreduce", everything, comm.rank)) else [found]) == []
        )
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
