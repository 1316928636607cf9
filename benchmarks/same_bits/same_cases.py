"""Reductions as cases that any communicator can run, each compared bit by bit with what `right_bits` says."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from contributions import DTYPES, PERIOD, inputs, is_free, operators, repeated
from mpi4py import MPI
from right_bits import Array, bits, lean, reduced

import hpcoll
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.collectives import COLLECTIVES
from hpcoll.schedules.row import unserved

METHODS = {
    "allreduce": "Allreduce",
    "reduce": "Reduce",
    "reduce_scatter": "Reduce_scatter_block",
    "scan": "Scan",
    "exscan": "Exscan",
}
DOUBLE, SINGLE = np.dtype(np.float64), np.dtype(np.float32)
COUNTS = (1, 2, 7, 64, 1000, 4097, 65_537, 1_000_000)  # elements of a share
SEGMENTS = (None, 4096, 100_000)  # bytes; None: hpcoll's choice
FORMS = ("blocking", "in flight", "persistent")
MEMORIES = ("ordinary", "symmetric")
OUT, IN = "out of place", "in place"


class Memory(NamedTuple):
    """Functions that make buffers of calls with contents, write them again and read them."""

    make: Callable[[Array], Any]
    write: Callable[[Any, Array], Any]
    read: Callable[[Any], Array]


class SameCase(NamedTuple):
    """A reduction of all ranks; ``algorithm`` None: hpcoll's choice. Counts are those of one rank's result."""

    collective: str
    algorithm: str | None
    op: str
    dtype: np.dtype = DOUBLE
    count: int = 37
    segment: int | None = None
    form: str = FORMS[0]
    place: str = OUT
    memory: str = MEMORIES[0]
    root: int = 0

    def __str__(self) -> str:
        return " ".join(str(value) for value in self)


@cache
def operator(name: str) -> Any:
    """Return the operator as calls take it."""
    if name == "lean":
        return hpcoll.reduce_op(lean, commutative=False)
    return hpcoll.EXACT_SUM if name == "exact" else getattr(MPI, name.upper())


def ordered() -> bool:
    """Say whether calls take ``order=``."""
    return "order" in inspect.signature(hpcoll.Communicator.Allreduce).parameters


@cache
def result(dtype: np.dtype, op: str, nranks: int, ranks: tuple[int, ...]) -> Array:
    """Return a period of what some ranks' contributions, in this order, give."""
    given = inputs(dtype, op, nranks)
    return reduced(op, [given[rank] for rank in ranks])


def wanted(case: SameCase, rank: int, nranks: int) -> Array | None:
    """Return what a rank must receive; None where it receives nothing."""
    ranks = range(nranks)
    if case.collective in ("scan", "exscan"):
        ranks = range(rank + (case.collective == "scan"))
    if not ranks or (case.collective == "reduce" and rank != case.root):
        return None
    start = rank * case.count if case.collective == "reduce_scatter" else 0
    return repeated(result(case.dtype, case.op, nranks, tuple(ranks)), case.count, start)


class Ran(NamedTuple):
    """The results of a case on one rank: what was received, and whether that is right in every start of the call."""

    found: Array | None
    good: bool


def run(comm: Any, case: SameCase, mine: int, memory: Memory, **options: Any) -> Ran:
    """Run a case; ``mine``: whose contribution this rank gives."""
    rank, nranks = comm.rank, comm.size
    blocks = nranks if case.collective == "reduce_scatter" else 1
    given, want = (
        repeated(inputs(case.dtype, case.op, nranks)[mine], blocks * case.count),
        wanted(case, rank, nranks),
    )
    at_root = case.collective != "reduce" or rank == case.root
    # on all ranks, as symmetric memory needs it
    send, recv = (
        memory.make(given),
        memory.make(np.zeros(case.count, case.dtype)),
    )
    arguments = (
        [MPI.IN_PLACE, (recv := send)] if case.place == IN and at_root else [send, recv if at_root else None]
    )
    arguments += [operator(case.op), *[case.root] * (case.collective == "reduce")]
    options |= {
        name: value for name in ("algorithm", "segment") if (value := getattr(case, name)) is not None
    }
    good, found = True, None
    for _ in called(comm, METHODS[case.collective], arguments, options, case.form):
        if want is not None:
            found = memory.read(recv)[: case.count].copy()
            good &= bits(found) == bits(want)
        memory.write(send, given)
    return Ran(found, good)


def called(
    comm: Any, method: str, arguments: list[Any], options: dict[str, Any], form: str
) -> Iterator[None]:
    """Call in a form; yield after each time that the result is there."""
    if form == "blocking":
        getattr(comm, method)(*arguments, **options)
        yield
    elif form == "in flight":
        getattr(comm, f"I{method.lower()}")(*arguments, **options).Wait()
        yield
    else:
        request = getattr(comm, f"{method}_init")(*arguments, **options)
        for _ in range(2):
            request.Start()
            request.Wait()
            yield
        request.Free()


# ---- which cases


def canonical_rows(collective: str, nranks: int, nodes: tuple[int, ...]) -> list[str]:
    """Return the names of the algorithms that claim to be canonical for ranks on nodes."""
    rows = [row for row in CATALOGUE.values() if row.collective == collective and not unserved(row, nranks)]
    return [row.name for row in rows if row.is_canonical(nranks, nodes)]


def exact_rows(collective: str, nranks: int) -> list[str]:
    """Return the names of all algorithms."""
    return [
        row.name for row in CATALOGUE.values() if row.collective == collective and not unserved(row, nranks)
    ]


def cases(nranks: int, nodes: tuple[int, ...], largest: int = COUNTS[-1]) -> Iterator[SameCase]:
    """Yield cases of all collectives: every type and operator; every count and segment; every form, place and memory, by every row."""
    for collective in METHODS:
        rows = {
            "sum": [None, *canonical_rows(collective, nranks, nodes)],
            "exact": [None, *exact_rows(collective, nranks)],
        }
        for kind, names in rows.items():
            for name in names:
                yield from of_row(collective, name, kind, nranks, largest)


def of_row(collective: str, name: str | None, kind: str, nranks: int, largest: int) -> Iterator[SameCase]:
    """Yield the cases of one row: of exact sums, or of all other operators."""
    roots = sorted({0, nranks // 2, nranks - 1}) if collective == "reduce" else [0]
    for dtype in DTYPES:
        for op in operators(dtype):
            if (op == "exact") == (kind == "exact") and (op != "lean" or keeps_order(collective, name)):
                yield SameCase(collective, name, op, dtype, root=roots[-1])
    for count, segment in product(COUNTS, SEGMENTS):
        share = max(1, count // nranks) if collective == "reduce_scatter" else count
        if (
            count <= largest
            and (segment is None or count * 8 > segment)
            and not (count > 100_000 and segment == SEGMENTS[1])
        ):
            yield SameCase(collective, name, kind, DOUBLE, share, segment, root=roots[0])
    for form, place, memory in product(FORMS, (OUT, IN), MEMORIES):
        if name is None or form == FORMS[0] or memory == MEMORIES[0]:
            for dtype, count in ((DOUBLE, 1000), (SINGLE, 2 * PERIOD + 3))[: 2 if name is None else 1]:
                yield SameCase(
                    collective, name, kind, dtype, count, None, form, place, memory, roots[len(roots) // 2]
                )


def keeps_order(collective: str, name: str | None) -> bool:
    """Say whether an algorithm takes operators that are not commutative."""
    return name is None or COLLECTIVES[collective].ordered or CATALOGUE[f"{collective}/{name}"].ordered


def key(case: SameCase, nranks: int) -> str:
    """Return what results with equal bits have in common, for results that every number of ranks shares if it can."""
    of = "" if is_free(case.dtype, case.op) else f" {nranks} ranks"
    return f"{case.dtype.name} {case.op} {case.count}{of}"


def permutations(nranks: int) -> Sequence[Sequence[int]]:
    """Return a few orders of ranks: reversed, and two by a seed."""
    rng = np.random.default_rng(nranks)
    return [range(nranks)[::-1], *(rng.permutation(nranks).tolist() for _ in range(2))]
