"""A collective as a benchmark case: its buffers, what they hold before and after, and how to call it.

Nothing here repeats what a collective means: inputs and answers are read from its pre- and postcondition
(`hpcoll.schedules.collectives`), with one chunk per vector or one per block.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.ops import ReduceOp
from hpcoll.cli.bench.device import Images, first_elements, gpu_array, pinned
from hpcoll.cli.bench.messages import combined, contribution, count_wrong, repeat
from hpcoll.cli.bench.modes import BARE, BLOCKING, LIST, method_in
from hpcoll.comm.arguments.methods import BY_COLLECTIVE
from hpcoll.runtime.gpu.device import Gpu
from hpcoll.schedules.collectives import COLLECTIVES, Collective

OUT_OF_PLACE, IN_PLACE = "out_of_place", "in_place"
_POISON = 0xA5  # every byte that a call must overwrite


@dataclass(frozen=True)
class Case:
    """One collective at one size, as one rank sees it.

    Attributes:
        collective: Name.
        count: Elements of the vector, or of one block; 0 for a barrier.
        dtype: Element type.
        op: Operator, or None where nothing is combined.
        root: Root, 0 where there is none.
        rank, nranks: This rank, and how many there are.
    """

    collective: str
    count: int
    dtype: np.dtype
    op: ReduceOp | None
    root: int
    rank: int
    nranks: int

    @property
    def meaning(self) -> Collective:
        """Pre- and postcondition."""
        return COLLECTIVES[self.collective]

    @property
    def nbytes(self) -> int:
        """Bytes of the message as nccl-tests counts them: of all ranks' blocks together."""
        return self.count * self.dtype.itemsize * (self.nranks if self.meaning.blocks else 1)

    @property
    def sides(self) -> tuple[str, ...]:
        """Forms of the call; a call with one buffer or none has a single form, shown as the first."""
        return (OUT_OF_PLACE,) if self.count == 0 or self.meaning.always_in_place else (OUT_OF_PLACE, IN_PLACE)


class Buffers(NamedTuple):
    """Memory of one form of a call.

    Attributes:
        source, target: What is read and written; the same array in place.
        inputs, outputs: Where in them each chunk of INPUT and OUTPUT lies, in chunks.
        in_place: Whether this rank passes ``MPI.IN_PLACE``.
        device: Arrays on a GPU that the call gets instead; source and target are their images in host memory.
    """

    source: np.ndarray
    target: np.ndarray
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    in_place: bool
    device: Images | None = None


def room(case: Case) -> int:
    """Elements of the largest buffer of any rank."""
    meaning = case.meaning
    wheres = [(rank, case.nranks, case.root, 1) for rank in range(case.nranks)]
    return case.count * max(max(meaning.ninputs(*where), meaning.noutputs(*where)) for where in wheres)


def make_buffers(case: Case, side: str, memory: Sequence[np.ndarray] = ()) -> Buffers:
    """Memory for a call, not filled.

    Args:
        case, side: Which call.
        memory: Two arrays of at least `room` elements to lay the buffers into; none: ordinary memory.
    """
    meaning, where = case.meaning, (case.rank, case.nranks, case.root, 1)
    ninputs, noutputs = meaning.ninputs(*where), meaning.noutputs(*where)
    inputs, outputs = list(range(ninputs)), list(range(noutputs))
    wants_one = side == IN_PLACE or meaning.always_in_place
    pairs = meaning.aliases(*where) if meaning.aliases else [(i, i) for i in range(min(ninputs, noutputs))]
    if not wants_one or not (pairs or meaning.always_in_place):
        source, target = (_array(case, n, memory[i : i + 1]) for i, n in enumerate((ninputs, noutputs)))
        return Buffers(source, target, tuple(inputs), tuple(outputs), False)
    for i, o in pairs:  # the side with fewer chunks lies inside the other
        if ninputs < noutputs:
            inputs[i] = o
        else:
            outputs[o] = i
    both = _array(case, max(ninputs, noutputs), memory[:1])
    return Buffers(both, both, tuple(inputs), tuple(outputs), True)


def smaller(case: Case, buffers: Buffers, n: int) -> Iterator[tuple[Case, Buffers]]:
    """Up to ``n`` calls in the memory of one, each with an element less than the one before."""
    for count in range(case.count, max(0, case.count - n), -1):
        one = replace(case, count=count)
        yield one, make_buffers(one, IN_PLACE if buffers.in_place else OUT_OF_PLACE, (buffers.source, buffers.target))


def make_device_buffers(case: Case, side: str, gpu: Gpu, memory: Sequence[Any] = ()) -> Buffers:
    """Memory for a call on GPU arrays, not filled.

    Args:
        case, side: Which call.
        gpu: Where.
        memory: Two GPU arrays of at least `room` elements to lay the buffers into; none: arrays of their own.
    """
    buffers = make_buffers(case, side, [pinned(gpu, room(case), case.dtype) for _ in range(2)])
    together = buffers.source is buffers.target
    arrays = []
    for index, image in enumerate((buffers.source,) if together else (buffers.source, buffers.target)):
        arrays.append(first_elements(memory[index], image.size) if memory else gpu_array(gpu, image.size, case.dtype))
    return buffers._replace(device=Images(gpu, arrays[0], arrays[-1], buffers.source, buffers.target))


def fill(case: Case, buffers: Buffers) -> None:
    """Write this rank's input, and poison what the call must overwrite."""
    buffers.target.view(np.uint8)[:] = _POISON
    for index, place in enumerate(buffers.inputs):
        code = _code(case.meaning.input_item(case.rank, index), case.nranks)
        repeat(contribution(code, case.rank, case.op, case.dtype).astype(case.dtype), _chunk(case, buffers.source, place))
    if buffers.device:
        buffers.device.upload()


def calm(buffers: Buffers) -> None:
    """Make repeated in-place calls harmless: zeros stay zeros under every operator, so nothing overflows while timing."""
    if buffers.source is buffers.target:
        buffers.target[:] = 0
        if buffers.device:
            buffers.device.upload()


def wrong_elements(case: Case, buffers: Buffers) -> int:
    """Elements on this rank that are not what the collective promises; an input that was written to counts too."""
    meaning, wrong = case.meaning, 0
    if buffers.device:
        buffers.device.download()
    for index, place in enumerate(buffers.outputs):
        mask = meaning.wanted(case.rank, index, case.nranks, case.root)
        ranks = [rank for rank in range(case.nranks) if mask >> rank & 1]
        if ranks:
            code = _code(meaning.output_item(case.rank, index), case.nranks)
            answer = combined(code, ranks, case.nranks, case.op, case.dtype)
            wrong += count_wrong(_chunk(case, buffers.target, place), answer)
    if buffers.source is not buffers.target:
        for index, place in enumerate(buffers.inputs):
            code = _code(meaning.input_item(case.rank, index), case.nranks)
            sent = contribution(code, case.rank, case.op, case.dtype).astype(case.dtype)
            wrong += count_wrong(_chunk(case, buffers.source, place), sent)
    return wrong


def bind(
    case: Case, buffers: Buffers, comm: MPI.Intracomm, op: Any, mode: str = BLOCKING, spec: str = BARE, **extras: Any
) -> Callable[[], Any]:  # fmt: skip
    """The call, ready to be made again and again; what it returns depends on the mode.

    Args:
        comm: An `hpcoll.Communicator`, or any other communicator for the MPI library's own collective.
        op: Operator as ``comm`` takes it; ignored where nothing is combined.
        mode: Which of the collective's methods.
        spec: How buffers are given: `hpcoll.cli.bench.modes.LIST` as ``[array, datatype]``.
        extras: Keywords for an `hpcoll.Communicator`; those that are None are not passed.
    """
    row = BY_COLLECTIVE[case.collective]
    method = getattr(comm, method_in(row.name, mode))
    extras = {name: value for name, value in extras.items() if value is not None}
    if case.count == 0:
        return partial(method, **extras)
    meaning, arrays = case.meaning, buffers.device or buffers
    send, recv = (arrays.source if buffers.inputs else None, arrays.target if buffers.outputs else None)
    given = {"buf": arrays.target, "sendbuf": send, "recvbuf": recv, "op": op, "root": case.root}
    if spec == LIST:
        given |= {name: [given[name], MPI.Datatype.fromcode(case.dtype.char)] for name in given if isinstance(given[name], np.ndarray)}
    if buffers.in_place and not meaning.always_in_place:
        given[row.arguments[row.in_place_at]] = MPI.IN_PLACE
    return partial(method, *(given[name] for name in row.arguments), **extras)


def _array(case: Case, nchunks: int, memory: Sequence[np.ndarray]) -> np.ndarray:
    count = nchunks * case.count
    return memory[0][:count] if memory else np.empty(count, case.dtype)


def _chunk(case: Case, array: np.ndarray, place: int) -> np.ndarray:
    return array[place * case.count : (place + 1) * case.count]


def _code(item: Hashable, nranks: int) -> int:
    """Number of an item: the index of a block, or of a (sender, receiver) pair."""
    return item[0] * nranks + item[1] if isinstance(item, tuple) else int(item)  # type: ignore[call-overload]
