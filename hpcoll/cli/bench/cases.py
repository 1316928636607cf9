"""A collective as a benchmark case: its buffers, their contents before and after, and its call.

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
from hpcoll.cli.bench.device import Images, first_elements, gpu_array
from hpcoll.cli.bench.messages import combined, contribution, count_wrong, repeat
from hpcoll.cli.bench.modes import BARE, BLOCKING, LIST, method_in
from hpcoll.comm.arguments.methods import BY_COLLECTIVE
from hpcoll.runtime.gpu.device import Gpu, pinned
from hpcoll.schedules.collectives import COLLECTIVES, Collective, nblocks
from hpcoll.schedules.collectives import meaning as meaning_of
from hpcoll.schedules.graph import ring

OUT_OF_PLACE, IN_PLACE = "out_of_place", "in_place"
_POISON = 0xA5  # every byte that a call must overwrite


@dataclass(frozen=True)
class Case:
    """A collective at one size, as one rank sees it."""

    collective: str
    count: int  # elements of the vector, or of one block; 0 for a barrier
    dtype: np.dtype
    op: ReduceOp | None  # None where nothing is combined
    root: int  # 0 where there is none
    rank: int
    nranks: int

    @property
    def meaning(self) -> Collective:
        """Pre- and postcondition; a neighbourhood collective is for a ring."""
        return meaning_of(
            self.collective, ring(self.nranks) if COLLECTIVES[self.collective].neighbours else None
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the message as nccl-tests counts them: of all ranks' blocks together."""
        return self.count * self.dtype.itemsize * nblocks(self.collective, self.nranks)

    @property
    def sides(self) -> tuple[str, ...]:
        """Forms of the call; a call with one buffer or none has a single form, shown as the first."""
        one = self.count == 0 or self.meaning.always_in_place or self.meaning.neighbours
        return (OUT_OF_PLACE,) if one else (OUT_OF_PLACE, IN_PLACE)


class Buffers(NamedTuple):
    """Memory of one form of a call."""

    source: np.ndarray  # the array that is read; in place the same as ``target``
    target: np.ndarray  # the array that is written
    inputs: tuple[int, ...]  # for each input chunk its place in ``source``, in chunks
    outputs: tuple[int, ...]  # for each output chunk its place in ``target``, in chunks
    in_place: bool  # this rank passes ``MPI.IN_PLACE``
    device: Images | None = (
        None  # arrays on a GPU that the call gets instead; source and target are their images in host memory
    )


def room(case: Case) -> int:
    """Return the number of elements of the largest buffer of any rank."""
    meaning = case.meaning
    wheres = [(rank, case.nranks, case.root, 1) for rank in range(case.nranks)]
    return case.count * max(max(meaning.ninputs(*where), meaning.noutputs(*where)) for where in wheres)


def make_buffers(case: Case, side: str, memory: Sequence[np.ndarray] = ()) -> Buffers:
    """Return memory for a call, not filled: laid into two arrays of at least `room` elements, where these are given."""
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
    """Yield up to ``n`` calls in the memory of one, each with an element less than the one before."""
    for count in range(case.count, max(0, case.count - n), -1):
        one = replace(case, count=count)
        yield (
            one,
            make_buffers(
                one, IN_PLACE if buffers.in_place else OUT_OF_PLACE, (buffers.source, buffers.target)
            ),
        )


def make_device_buffers(case: Case, side: str, gpu: Gpu, memory: Sequence[Any] = ()) -> Buffers:
    """Return memory for a call on GPU arrays, as `make_buffers`."""
    buffers = make_buffers(
        case, side, [pinned(gpu.driver, room(case) * case.dtype.itemsize).view(case.dtype) for _ in range(2)]
    )
    images = [buffers.source] if buffers.source is buffers.target else [buffers.source, buffers.target]
    arrays = (
        [gpu_array(gpu, image.size, case.dtype) for image in images]
        if not memory
        else list(map(first_elements, memory, images))
    )
    return buffers._replace(device=Images(gpu, arrays[0], arrays[-1], buffers.source, buffers.target))


def fill(case: Case, buffers: Buffers) -> None:
    """Write this rank's input, and poison what the call must overwrite."""
    buffers.target.view(np.uint8)[:] = _POISON
    for index, chunk in enumerate(_chunks(case, buffers.source, buffers.inputs)):
        repeat(_input(case, index), chunk)
    if buffers.device:
        buffers.device.upload()


def calm(buffers: Buffers) -> None:
    """Make repeated in-place calls harmless: zeros stay zeros under every operator, so nothing overflows while timing."""
    if buffers.source is buffers.target:
        buffers.target[:] = 0
        if buffers.device:
            buffers.device.upload()


def wrong_elements(case: Case, buffers: Buffers) -> int:
    """Count the elements on this rank that are not as the collective promises, and those of an input that was written to."""
    meaning, wrong = case.meaning, 0
    if buffers.device:
        buffers.device.download()
    for index, chunk in enumerate(_chunks(case, buffers.target, buffers.outputs)):
        mask = meaning.wanted(case.rank, index, case.nranks, case.root)
        ranks = [rank for rank in range(case.nranks) if mask >> rank & 1]
        if ranks:
            code = _code(meaning.output_item(case.rank, index), case.nranks)
            wrong += count_wrong(chunk, combined(code, ranks, case.nranks, case.op, case.dtype))
    if buffers.source is not buffers.target:
        wrong += sum(
            count_wrong(chunk, _input(case, i))
            for i, chunk in enumerate(_chunks(case, buffers.source, buffers.inputs))
        )
    return wrong


def bind(
    case: Case,
    buffers: Buffers,
    comm: MPI.Intracomm,
    op: Any,
    mode: str = BLOCKING,
    spec: str = BARE,
    **extras: Any,
) -> Callable[[], Any]:
    """Return the call on a communicator, ready to be made again and again; its result depends on the mode.

    ``op`` is an operator as ``comm`` takes it; ``extras`` are keywords for an `hpcoll.Communicator`, of which None is not passed.
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
        given |= {
            name: [given[name], MPI.Datatype.fromcode(case.dtype.char)]
            for name in given
            if isinstance(given[name], np.ndarray)
        }
    if buffers.in_place and not meaning.always_in_place:
        given[row.arguments[row.in_place_at]] = MPI.IN_PLACE
    return partial(method, *(given[name] for name in row.arguments), **extras)


def _array(case: Case, nchunks: int, memory: Sequence[np.ndarray]) -> np.ndarray:
    return memory[0][: nchunks * case.count] if memory else np.empty(nchunks * case.count, case.dtype)


def _chunks(case: Case, array: np.ndarray, places: Sequence[int]) -> Iterator[np.ndarray]:
    return (array[place * case.count : (place + 1) * case.count] for place in places)


def _input(case: Case, index: int) -> np.ndarray:
    """Return one period of an input chunk of this rank."""
    code = _code(case.meaning.input_item(case.rank, index), case.nranks)
    return contribution(code, case.rank, case.op, case.dtype).astype(case.dtype)


def _code(item: Hashable, nranks: int) -> int:
    """Return the number of an item: the index of a block, or of a (sender, receiver) pair."""
    return item[0] * nranks + item[1] if isinstance(item, tuple) else int(item)  # type: ignore[call-overload]
