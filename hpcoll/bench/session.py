"""A whole run of the benchmark: every size, every algorithm beside the MPI library's own, answers checked. Floor 7."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.bench.cases import IN_PLACE, OUT_OF_PLACE, Buffers, Case, bind, calm, fill, make_buffers, wrong_elements
from hpcoll.bench.measure import Pace, Times, measure
from hpcoll.bench.results import Row, Side, bus_factor, summarise
from hpcoll.bench.values import type_name
from hpcoll.collectives import COLLECTIVES
from hpcoll.communicator import Communicator
from hpcoll.config import NATIVE
from hpcoll.operators import to_native
from hpcoll.ops import ReduceOp
from hpcoll.units import format_nbytes

AUTO = "auto"


@dataclass(frozen=True)
class Request:
    """What to measure; equal on all ranks.

    Attributes:
        collective: Name.
        sizes: Bytes of the messages, ascending; a size is cut to whole elements and blocks.
        dtype, op, root: Of the calls; ``op`` is None where nothing is combined.
        algorithms: Names of the catalogue, and ``auto``; ``native`` is measured beside them.
        segment: Bytes per segment, or None.
        check: Whether answers are checked.
        pace: How long to measure.
    """

    collective: str
    sizes: tuple[int, ...]
    dtype: np.dtype
    op: ReduceOp | None
    root: int
    algorithms: tuple[str, ...]
    segment: int | None
    check: bool
    pace: Pace


class Findings(NamedTuple):
    """Rows in order of size, then algorithm, native first; notes for the reader."""

    rows: list[Row]
    notes: list[str]


class _Candidate(NamedTuple):
    algorithm: str
    side: str
    buffers: Buffers
    call: Callable[[], object]


def sizes(minbytes: int, maxbytes: int, stepbytes: int = 0, factor: int = 0) -> Iterator[int]:
    """Sizes from ``minbytes`` to ``maxbytes``: by adding ``stepbytes >= 1``, or else by multiplying with ``factor >= 2``.

    >>> list(sizes(8, 64, factor=2)), list(sizes(8, 20, stepbytes=6))
    ([8, 16, 32, 64], [8, 14, 20])
    """
    assert minbytes >= 1, minbytes
    assert stepbytes >= 1 or factor >= 2, (stepbytes, factor)
    size = minbytes
    while size <= maxbytes:
        yield size
        size = size + stepbytes if stepbytes else size * factor


def cases(request: Request, rank: int, nranks: int) -> list[Case]:
    """One case per size, without repetition; a size below one element per block becomes that."""
    meaning = COLLECTIVES[request.collective]
    unit = request.dtype.itemsize * (nranks if meaning.blocks else 1)
    counts = [0] if meaning.idempotent else sorted({max(1, size // unit) for size in request.sizes})
    return [Case(request.collective, count, request.dtype, request.op, request.root, rank, nranks) for count in counts]


def run(request: Request, world: MPI.Intracomm, progress: Callable[[str], None]) -> Findings:
    """Measure everything; collective, and the result is equal on all ranks.

    Args:
        request: What to measure.
        world: The MPI library's communicator; hpcoll's is made over it.
        progress: Called with one line of text before each size, and with an empty one at the end.
    """
    comm = Communicator(world)
    wanted = cases(request, world.Get_rank(), world.Get_size())
    problem = _native_problem(wanted[0], world)
    names = [*([] if problem else [NATIVE]), *request.algorithms]
    rows: list[Row] = []
    for index, case in enumerate(wanted):
        progress(f"{request.collective} {format_nbytes(case.nbytes)}, size {index + 1} of {len(wanted)}, {len(names)} algorithms")
        rows += _run_case(case, names, request, world, comm)
    progress("")
    return Findings(rows, [f"native is left out: {problem}"] if problem else [])


def _run_case(case: Case, names: list[str], request: Request, world: MPI.Intracomm, comm: Communicator) -> list[Row]:
    """All algorithms at one size."""
    memory = {side: make_buffers(case, side) for side in case.sides}
    candidates = [
        _Candidate(name, side, buffers, _bind(case, buffers, name, request.segment, world, comm))
        for name in names
        for side, buffers in memory.items()
    ]
    ran = {one.algorithm: _ran(case, one, comm) for one in candidates if one.side == OUT_OF_PLACE}
    wrong = np.zeros(len(candidates), np.int64)
    if request.check:
        wrong[:] = _check(case, candidates)
    for buffers in memory.values():
        fill(case, buffers)
        calm(buffers)
    times = measure(world, [one.call for one in candidates], case.nbytes, request.pace)
    if request.check:
        np.maximum(wrong, _check(case, candidates), out=wrong)
        world.Allreduce(MPI.IN_PLACE, wrong, op=MPI.SUM)
    found = _sides(case, candidates, times, wrong if request.check else None)
    meaning = case.meaning
    redop, root = case.op.name if case.op else "none", case.root if meaning.rooted else -1
    block = case.count * case.dtype.itemsize
    return [
        Row(
            name, ran[name], case.nbytes, case.count, block, type_name(case.dtype), redop, root,
            found.get((name, OUT_OF_PLACE)), found.get((name, IN_PLACE)),
        )
        for name in names
    ]  # fmt: skip


def _bind(case: Case, buffers: Buffers, name: str, segment: int | None, world: MPI.Intracomm, comm: Communicator) -> Callable[[], object]:
    theirs = to_native(case.op) if case.op else None  # where MPI has the operator, both are called with it, as users do
    if name == NATIVE:
        return bind(case, buffers, world, theirs)  # mpi4py's own method: nothing of ours in between
    return bind(case, buffers, comm, theirs or case.op, algorithm=None if name == AUTO else name, segment=segment)


def _ran(case: Case, one: _Candidate, comm: Communicator) -> str:
    """Make the first call, which also plans, and look up in the ledger what ran."""
    fill(case, one.buffers)
    before = {(row.operation, row.algorithm): row.calls for row in comm.ledger.rows()}
    one.call()
    if one.algorithm != AUTO:
        return one.algorithm
    return next(row.algorithm for row in comm.ledger.rows() if row.calls != before.get((row.operation, row.algorithm), 0))


def _check(case: Case, candidates: list[_Candidate]) -> list[int]:
    """Wrong elements on this rank, per candidate."""
    found = []
    for one in candidates:
        fill(case, one.buffers)
        one.call()
        found.append(wrong_elements(case, one.buffers))
    return found


def _sides(case: Case, candidates: list[_Candidate], times: Times, wrong: np.ndarray | None) -> dict[tuple[str, str], Side]:
    native = {one.side: times.seconds[i] for i, one in enumerate(candidates) if one.algorithm == NATIVE}
    factor = bus_factor(case.collective, case.nranks)
    return {
        (one.algorithm, one.side): summarise(
            times.seconds[i], case.nbytes, factor,
            nwrong=None if wrong is None else int(wrong[i]), native=native.get(one.side), batch=times.batch,
        )
        for i, one in enumerate(candidates)
    }  # fmt: skip


def _native_problem(case: Case, world: MPI.Intracomm) -> str:
    """Why the MPI library cannot serve such calls, agreed on by all ranks; the empty string when it can."""
    problem = ""
    op = to_native(case.op) if case.op else None
    if case.op is not None and op is None:
        problem = f"the MPI library has no operator {case.op.name}"
    elif case.count:
        probe = np.zeros(1, case.dtype)
        try:
            world.Allreduce(MPI.IN_PLACE, probe, op=op or MPI.MAX) if case.op else world.Bcast(probe)
        except (MPI.Exception, BufferError, TypeError, ValueError, KeyError) as error:
            problem = f"the MPI library cannot take {case.dtype.name} elements ({type(error).__name__})"
    return max(world.allgather(problem))
