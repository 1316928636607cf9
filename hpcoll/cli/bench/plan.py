"""``hpcoll bench plan``: what the first call of a kind costs before it runs, on ranks of a job of any size. No MPI.

A rank chooses an algorithm, builds its schedule and lowers it to a program. Ranks are planned one after another in this process, as
`hpcoll.comm.plans.engine_builder` does it on arrays of doubles in host memory.
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hpcoll.analysis.cost import HOSTS, ONE_HOST
from hpcoll.base.errors import ArgumentError
from hpcoll.base.sizes import Sizes
from hpcoll.base.text import MAX_SIMULATED, format_nbytes, one_of, table
from hpcoll.cli import output
from hpcoll.cli.bench.report import NCCL
from hpcoll.comm.plans.segmentation import lane_nbytes, segmented
from hpcoll.runtime.program.fields import STAGING_SLOTS
from hpcoll.runtime.program.lowering import lower
from hpcoll.runtime.program.opcodes import Program
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.runtime.transports.rings import capacity_nbytes
from hpcoll.schedules.catalogue import find
from hpcoll.schedules.collectives import COLLECTIVES, nblocks
from hpcoll.schedules.graph import Graph
from hpcoll.schedules.placement import Nodes, members, parse_nodes
from hpcoll.selection.choice import Need
from hpcoll.selection.choose import SizeRanges
from hpcoll.selection.config import Config

NRANKS, SIZES = 4096, (8, 64 << 10, 4 << 20)
_DOUBLE = np.dtype(np.float64)
_HEAD = ("collective", "message", "rank", "algorithm", "choose ms", "build ms", "lower ms", "rows", "program")


class _Call(NamedTuple):
    """A call, as far as it is cut into segments."""

    collective: str
    count: Any  # hides tuple.count
    dtype: np.dtype = _DOUBLE
    root: int = 0
    blocks: None = None
    graph: Graph | None = None


class Planned(NamedTuple):
    """The milliseconds of CPU time in which a rank planned a call, and the size of its program."""

    collective: str
    nbytes: int  # of the message, as the catalogue counts them
    rank: int
    algorithm: str
    choose_ms: float
    build_ms: float
    lower_ms: float
    nrows: int
    program_nbytes: int  # of the program's tables


def plan(collective: str, nodes: Nodes, rank: int, nbytes: int) -> tuple[Planned, Program]:
    """Plan a call of at least an element, or an element to a block, as the rank's first of its kind."""
    nranks, many = len(nodes), len(members(nodes)) > 1
    n = nblocks(collective, nranks)
    count = max(1, nbytes // _DOUBLE.itemsize // n)
    nbytes = count * n * _DOUBLE.itemsize
    mates = members(nodes)[nodes[rank]]
    times = [time.process_time()]
    ranges = SizeRanges(Config())
    levels = HOSTS if many else ONE_HOST
    need = Need(
        collective, nranks, ranges.cell(nbytes)[0], strict=True, one_node=not many, nodes=nodes, levels=levels
    )
    choice = ranges.find(need, None, None).choice
    times.append(time.process_time())
    row, call = find(collective, choice.algorithm), _Call(collective, Sizes((count,)).given[0])
    most = lane_nbytes(row, capacity_nbytes(nranks), nodes)
    steps, segments = segmented(row, call, choice.segment, most, rank, nodes, ())
    times.append(time.process_time())
    routes = host_routes({mate: local for local, mate in enumerate(mates) if mate != rank})
    in_place = COLLECTIVES[collective].always_in_place
    program = lower(steps, segments, _DOUBLE.itemsize, STAGING_SLOTS, in_place=in_place, routes=routes)
    times.append(time.process_time())
    took = [1e3 * (end - start) for start, end in pairwise(times)]
    sizes = len(program.rows), program.numbers.nbytes
    return Planned(collective, nbytes, rank, choice.algorithm, took[0], took[1], took[2], *sizes), program


def _plans(collectives: list[str], nodes: Nodes) -> Iterator[Planned]:
    """Yield the plans of each collective and size on the first, the middle and the last rank."""
    for collective in collectives:
        for nbytes in SIZES[:1] if collective == "barrier" else SIZES:
            for rank in sorted({0, len(nodes) // 2, len(nodes) - 1}):
                yield plan(collective, nodes, rank, nbytes)[0]


def measure_plans(arguments: argparse.Namespace) -> int:
    """Plan, and print a table or JSON; return 0."""
    nranks = NRANKS if arguments.iters is None else arguments.iters
    if not 2 <= nranks <= MAX_SIMULATED:
        raise ArgumentError(f"bench plan needs 2 to {MAX_SIMULATED} ranks (-n), got {nranks}")
    known = [name for name, collective in COLLECTIVES.items() if not collective.neighbours]
    unknown = [name for name in arguments.collectives if name not in known]
    if unknown:
        raise ArgumentError(f"bench plan takes {one_of(known, unknown[0])}")
    nodes = parse_nodes(arguments.ranks_per_node or "1", nranks)
    plan("barrier", nodes, 0, 8)  # imports what planning needs
    plans = list(_plans(arguments.collectives or known, nodes))
    if arguments.format == NCCL:
        text = "\n".join(table(_HEAD, [_cells(one) for one in plans], output.UNCUT))
    else:
        placed = {"nranks": nranks, "ranks_per_node": arguments.ranks_per_node}
        text = json.dumps({**placed, "plans": [one._asdict() for one in plans]}, indent=1)
    if arguments.output:
        output.write(arguments.output, f"{text}\n")
    else:
        print(text)
    return 0


def _cells(one: Planned) -> list[str]:
    times = (f"{ms:.1f}" for ms in (one.choose_ms, one.build_ms, one.lower_ms))
    sizes = str(one.nrows), format_nbytes(one.program_nbytes)
    return [one.collective, format_nbytes(one.nbytes), str(one.rank), one.algorithm, *times, *sizes]
