"""Blocks of different sizes: uneven counts with zeros, gaps, permuted order, in place; binomial trees are told the sizes by the root."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from reference import Array, Guarded, agreed, communicator, contribution

import hpcoll
from hpcoll.schedules.catalogue import CATALOGUE

pytestmark = pytest.mark.mpi

Shape = Callable[[int], int]  # elements of rank r's block
SHAPES: dict[str, Shape] = {
    "rising": lambda r: r,
    "falling": lambda r: 5 - min(r, 5),
    "only_one": lambda r: 7 * (r == 1),
    "nothing": lambda r: 0,
    "uneven": lambda r: (3, 0, 101, 1, 17)[r % 5],
}


def permuted(counts: list[int]) -> list[int]:
    """Displacements in reverse order, with gaps of r + 1 elements."""
    displs, end = [0] * len(counts), 2
    for r in reversed(range(len(counts))):
        displs[r] = end
        end += counts[r] + r + 1
    return displs


def packed(counts: list[int]) -> list[int]:
    return [sum(counts[:r]) for r in range(len(counts))]


PLACES = {"packed": packed, "permuted": permuted}


def place(blocks: list[Array], displs: list[int]) -> Guarded:
    """Blocks at their displacements, everything else untouched."""
    everything = Guarded(
        max([0, *(displ + block.size for displ, block in zip(displs, blocks, strict=True))]) + 4
    )
    for displ, block in zip(displs, blocks, strict=True):
        everything.inner[displ : displ + block.size] = block
    return everything


def same(one: Guarded, other: Guarded) -> bool:
    return np.array_equal(one.memory, other.memory)


def names(collective: str) -> list[str | None]:
    return [
        None,
        *(name for name in hpcoll.algorithms(collective) if not CATALOGUE[f"{collective}/{name}"].uniform),
        "native",
    ]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("algorithm", names("allgather"))
def test_allgatherv(algorithm: str | None, places: str, in_place: bool) -> None:
    comm, wrong = communicator(), []
    for name, shape in SHAPES.items():
        counts = [shape(r) for r in range(comm.size)]
        displs = PLACES[places](counts)
        blocks = [contribution(r, counts[r]) for r in range(comm.size)]
        wanted = place(blocks, displs)
        mine = [
            block if in_place and r == comm.rank else np.full(block.size, 77.0)
            for r, block in enumerate(blocks)
        ]
        recv = place(mine, displs)
        comm.Allgatherv(
            MPI.IN_PLACE if in_place else blocks[comm.rank],
            [recv.inner, counts, displs, MPI.DOUBLE],
            algorithm=algorithm,
        )
        wrong += [] if same(recv, wanted) else [name]
    assert agreed(wrong) == []


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("algorithm", names("gather"))
def test_gatherv(algorithm: str | None, places: str, in_place: bool) -> None:
    comm, wrong = communicator(), []
    for name, shape in SHAPES.items():
        for root in range(comm.size):
            counts = [shape(r) for r in range(comm.size)]
            displs = PLACES[places](counts)
            blocks = [contribution(r, counts[r]) for r in range(comm.size)]
            is_root = comm.rank == root
            held = in_place and is_root
            recv = place(
                [
                    block if held and r == root else np.full(block.size, 77.0)
                    for r, block in enumerate(blocks)
                ],
                displs,
            )
            spec: Any = [recv.inner, (counts, displs)] if is_root else None
            comm.Gatherv(MPI.IN_PLACE if held else blocks[comm.rank], spec, root, algorithm=algorithm)
            wrong += [(name, root)] if is_root and not same(recv, place(blocks, displs)) else []
    assert agreed(wrong) == []


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("algorithm", names("scatter"))
def test_scatterv(algorithm: str | None, places: str, in_place: bool) -> None:
    comm, wrong = communicator(), []
    for name, shape in SHAPES.items():
        for root in range(comm.size):
            counts = [shape(r) for r in range(comm.size)]
            displs = PLACES[places](counts)
            blocks = [contribution(r, counts[r]) for r in range(comm.size)]
            is_root = comm.rank == root
            send, recv = place(blocks, displs), Guarded(counts[comm.rank])
            spec: Any = [send.inner, counts, displs, MPI.DOUBLE] if is_root else None
            held = in_place and is_root
            comm.Scatterv(spec, MPI.IN_PLACE if held else recv.inner, root, algorithm=algorithm)
            wrong += (
                []
                if recv.holds(None if held else blocks[comm.rank]) and same(send, place(blocks, displs))
                else [(name, root)]
            )
    assert agreed(wrong) == []


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("algorithm", names("alltoall"))
def test_alltoallv(algorithm: str | None, places: str, in_place: bool) -> None:
    """Rank i sends shape(i + j) elements to rank j: symmetric, as an in-place call needs."""
    comm, wrong = communicator(), []
    for name, shape in SHAPES.items():
        counts = [shape(comm.rank + j) for j in range(comm.size)]
        displs = PLACES[places](counts)
        outgoing = [contribution(comm.rank * 10 + j, counts[j]) for j in range(comm.size)]
        incoming = [contribution(j * 10 + comm.rank, counts[j]) for j in range(comm.size)]
        send = place(outgoing, displs)
        recv = send if in_place else place([np.full(count, 77.0) for count in counts], displs)
        sendspec: Any = MPI.IN_PLACE if in_place else [send.inner, (counts, displs), MPI.DOUBLE]
        comm.Alltoallv(sendspec, [recv.inner, (counts, displs), MPI.DOUBLE], algorithm=algorithm)
        wrong += (
            []
            if same(recv, place(incoming, displs)) and (in_place or same(send, place(outgoing, displs)))
            else [name]
        )
    assert agreed(wrong) == []


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("algorithm", names("reduce_scatter"))
def test_reduce_scatter(algorithm: str | None, in_place: bool) -> None:
    comm, wrong = communicator(), []
    for name, shape in SHAPES.items():
        counts = [shape(r) for r in range(comm.size)]
        first = sum(counts[: comm.rank])
        inputs = [contribution(r, sum(counts)) for r in range(comm.size)]
        wanted = sum(inputs[1:], inputs[0])[first : first + counts[comm.rank]]
        send = Guarded(inputs[comm.rank])
        recv = send if in_place else Guarded(counts[comm.rank])
        comm.Reduce_scatter(MPI.IN_PLACE if in_place else send.inner, recv.inner, counts, algorithm=algorithm)
        wrong += [] if recv.holds(wanted) and (in_place or send.holds(inputs[comm.rank])) else [name]
    assert agreed(wrong) == []


@pytest.mark.parametrize("algorithm", names("reduce_scatter"))
@pytest.mark.parametrize("name", ["uneven", "rising"])
def test_reduce_scatter_without_counts(name: str, algorithm: str | None) -> None:
    """Each rank's own block tells its count, as in mpi4py, even where that of one rank looks like an equal share."""
    comm = communicator()
    counts = [SHAPES[name](r) for r in range(comm.size)]
    first = sum(counts[: comm.rank])
    inputs = [contribution(r, sum(counts)) for r in range(comm.size)]
    recv = Guarded(counts[comm.rank])
    comm.Reduce_scatter(inputs[comm.rank], recv.inner, algorithm=algorithm)
    total = sum(inputs[1:], inputs[0])
    assert agreed([] if recv.holds(total[first : first + counts[comm.rank]]) else [counts]) == []


@pytest.mark.smoke
def test_counts_that_change_between_calls() -> None:
    """Only the root sees that its counts are new: nobody may run the plan of the call before."""
    comm, wrong = communicator(), []
    for scale in (1, 2, 1, 3):
        counts = [scale * (r + 1) for r in range(comm.size)]
        blocks = [contribution(r, counts[r]) for r in range(comm.size)]
        own = blocks[comm.rank]
        for algorithm in ("binomial", "direct"):
            recv = Guarded(sum(counts))
            comm.Gatherv(own, [recv.inner, counts] if comm.rank == 0 else None, algorithm=algorithm)
            wrong += [("gather", scale)] if comm.rank == 0 and not recv.holds(np.concatenate(blocks)) else []
            mine = Guarded(own.size)
            comm.Scatterv(
                [np.concatenate(blocks), counts] if comm.rank == 0 else None, mine.inner, algorithm=algorithm
            )
            wrong += [] if mine.holds(own) else [("scatter", scale)]
    assert agreed(wrong) == []
