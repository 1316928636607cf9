"""A collective call as planner and engine see it: addresses, counts, element type, operator; and the parts that all methods have alike.

Calls that cannot run where the caller's data lies (derived datatypes, half types, some in-place forms) work on a copy, and `Call.finish`
brings the result home.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MIN, PROD, SUM, ReduceOp
from hpcoll.base.text import parse_seconds, quoted
from hpcoll.comm.arguments.buffer_specs import Element
from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.runtime.program.layouts import UNMAPPED, Maps
from hpcoll.schedules.graph import Graph
from hpcoll.schedules.placement import Nodes
from hpcoll.selection.config import RANK_ORDER

# INPUT, OUTPUT (displ, count); sizes
Blocks = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], tuple[int, ...]]
Form: TypeAlias = Literal["blocking", "in flight", "persistent"]  # in which a program calls a collective
Time: TypeAlias = float | str | None  # seconds, or text such as "10s" or "5m"

_PAIRS: tuple[tuple[MPI.Op, ReduceOp], ...] = (
    (MPI.SUM, SUM),
    (MPI.PROD, PROD),
    (MPI.MIN, MIN),
    (MPI.MAX, MAX),
    (MPI.LAND, LAND),
    (MPI.LOR, LOR),
    (MPI.LXOR, LXOR),
    (MPI.BAND, BAND),
    (MPI.BOR, BOR),
    (MPI.BXOR, BXOR),
)
# MPI.Op is unhashable; its predefined objects never die
BY_IDENTITY = {id(theirs): ours for theirs, ours in _PAIRS}
_NATIVE = {ours.name: theirs for theirs, ours in _PAIRS}


class Call(NamedTuple):
    """A collective call.

    Attributes:
        send: Address of INPUT.
        recv: Address of OUTPUT.
        count: Elements of the vector, or of one block; the sum over blocks when they vary.
        dtype: Element type in which the engine works; uint8 for moved data.
        root: Root, 0 where there is none.
        in_place: INPUT aliases OUTPUT.
        blocks: Displacements and sizes of varying blocks, or None.
        native: The MPI library could serve the call.
        strict: hpcoll keeps a promise here that the MPI library does not give: float16 and bfloat16 are rounded once, NaN passes
            through MIN and MAX.
        copied: Bytes of INPUT that are copied before anything else, because results overwrite them; 0: none.
        aliased: The caller's two buffers are one memory, which the MPI library is told by ``MPI.IN_PLACE``.
        finish: Ends the call once its result is there, or None.
        keep: Owners of the memory; among them the caller's buffers as `hpcoll.comm.arguments.buffers.resolve` found them.
        as_given: The addresses are of the caller's own memory, and there is nothing to finish: a repeated call needs no description.
        before: Launches on the caller's stream that come first, for arrays in GPU memory.
        start: Called with the engine that is about to run the call, or None.
        exported: For arrays in GPU memory, whether peers may map INPUT and OUTPUT; None for arrays in host memory.
        gpus: For arrays in GPU memory, number of each rank's GPU where all ranks map each other's memory, else empty.
        one_shot: For arrays in GPU memory, one kernel of each rank does all of it.
        one_fold: Contributions must be combined in one reduction, because their type is a half type, or their sum is exact.
        report: Tells a status which message came; None: there is nothing to tell.
        element: Element type as the caller gave it, for the check, the log and the ledger; the empty string in a barrier.
        mirrored: Arrays in GPU memory are served by way of host memory.
        purpose: A `hpcoll.comm.plans.signature.Purpose`.
        graph: Graph of a neighbourhood collective, which is the communicator's.
        objects: Lower-case method of mpi4py's for which the call moves pickled objects, or empty.
        operator: Number of its operator (`hpcoll.comm.objects.operators`), which is not of its kind.
        cells: Numbers of cells in INPUT and OUTPUT, of ``count`` bytes each (`hpcoll.runtime.program.fields`); None: no call of cells.
        maps: Of INPUT and OUTPUT in memory, where that is not as displacements of blocks say.
        canonical: Every result must be the canonical expression of the contributions.
    """

    collective: str
    send: int
    recv: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    dtype: np.dtype
    op: ReduceOp | None = None
    root: int = 0
    in_place: bool = False
    blocks: Blocks | None = None
    native: bool = True
    strict: bool = False
    copied: int = 0
    aliased: bool = False
    finish: Callable[[], None] | None = None
    keep: tuple[object, ...] = ()
    as_given: bool = True
    before: tuple[Callable[[int], None], ...] = ()
    start: Callable[[Any], None] | None = None
    exported: tuple[bool, bool] | None = None
    gpus: Nodes = ()
    one_shot: bool = False
    one_fold: bool = False
    report: Callable[[MPI.Status], None] | None = None
    element: Element = ""
    mirrored: bool = False
    purpose: int = 0
    graph: Graph | None = None
    objects: str = ""
    operator: int = 0
    cells: tuple[int, int] | None = None
    maps: Maps = UNMAPPED
    canonical: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the vector, or of one block."""
        return self.count * self.dtype.itemsize

    @property
    def mapped(self) -> tuple[int, ...]:
        """The buffers that have maps."""
        return (
            ()
            if self.maps is UNMAPPED
            else tuple(buffer for buffer, one in enumerate(self.maps) if one is not None)
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers on which a program of its kind depends: the count, or displacements and sizes of varying blocks."""
        if self.blocks is None:
            return (self.count,)
        inputs, outputs, sizes = self.blocks
        return (*chain.from_iterable(inputs), *chain.from_iterable(outputs), *sizes)

    @property
    def kind(self) -> tuple[object, ...]:
        """The key of its plan: all that decides how the call runs, wherever its data lies and how many elements it has."""
        op = self.op and (self.op.name, self.op.function, self.op.commutative)
        blocks = None if self.blocks is None else tuple(map(len, self.blocks))
        # programs for GPU memory are for one size
        exact = None if self.exported is None else (self.exported, self.counts)
        kind = (
            self.collective,
            self.objects,
            self.element,
            self.mirrored,
            self.dtype,
            op,
            self.root,
            self.in_place,
            blocks,
        )
        return (
            *kind,
            self.native,
            self.strict,
            bool(self.copied),
            exact,
            self.one_fold,
            self.graph,
            self.mapped,
            self.canonical,
        )


def check_root(root: Any, nranks: int, rank: int) -> int:
    """Return ``root`` as an int; raise ArgumentError where it is no integer in ``[0, nranks)``."""
    try:
        index = int(root.__index__())
    except AttributeError:
        raise ArgumentTypeError(f"rank {rank}: root must be an integer, got {quoted(root)}") from None
    if not 0 <= index < nranks:
        raise ArgumentError(f"rank {rank}: root must be a rank below {nranks}, got {index}")
    return index


def factor_of(op: ReduceOp, dtype: np.dtype) -> Any:
    """Return the factor of a premultiplied sum in the type in which it is applied; raise ArgumentError where that cannot hold it."""
    try:
        return dtype.type(op.premultiplier)
    except TypeError:
        raise ArgumentError(
            f"premul_sum needs a factor that {dtype} can hold, got {op.premultiplier!r}"
        ) from None


def result_count(call: Call) -> int:
    """Return the elements of a reduction's result on this rank."""
    return call.blocks[1][0][1] if call.blocks else call.count


def is_in_place(spec: Any) -> bool:
    """Say whether an argument is ``MPI.IN_PLACE``."""
    return spec is MPI.IN_PLACE or (type(spec) is type(MPI.IN_PLACE) and spec == MPI.IN_PLACE)


def view(one: Resolved) -> np.ndarray:
    """Return the plain elements of a buffer as a one-dimensional array over its memory."""
    memory = MPI.buffer.fromaddress(one.address, one.nbytes, one.readonly)
    return np.frombuffer(memory, np.uint8).view(one.dtype)  # type: ignore[call-overload]


def written(call: str, form: Form) -> str:
    """Return a call as a program writes it in some form.

    >>> written("Bcast(x)", "in flight"), written("Bcast(x)", "persistent")
    ('Ibcast(x)', 'Bcast_init(x)')
    """
    if form == "in flight":
        return f"I{call[0].lower()}{call[1:]}"
    return call.replace("(", "_init(", 1) if form == "persistent" else call


def to_ours(op: Any, rank: int) -> ReduceOp | None:
    """Return the `ReduceOp` that an operator argument names; None for one that only the MPI library has (MINLOC, user-made ``MPI.Op``).

    Raises:
        ArgumentTypeError: Neither an ``MPI.Op`` nor a `ReduceOp`.
    """
    found = BY_IDENTITY.get(id(op), op)
    if isinstance(found, ReduceOp):
        return found
    if not isinstance(op, MPI.Op):
        raise ArgumentTypeError(f"rank {rank}: op must be an MPI.Op or an hpcoll operator, got {quoted(op)}")
    return next((ours for theirs, ours in _PAIRS if theirs == op), None)


def to_native(op: ReduceOp) -> MPI.Op | None:
    """Return the MPI library's operator; None where it has none (average, premultiplied sum, a Python function)."""
    return None if op.function is not None else _NATIVE.get(op.name)


def order_of(order: object, rank: int) -> str:
    """Return the keyword ``order=`` of a reduction; raise ArgumentError where it is not ``"rank"``.

    >>> order_of("rank", 0)
    'rank'
    """
    if order != RANK_ORDER or not isinstance(order, str):
        raise ArgumentError(f"rank {rank}: order must be {RANK_ORDER!r} or None, got {quoted(order)}")
    return order


def limit_of(timeout: object, rank: int) -> float:
    """Return the seconds that a call may take.

    Args:
        timeout: The keyword ``timeout=`` of a collective, > 0; text as in ``HPCOLL_TIMEOUT``.
        rank: Rank of the caller, for the text of the error.

    Raises:
        ArgumentError: Not a time, or 0.

    >>> limit_of("5m", 0), limit_of(0.25, 0)
    (300.0, 0.25)
    """
    try:
        return _seconds(timeout)
    except (ArgumentError, TypeError):  # not even hashable
        expected = "a number of seconds above 0, or text such as '500ms', '10s' or '5m'"
        raise ArgumentError(f"rank {rank}: timeout must be {expected}, got {quoted(timeout)}") from None


@lru_cache(typed=True)
def _seconds(timeout: object) -> float:
    seconds = parse_seconds(str(timeout)) if isinstance(timeout, str | Real) else 0.0
    if seconds <= 0:
        raise ArgumentError("no time")
    return seconds
