"""The cells of a simulation: an algorithm at each size. The sizes of an algorithm are simulated at the same time, a thread on each core."""

import argparse
import gc
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from hpcoll.analysis.cost import Levels, best_segment, seconds_on_nodes
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import parse_nbytes, parse_seconds, quoted
from hpcoll.cli.simulate.predict import Subject, predict, subject
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.placement import Nodes, describe_all, members, numbered, parse_nodes, parts
from hpcoll.schedules.row import Algorithm

PATIENCE_S = 45.0  # for all algorithms, where the user named none


class Place(NamedTuple):
    """The nodes and the cache domains of all ranks, both as in `hpcoll.schedules.placement`."""

    nodes: Nodes
    domains: Nodes

    def __str__(self) -> str:
        return describe_all(*self)


class Cell(NamedTuple):
    """The prediction of an algorithm at one size, in segments of so many bytes."""

    algorithm: str
    nbytes: int
    segment: int
    seconds: float
    simulated: int
    extrapolated: bool


class SimulateRequest(NamedTuple):
    """The command line, read."""

    arguments: argparse.Namespace
    place: Place
    levels: Levels
    sizes: list[int]
    comes: tuple[float, ...] = ()  # seconds at which each rank comes to the call; none: all at once


def predict_cells(
    row: Algorithm,
    request: SimulateRequest,
    end: float = math.inf,
    shown: Callable[[str], None] = lambda text: None,
) -> list[Cell] | str:
    """Return the cells of one algorithm, or why there are none; from the time ``end`` on nothing is begun.

    ``shown`` is called with how far it is. ArgumentError: there is too much to simulate all of it.
    """
    arguments, place, sizes = request.arguments, request.place, request.sizes
    if (
        arguments.order
        and COLLECTIVES[row.collective].reduces
        and not row.is_canonical(len(place.nodes), parts(*place))
    ):
        return 'it does not combine as order="rank" asks'
    if arguments.algorithms is None and row.per_gpu:
        return (
            f"messages between hosts are simulated, and no GPUs; --algorithms {row.name} takes nodes for them"
        )
    if (
        arguments.algorithms is None
        and row.hierarchical
        and not len(place.nodes) > len(set(parts(*place))) > 1
    ):
        return f"there are no nodes of several ranks among others; --algorithms {row.name} simulates it"
    subjects, cells, every = dict[int, Subject](), list[Cell](), arguments.exact or bool(request.comes)
    # compiled loops let other threads run
    pool = ThreadPoolExecutor(1 if arguments.exact else len(os.sched_getaffinity(0)))
    collects = gc.isenabled()
    gc.disable()  # schedules hold no cycles, and looking for some takes half of the time
    try:
        futures = []
        for nbytes in sizes:
            shown("building schedules")
            segment = _segment(row, request, nbytes)
            nchunks, several = chunks_and_segments(row, nbytes, segment)
            try:
                if nchunks not in subjects:
                    subjects[nchunks] = subject(
                        row, place.nodes, arguments.root, nchunks, domains=place.domains, exact=every, end=end
                    )
            except ArgumentError as error:
                return str(error)
            futures.append(pool.submit(_cell, subjects[nchunks], request, nbytes, segment, several, end))
        for future in futures:
            shown(f"{len(cells)} of {len(sizes)} sizes")
            cells.append(future.result())
    except TimeoutError:
        return f"not done within {PATIENCE_S:.0f} s; --algorithms {row.name} simulates it, however long that takes"
    finally:
        pool.shutdown(cancel_futures=True)
        if collects:
            gc.enable()
    return cells


def _cell(
    what: Subject, request: SimulateRequest, nbytes: int, segment: int, nsegments: int, end: float
) -> Cell:
    if time.perf_counter() > end:
        raise TimeoutError
    in_flight, exact = window(len(request.place.nodes)) * what.table.nchannels, request.arguments.exact
    predicted = predict(what, nbytes, request.levels, nsegments, in_flight, exact=exact, comes=request.comes)
    return Cell(
        what.row.name,
        nbytes,
        min(segment, nbytes),
        predicted.seconds,
        predicted.simulated,
        predicted.extrapolated,
    )


def window(nranks: int) -> int:
    """Return the segments in flight, as `hpcoll.comm.plans.segmentation.window`, which needs MPI."""
    return 2 * math.ceil(math.log2(max(2, nranks))) + 2


def comes_of(late: list[str], nranks: int) -> tuple[float, ...]:
    """Return the seconds at which each rank comes, from texts like ``3:2ms``; empty where none is late."""
    late_s = [0.0] * nranks
    for text in late:
        rank, _, seconds = text.partition(":")
        if not (rank.isdecimal() and int(rank) < nranks):
            raise ArgumentError(
                f"late must be one of {nranks} ranks and a time, like 3:2ms, got {quoted(text)}"
            )
        late_s[int(rank)] = parse_seconds(seconds)
    return tuple(late_s) if late else ()


def place_of(nodes: str, domains: str | None, nranks: int) -> Place:
    """Read ranks per node and per domain as `hpcoll.schedules.placement.parse_nodes` does."""
    placement = parse_nodes(nodes, nranks)
    if domains is None:
        return Place(placement, placement)
    names = {}
    for node, ranks in enumerate(members(placement)):
        names.update({rank: (node, domain) for rank, domain in zip(ranks, parse_nodes(domains, len(ranks)))})
    return Place(placement, numbered(names[rank] for rank in range(nranks)))


def _segment(row: Algorithm, request: SimulateRequest, nbytes: int) -> int:
    if request.arguments.segment != "auto":
        return max(1, parse_nbytes(request.arguments.segment))
    return best_segment_of(row, request.place, request.levels, nbytes)[1]


def best_segment_of(row: Algorithm, place: Place, levels: Levels, nbytes: int) -> tuple[float, int]:
    """Return seconds and bytes of the segments with which a row is fastest by the closed-form model."""
    nodes, levels = parts(*place), levels.on_parts(*place)
    return best_segment(
        row,
        nodes,
        nbytes,
        levels.network.eager,
        lambda segment: seconds_on_nodes(row, nodes, nbytes, segment, levels),
    )


def chunks_and_segments(row: Algorithm, nbytes: int, segment: int) -> tuple[int, int]:
    """Return the chunks of a schedule, and the segments that follow one another; a row has several of one of them at most."""
    nsegments = max(1, math.ceil(nbytes / segment))
    return nsegments if row.chunked else 1, nsegments if row.pipelined else 1
