"""Calls to lower, with operators and data, and what they must give by NumPy."""

import random
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from reference_calls import Operator, Reach, Setting

from hpcoll.analysis.prove import placements
from hpcoll.base import canonical
from hpcoll.runtime.gpu.routes import gpu_routes
from hpcoll.runtime.program.chunks import Segments, block_segments, varying_blocks, vector_segments
from hpcoll.runtime.program.route import Routes
from hpcoll.runtime.transports.host_routes import host_routes
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES, Collective, meaning
from hpcoll.schedules.graph import ring
from hpcoll.schedules.ir import Schedule
from hpcoll.schedules.placement import Nodes, numbered, parse_nodes
from hpcoll.schedules.row import Algorithm, schedule

Blocks = list[tuple[int, int]]  # displacement and count of each, in elements

ROWS = list(CATALOGUE.values())
PRIME = 2**31 - 1

every_row = pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])


def compose(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Composition of affine maps modulo a prime: exact, associative and not commutative."""
    (a, b), (c, d) = (part.view(np.int64).reshape(-1, 2).T for part in (left, right))
    return np.stack([a * c % PRIME, (c * b + d) % PRIME], axis=1).reshape(-1).view(np.uint8)


def add(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left.view(np.int64) + right.view(np.int64)).view(np.uint8)


def add_floats(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (left.view(np.float64) + right.view(np.float64)).view(np.uint8)


COMPOSE, ADD, OR, MOVE = Operator(16, compose), Operator(8, add), Operator(1, np.bitwise_or), Operator(3, add)


def operator_of(row: Algorithm) -> Operator:
    if row.collective == "barrier":
        return OR
    if not COLLECTIVES[row.collective].reduces:
        return MOVE
    return COMPOSE if row.ordered else ADD


def elements(operator: Operator, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random elements as bytes."""
    if operator is COMPOSE:
        return rng.integers(0, PRIME, 2 * count).view(np.uint8)
    if operator.combine is add_floats:
        return (rng.standard_normal(count) * 10.0 ** rng.integers(-8, 8, count)).view(np.uint8)
    return rng.integers(0, 256, count * operator.itemsize, np.uint8)


# --- one call


class Case(NamedTuple):
    """A call of all ranks; counts and displacements in elements.

    Attributes:
        count: Of the vector, or of one block.
        segment: Elements per segment; of a chunked row, per chunk.
        sizes: Counts of varying blocks, one per rank; for alltoall from ``sizes[rank][peer]``. None for equal ones.
        most_nbytes: Limit above which a message is split.
        shared: Per rank whether INPUT and OUTPUT may be read in place by ranks of its node; empty: none.
        reach: Per rank what reaches its memory, for arrays in GPU memory; empty: arrays in host memory.
        nodes: Placement that the schedules are made for; empty: the setting's, which says who shares memory.
    """

    row: Algorithm
    nranks: int
    count: int
    in_place: tuple[bool, ...]
    setting: Setting
    root: int = 0
    segment: int = 1 << 40
    window: int = 2
    sizes: tuple[int, ...] | None = None
    most_nbytes: int = 1 << 30
    shared: tuple[tuple[bool, bool], ...] = ()
    reach: tuple[Reach, ...] = ()
    nodes: Nodes = ()

    @property
    def collective(self) -> str:
        return self.row.collective

    @property
    def meaning(self) -> Collective:
        """The collective; a neighbourhood one on the ring."""
        return meaning(
            self.collective, ring(self.nranks) if COLLECTIVES[self.collective].neighbours else None
        )

    def schedules(self) -> list[Schedule]:
        nchunks = min(-(-self.count // self.segment) or 1, max(1, self.count))
        nodes = numbered(self.nodes or self.setting.nodes)
        return [
            schedule(self.row, self.nranks, rank, self.root, nchunks, nodes) for rank in range(self.nranks)
        ]

    def local_peers(self, rank: int) -> dict[int, int]:
        """Local ranks of the other ranks on a rank's node."""
        nodes = self.setting.nodes or range(self.nranks)
        mine = [other for other in range(self.nranks) if nodes[other] == nodes[rank]]
        return {other: local for local, other in enumerate(mine) if other != rank}

    def routes(self, rank: int) -> Routes:
        """Of a rank's messages."""
        if not self.reach:
            return host_routes(self.local_peers(rank))
        readers, mpi_takes_gpu, exported, puts = self.reach[rank]
        return gpu_routes(self.local_peers(rank), readers, exported, mpi_takes_gpu=mpi_takes_gpu, puts=puts)

    def size(self, source: int, target: int) -> int:
        """Elements of the block of these ranks; only alltoall has one for each pair, and neighbor_alltoall for each block of a source."""
        if self.sizes is None:
            return self.count
        names = {
            "allgather": source,
            "gather": source,
            "neighbor_allgather": source,
            "reduce_scatter": target,
            "scatter": target,
        }
        return self.sizes[names.get(self.collective, (source * 5 + target * 3) % self.nranks)]

    def blocks(self, rank: int) -> tuple[Blocks, Blocks]:
        """Blocks of INPUT and OUTPUT; varying ones lie in a random order with gaps between them."""
        collective, who = self.meaning, (rank, self.nranks, self.root, 1)
        nin, nout = collective.ninputs(*who), collective.noutputs(*who)
        if not collective.blocks:
            return [(0, self.count)] * nin, [(0, self.count)] * nout
        inputs = [self.size(rank, i if nin > 1 else rank) for i in range(nin)]
        if collective.neighbours:
            ends = [
                end if isinstance(end, tuple) else (end, 0)
                for end in map(partial(collective.output_item, rank), range(nout))
            ]
            outputs = [self.size(*end) for end in ends]
        else:
            outputs = [self.size(i if nout > 1 else rank, rank) for i in range(nout)]
        if self.nranks > 1 and self.collective in ("reduce_scatter", "scatter"):
            outputs = [self.size(self.root, rank)]
        return self._spread(inputs, rank), self._spread(outputs, rank + 100)

    def _spread(self, counts: list[int], seed: int) -> Blocks:
        if self.sizes is None:
            return [(i * count, count) for i, count in enumerate(counts)]
        rng, at = random.Random(seed + self.setting.seed), 0
        displs = [0] * len(counts)
        for i in rng.sample(range(len(counts)), len(counts)):
            displs[i] = at + rng.choice((0, 0, 1, 3))
            at = displs[i] + counts[i]
        return list(zip(displs, counts, strict=True))

    def segments(self, steps: Schedule) -> Segments:
        """As `hpcoll.comm.plans.segmentation` cuts."""
        if self.sizes is not None:
            known = () if self.collective.endswith("alltoall") or self.meaning.neighbours else self.sizes
            return varying_blocks(
                *self.blocks(steps.rank), known, self.segment if self.segment < 1 << 40 else 0
            )
        segment = self.segment if self.row.pipelined else max(1, self.count)
        if COLLECTIVES[self.collective].blocks:
            return block_segments(steps, self.count, segment)
        return vector_segments(self.count, segment, steps.nchunks)


def wanted(case: Case, sent: list[list[np.ndarray]], operator: Operator) -> list[list[np.ndarray]]:
    """Return what every rank's OUTPUT blocks must hold, from every rank's INPUT blocks, by NumPy; an empty list leaves it as it was.

    Contributions are combined as the canonical expression, which only operators that are not associative tell from others.
    """
    ranks, root = range(case.nranks), case.root

    def fold(block: int, upto: int = case.nranks) -> list[np.ndarray]:
        return [canonical.fold(operator.combine, [sent[r][block] for r in range(upto)])] if upto else []

    def at_root(found: list[np.ndarray]) -> list[list[np.ndarray]]:
        return [found if r == root else [] for r in ranks]

    return {
        "allreduce": lambda: [fold(0)] * case.nranks,
        "barrier": lambda: [fold(0)] * case.nranks,
        "reduce": lambda: at_root(fold(0)),
        "bcast": lambda: [sent[root]] * case.nranks,
        "scan": lambda: [fold(0, r + 1) for r in ranks],
        "exscan": lambda: [fold(0, r) for r in ranks],
        "allgather": lambda: [[sent[r][0] for r in ranks]] * case.nranks,
        "gather": lambda: at_root([sent[r][0] for r in ranks]),
        "scatter": lambda: [[sent[root][r]] for r in ranks],
        "reduce_scatter": lambda: [fold(r) for r in ranks],
        "alltoall": lambda: [[sent[s][r] for s in ranks] for r in ranks],
        "neighbor_allgather": lambda: [[sent[s][0] for s, _ in ends] for ends in ring(case.nranks).sources],
        "neighbor_alltoall": lambda: [[sent[s][i] for s, i in ends] for ends in ring(case.nranks).sources],
    }[case.collective]()


def in_place_modes(row: Algorithm, nranks: int, rng: random.Random) -> list[tuple[bool, ...]]:
    """Nobody, everybody, some: whether a rank's buffers are one is known to that rank only."""
    collective = COLLECTIVES[row.collective]
    if collective.always_in_place:
        return [(True,) * nranks]
    if collective.aliases is None:
        return [(False,) * nranks]
    return [(False,) * nranks, (True,) * nranks, tuple(rng.random() < 0.5 for _ in range(nranks))]


def random_setting(rng: random.Random) -> Setting:
    return Setting(rng.randrange(1 << 30), rng.choice((0, 0, 24, 1 << 30)))


def pairs(row: Algorithm, nranks: int) -> Nodes:
    """Neighbours two by two on nodes, for a row that looks at them."""
    return parse_nodes("2", nranks) if row.placed else ()


def random_nodes(row: Algorithm, nranks: int, rng: random.Random) -> Nodes:
    """A placement for a row that looks at it, whoever shares memory."""
    if not row.placed:
        return ()
    most = rng.randrange(1, nranks + 1)
    return rng.choice([*placements(nranks), numbered(rng.randrange(most) for _ in range(nranks))])
