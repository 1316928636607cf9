"""Schedules made by hand, right and wrong ones, and how the verifier refuses them."""

from collections.abc import Callable

import pytest

from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.ir import Schedule, Writer, cell, inputs, outputs

Build = Callable[[Writer], None]


def made(
    collective: str, build: Build, *, nranks: int = 2, root: int = 0, nchunks: int = 1
) -> list[Schedule]:
    """Schedules of all ranks, as the catalogue would make them."""
    writers = [Writer(nranks, rank, root, nchunks) for rank in range(nranks)]
    for w in writers:
        build(w)
    return [
        Schedule(
            collective, "made", nranks, w.rank, root, nchunks, tuple(map(tuple, w.channels)), tuple(w.extents)
        )
        for w in writers
    ]


def refusal(
    collective: str,
    build: Build,
    *,
    nranks: int = 2,
    nchunks: int = 1,
    in_place: bool = False,
    uniform: bool = False,
) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        verify_schedules(
            made(collective, build, nranks=nranks, nchunks=nchunks), in_place=in_place, uniform=uniform
        )
    return caught.value


def exchange(w: Writer) -> None:
    """The shortest allreduce of two ranks; right out of place only."""
    w.send(1 - w.rank, inputs(0))
    w.recv_reduce(1 - w.rank, inputs(0), outputs(0))


def associating(w: Writer, *, alike: bool) -> None:
    """Three ranks swap all they have; rank 2 associates as the others do, or to the right."""
    received = w.scratch(0, 0)
    others = [rank for rank in range(3) if rank != w.rank]
    for slot, peer in enumerate(others):
        w.send(peer, inputs(0))
        w.recv(peer, cell(received, slot))
    a, b, c = [inputs(0) if rank == w.rank else cell(received, others.index(rank)) for rank in range(3)]
    if alike or w.rank < 2:
        w.reduce(a, b, c, dst=outputs(0))
    else:
        w.reduce(b, c, dst=outputs(0))
        w.reduce(a, outputs(0), dst=outputs(0))
