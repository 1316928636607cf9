"""One collective call as the plan cache and the engine see it: addresses, counts, element type.

What cannot be run where the caller's data lies (derived datatypes, half types, some in-place forms) goes through a copy, and
`Call.finish` brings the result home.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.dtypes import is_bfloat16, working_dtype
from hpcoll.base.errors import ArgumentError, ArgumentTypeError
from hpcoll.base.ops import MAX, MIN, ReduceOp
from hpcoll.comm.arguments.buffer_specs import Element
from hpcoll.comm.arguments.buffers import Resolved
from hpcoll.comm.arguments.operators import to_native
from hpcoll.schedules.placement import Nodes

Blocks = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], tuple[int, ...]]  # INPUT, OUTPUT (displ, count); sizes
Form: TypeAlias = Literal["blocking", "in flight", "persistent"]  # in which a program calls a collective


class Call(NamedTuple):
    """One collective call.

    Attributes:
        collective: Name.
        send, recv: Addresses of INPUT and OUTPUT.
        count: Elements of the vector, or of one block; the sum over blocks when they vary.
        dtype: Element type in which the engine works; uint8 for moved data.
        op: Operator, or None.
        root: Root, 0 where there is none.
        in_place: Whether INPUT aliases OUTPUT.
        blocks: Displacements and sizes of varying blocks, or None.
        native: Whether the MPI library could serve the call.
        strict: hpcoll keeps a promise here that the MPI library does not give: float16 and bfloat16 are rounded once, NaN passes
            through MIN and MAX.
        copied: Bytes of INPUT that are copied before anything else, because results overwrite them; 0: none.
        aliased: The caller's two buffers are one memory, which the MPI library wants to be told as ``MPI.IN_PLACE``.
        finish: What remains to be done with the result, or None.
        keep: Whatever owns memory that the addresses point to.
        as_given: The addresses are those of the caller's own memory, and nothing remains to be done: a repeated call needs no description.
        packed: They are those of packed copies of derived datatypes, and nothing else keeps it from being as given.
        before: What is launched on the caller's stream before anything else, for arrays in GPU memory.
        start: Called with the engine that is about to run the call, or None.
        exported: For arrays in GPU memory, whether peers may map INPUT and OUTPUT; None for arrays in host memory.
        gpus: For those, number of each rank's GPU where all ranks map each other's GPU memory, else empty.
        one_fold: Contributions must be combined in one reduction, because their type is a half type.
        element: Element type as the caller gave it, for the check, the log and the ledger; the empty string in a barrier.
        mirrored: Arrays in GPU memory are served by way of host memory.
        purpose: A `hpcoll.comm.plans.signature.Purpose`.
        report: Tells a status what came, where that is a message; None: there is nothing to tell.
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
    packed: bool = False
    before: tuple[Callable[[int], None], ...] = ()
    start: Callable[[Any], None] | None = None
    exported: tuple[bool, bool] | None = None
    gpus: Nodes = ()
    one_fold: bool = False
    report: Callable[[MPI.Status], None] | None = None
    element: Element = ""
    mirrored: bool = False
    purpose: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the vector, or of one block."""
        return self.count * self.dtype.itemsize

    @property
    def counts(self) -> tuple[int, ...]:
        """All numbers on which a program of its kind depends: the count, or displacements and sizes of varying blocks."""
        if self.blocks is None:
            return (self.count,)
        inputs, outputs, sizes = self.blocks
        return (*chain.from_iterable(inputs), *chain.from_iterable(outputs), *sizes)

    @property
    def kind(self) -> tuple[object, ...]:
        """What plans are kept by: all that decides how the call runs, wherever its data lies and how many elements it has."""
        op = self.op and (self.op.name, self.op.function, self.op.commutative)
        blocks = None if self.blocks is None else tuple(map(len, self.blocks))
        exact = None if self.exported is None else (self.exported, self.counts)  # programs for GPU memory are for one size
        kind = self.collective, self.element, self.mirrored, self.dtype, op, self.root, self.in_place, blocks
        return (*kind, self.native, self.strict, bool(self.copied), exact, self.one_fold)


class Reduction(NamedTuple):
    """The checked arguments of a call that combines contributions, of which `call` makes a `Call`.

    Attributes:
        collective, op, root: As in `Call`.
        count: Elements of the vector, or of one block; the sum over blocks when they vary.
        send, recv: Buffers, ``recv`` None where this rank receives nothing.
        in_place: The two are one memory.
        nranks: Of the communicator.
        blocks: As in `Call`.
        one_fold: As in `hpcoll.comm.arguments.methods.Caller`.
    """

    collective: str
    op: ReduceOp
    root: int
    count: int  # type: ignore[assignment]
    send: Resolved
    recv: Resolved | None
    in_place: bool
    nranks: int
    blocks: Blocks | None = None
    one_fold: bool = False

    @property
    def dtype(self) -> np.dtype:
        """Element type of the caller's arrays."""
        return self.send.dtype

    @property
    def own_count(self) -> int:
        """Elements of the result on this rank."""
        return self.blocks[1][0][1] if self.blocks else self.count

    @property
    def divisor(self) -> int:
        """By what the sum is divided."""
        return self.nranks if self.op.average else 1

    def call(self, send: int, recv: int, *, in_place: bool, dtype: np.dtype | None = None, **more: Any) -> Call:
        """The call, with results at an address that the caller knows.

        Args:
            send, recv: Addresses of INPUT and OUTPUT.
            in_place: Whether they alias.
            dtype: In which the engine works; None: that of the arrays, or float32 for half types.
            more: Other fields; ``keep`` is in addition to the owners of the buffers.
        """
        op, own, work = self.op, self.dtype, working_dtype(self.dtype)
        strict = work != own or (op in (MIN, MAX) and own.kind == "f")  # which let NaN through
        owners = (self.send.owner, self.recv.owner if self.recv else None)
        return Call(
            self.collective, send, recv, self.count, dtype or work, op, self.root, in_place, self.blocks, aliased=self.in_place,
            element=own, native=to_native(op) is not None and not is_bfloat16(own), strict=strict,
            **more | {"keep": (*owners, *more.get("keep", ()))},
        )  # fmt: skip


def check_root(root: Any, nranks: int, rank: int) -> int:
    """``root`` as an int.

    Raises:
        ArgumentError: not an integer in ``[0, nranks)``.
    """
    try:
        index = int(root.__index__())
    except AttributeError:
        raise ArgumentTypeError(f"rank {rank}: root must be an integer, got {root!r}") from None
    if not 0 <= index < nranks:
        raise ArgumentError(f"rank {rank}: root must be a rank below {nranks}, got {index}")
    return index


def factor_of(op: ReduceOp, dtype: np.dtype) -> Any:
    """The factor of a premultiplied sum, as a number of the type in which it is applied.

    Raises:
        ArgumentError: the type cannot hold it.
    """
    try:
        return dtype.type(op.premultiplier)
    except TypeError:
        raise ArgumentError(f"premul_sum needs a factor that {dtype} can hold, got {op.premultiplier!r}") from None


def is_in_place(spec: Any) -> bool:
    """Whether an argument is ``MPI.IN_PLACE``."""
    return spec is MPI.IN_PLACE or (type(spec) is type(MPI.IN_PLACE) and spec == MPI.IN_PLACE)


def view(one: Resolved) -> np.ndarray:
    """The plain elements of a resolved buffer, as a one-dimensional array over its memory."""
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
