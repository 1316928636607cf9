"""The meaning of MSCCL XML: each thread block of a file as a channel of a schedule.

A step of a file becomes one or two steps here. Where it waits for other thread blocks, AFTER steps come before it. A thread block says
that it has done a step only where that step has ``hasdep="1"``, and a later one says it too. A ``nop`` has dependencies alone; they belong
to the next step. Messages of two gpus in one channel of the file are received in the order in which they are sent.
"""

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.formats.conditions import NO_CONDITIONS, Conditions, standard
from hpcoll.formats.msccl_xml import BUFFERS, XmlBlock, XmlFile, XmlGpu, XmlStep, read_xml
from hpcoll.formats.private_input import Places, with_private_input
from hpcoll.formats.program import FilePlace, FileProgram
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step

_SENDS, _RECEIVES = {"s", "rcs", "rrs", "rrcs"}, {"r", "rcs", "rrc", "rrs", "rrcs"}
_READS, _WRITES = {"s", "rrc", "rrs", "rrcs", "re", "cpy"}, {"r", "rcs", "rrc", "rrcs", "re", "cpy"}


class _WrittenBlock(NamedTuple):
    """A thread block's steps, in which AFTER names thread blocks and steps of the file; ``signals``: steps that it says it has done."""

    block: XmlBlock
    steps: list[Step]
    places: list[FilePlace]
    signals: list[tuple[int, int]]  # (step of the file, steps here after it), ascending


def read_msccl_xml(path: Path, conditions: Conditions = NO_CONDITIONS) -> FileProgram:
    """Return the program of an MSCCL XML file.

    Args:
        path: The file.
        conditions: What the file does not say, or says otherwise.

    Raises:
        ArgumentError: The file cannot be read, or is not understood.
        ScheduleError: It is understood, and wrong: an offset is outside its buffer, or a wait never ends.
    """
    file = read_xml(path)
    in_place = conditions.in_place if conditions.in_place is not None else file.inplace
    if in_place is None:
        raise ArgumentError(f"{file.path}: expected the attribute inplace of algo, got none")
    out_of_place = (
        not in_place if conditions.in_place is not None or file.outofplace is None else file.outofplace
    )
    if not in_place and not out_of_place:
        raise ArgumentError(
            f"{file.path}: expected a program for calls in place, out of place or both, got one for none"
        )
    named = standard(file.path, conditions, file.coll, file.nranks, file.nchunks, file.root)
    shifts: list[int] | list[None] = [None] * file.nranks if out_of_place else named.shifts
    written = [
        _GpuWriter(file, gpu, shift, n).write() for gpu, shift, (_, n) in zip(file.gpus, shifts, named.sizes)
    ]
    schedules, places = [], []
    for gpu, (channels, cells) in zip(file.gpus, written):
        who = (gpu.id, file.nranks, named.root, file.nchunks)
        schedule = Schedule(
            named.collective,
            file.name,
            file.nranks,
            gpu.id,
            named.root,
            file.nchunks,
            tuple(tuple(c.steps) for c in channels),
            (0,) * cells,
            links=tuple(c.block.chan for c in channels),
        )
        its: Places = tuple(tuple(c.places) for c in channels)
        if not out_of_place and named.meaning.aliases:
            schedule, its = with_private_input(
                schedule, its, named.sizes[gpu.id][0], named.meaning.aliases(*who)
            )
        schedules.append(schedule)
        places.append(its)
    return FileProgram(
        file.path,
        file.name,
        named.collective,
        named.meaning,
        file.nranks,
        named.root,
        tuple(schedules),
        tuple(places),
        in_place,
        out_of_place,
        min_bytes=file.min_bytes,
        max_bytes=file.max_bytes,
    )


class _GpuWriter:
    """The translation of one gpu."""

    def __init__(self, file: XmlFile, gpu: XmlGpu, shift: int | None, noutputs: int) -> None:
        self.file, self.gpu, self.shift, self.noutputs = file, gpu, shift, noutputs
        self.cells = gpu.sizes[Buffer.SCRATCH]  # of scratch, so far

    def write(self) -> tuple[list[_WrittenBlock], int]:
        """Return the channels and the number of scratch cells."""
        channels = [_WrittenBlock(block, [], [], []) for _, block in sorted(self.gpu.blocks.items())]
        self._check_connections()
        for channel in channels:
            self._write_block(channel)
        numbers = {channel.block.id: number for number, channel in enumerate(channels)}
        for channel in channels:
            for i, step in enumerate(channel.steps):
                if step.op is Op.AFTER:
                    channel.steps[i] = step._replace(
                        after=self._awaited(channels, numbers, step.after, channel.places[i])
                    )
        _drop_idle(channels)
        return channels or [_WrittenBlock(XmlBlock(-1, -1, -1, 0), [], [], [])], self.cells

    def _check_connections(self) -> None:
        """Refuse thread blocks that share a connection: nothing says whose message is whose."""
        owners: dict[tuple[str, int, int], int] = {}
        for block in self.gpu.blocks.values():
            for verb, peer in (("sends to", block.send), ("receives from", block.recv)):
                owner = owners.setdefault((verb, peer, block.chan), block.id)
                if owner != block.id and peer >= 0:
                    place = FilePlace(block.line, self.gpu.id, block.id)
                    raise self._refused(
                        place, f"{verb} gpu {peer} in channel {block.chan}, as thread block {owner} does"
                    )

    def _write_block(self, channel: _WrittenBlock) -> None:
        block, steps = channel.block, channel.steps
        waits: list[tuple[Step, FilePlace]] = []
        last: XmlStep | None = None  # the reduction that the next one may join
        for s, step in enumerate(block.steps):
            place = FilePlace(step.line, self.gpu.id, block.id, s)
            if step.needs[0] == block.id:
                self._check_own_wait(step, channel, place)
            elif step.needs[0] >= 0:
                waits.append((Step(Op.AFTER, -1, None, (), after=step.needs), place))
            if step.type == "nop":
                last = None if waits else last
                continue
            self._check(step, block, place)
            if last and not waits and step.type == "re" and step.dst == last.dst and not self._meet(step):
                steps[-1] = steps[-1]._replace(srcs=(*steps[-1].srcs, self._chunk(step.src)))
            else:
                placed = waits + [(operation, place) for operation in self._translated(step, block)]
                steps.extend(operation for operation, _ in placed)
                channel.places.extend(its for _, its in placed)
            waits = []
            last = step if step.type == "re" and not step.hasdep and not self._meet(step) else None
            if step.hasdep:
                channel.signals.append((s, len(steps)))

    def _meet(self, step: XmlStep) -> bool:
        """Say whether a reduction's source and destination are one memory in part; such ones are not fused."""
        src, dst = self._chunk(step.src), self._chunk(step.dst)
        return src.buffer == dst.buffer and src.index < dst.index + dst.n and dst.index < src.index + src.n

    def _translated(self, step: XmlStep, block: XmlBlock) -> list[Step]:
        """Return the steps for one of the file; none for a copy onto itself."""
        kind = step.type
        src = self._chunk(step.src) if kind in _READS else None
        dst = self._chunk(step.dst) if kind in _WRITES else None
        if kind == "rrs":
            dst = self._fresh(step.src.n)
        steps = []
        if kind in ("r", "rcs"):
            steps.append(Step(Op.RECV, block.recv, dst, ()))
        elif kind in _RECEIVES and src:
            steps.append(Step(Op.RECV_REDUCE, block.recv, dst, (src,)))
        elif kind == "re" and src and dst:
            steps.append(Step(Op.REDUCE, -1, dst, (dst, src)))
        elif kind == "cpy" and src and src != dst:
            steps.append(Step(Op.COPY, -1, dst, (src,)))
        if kind in _SENDS and (sent := src if kind == "s" else dst):
            steps.append(Step(Op.SEND, block.send, None, (sent,)))
        return steps

    def _check(self, step: XmlStep, block: XmlBlock, place: FilePlace) -> None:
        """Refuse a step that names chunks which are not there, or that has no peer."""
        for uses, (buffer, first, n) in ((_READS, step.src), (_WRITES, step.dst)):
            size = self.gpu.sizes[buffer]
            if step.type in uses and (first < 0 or first + n > size):
                run = f"{BUFFERS[buffer]}[{first}..{first + n - 1}]"
                raise self._refused(place, f"{run} is outside its buffer of {size} chunks")
        if step.dst.n < 1:
            raise self._refused(place, f"a step {step.type} moves {step.dst.n} chunks, not at least 1")
        if (step.type in _SENDS and block.send < 0) or (step.type in _RECEIVES and block.recv < 0):
            raise self._refused(
                place, f"a step {step.type} in a thread block with send={block.send} and recv={block.recv}"
            )

    def _awaited(
        self, channels: list[_WrittenBlock], numbers: dict[int, int], wait: tuple[int, int], place: FilePlace
    ) -> tuple[int, int]:
        """Return a wait for ``(thread block, step)`` of the file as one for ``(channel, steps)``."""
        block, step = wait
        if block not in numbers:
            raise self._refused(
                place, f"it waits for thread block {block}, which gpu {self.gpu.id} does not have"
            )
        signals = channels[numbers[block]].signals
        first = bisect_left(signals, (step, 0))
        if first == len(signals):
            raise self._refused(
                place,
                f"it waits for step {step} of thread block {block}, which never says that it is done (hasdep)",
            )
        return numbers[block], signals[first][1]

    def _check_own_wait(self, step: XmlStep, channel: _WrittenBlock, place: FilePlace) -> None:
        """Refuse a wait for the same thread block, unless for what it has done."""
        if not channel.signals or channel.signals[-1][0] < step.needs[1]:
            raise self._refused(
                place, f"it waits for step {step.needs[1]} of its own thread block, which is not done by then"
            )

    def _chunk(self, run: Chunk) -> Chunk:
        """Return chunks of the file as chunks of the schedule: those of INPUT that are of OUTPUT in place as these."""
        if run.buffer is Buffer.INPUT and self.shift is not None:
            first = run.index + self.shift
            if first >= 0 and first + run.n <= self.noutputs:
                return Chunk(Buffer.OUTPUT, first, run.n)
        return run

    def _fresh(self, n: int) -> Chunk:
        self.cells += n
        return Chunk(Buffer.SCRATCH, self.cells - n, n)

    def _refused(self, place: FilePlace, cause: str) -> ScheduleError:
        return ScheduleError(f"{self.file.path}, {place}: {cause}")


def _drop_idle(channels: list[_WrittenBlock]) -> None:
    """Drop the steps that wait for nothing, because what they wait for is a copy onto itself; count those that others wait for anew."""
    idle = _idle_at_start(channels)
    keeps = [
        [step.op is not Op.AFTER or step.after[1] > idle[step.after[0]] for step in channel.steps]
        for channel in channels
    ]
    kept = [[0, *accumulate(mine)] for mine in keeps]
    for channel, mine in zip(channels, keeps):
        places = [place for place, keep in zip(channel.places, mine) if keep]
        steps = [step for step, keep in zip(channel.steps, mine) if keep]
        channel.places[:] = places
        channel.steps[:] = [
            s._replace(after=(s.after[0], kept[s.after[0]][s.after[1]])) if s.op is Op.AFTER else s
            for s in steps
        ]


def _idle_at_start(channels: list[_WrittenBlock]) -> list[int]:
    """Return how many steps at the start of each channel wait for nothing, or for such steps only."""
    positions, left = [0] * len(channels), list(range(len(channels)))
    waiting: dict[int, list[int]] = defaultdict(list)  # channel -> those whose next step waits for it
    while left:
        index = left.pop()
        steps, before = channels[index].steps, positions[index]
        while positions[index] < len(steps) and (step := steps[positions[index]]).op is Op.AFTER:
            if step.after[1] > positions[step.after[0]]:
                waiting[step.after[0]].append(index)
                break
            positions[index] += 1
        if positions[index] > before:
            left += waiting.pop(index, [])
    return positions
