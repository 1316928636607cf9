"""Schedules as MSCCL XML: thread blocks of each gpu with steps, and the dependencies between them.

A thread block sends to at most one peer and receives from at most one, on one channel. So a channel of a schedule becomes several. Its
order is kept within each of them. Between two of them it is kept where both touch a chunk and one writes it, and where nothing else
implies it. A local step stands where the last step stands that it needs. Chunks that are one memory in calls in place count as one.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple
from xml.sax.saxutils import escape

from hpcoll.base.errors import ArgumentError
from hpcoll.formats.conditions import MSCCL
from hpcoll.formats.msccl_xml import BUFFERS, XmlBlock, XmlStep
from hpcoll.formats.program import FileProgram
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step, cells_of

# of a gpu; of a thread block; of a step: what RCCL's reader takes
MAX_BLOCKS, MAX_STEPS, MAX_COUNT = (
    64,
    64,
    71,
)

_At = tuple[int, int]  # thread block and step
_NOWHERE = Chunk(Buffer.INPUT, -1, 0)
_WITH_SEND = {"r": "rcs", "rrc": "rrcs"}  # types of receives that send on what they wrote


class Written(NamedTuple):
    """The text of a file, and what its user should know of it."""

    text: str
    note: str = ""


def msccl_text(program: FileProgram) -> Written:
    """Return the XML text of a program; the note says where it is more than RCCL's reader takes.

    Raises:
        ArgumentError: MSCCL has no such collective, or no such step.
    """
    if program.collective not in MSCCL:
        raise ArgumentError(f"MSCCL XML has {', '.join(sorted(MSCCL))}, got {program.collective}")
    gpus = [_Gpu(s, program) for s in program.schedules]
    for gpu in gpus:
        _fuse(gpu.blocks)
    nchannels = max((block.chan + 1 for gpu in gpus for block in gpu.blocks), default=1)
    root = f' root="{program.root}"' if program.meaning.rooted else ""
    lines = [
        f'<algo name="{escape(program.name, {chr(34): "&quot;"})}" proto="Simple" nchannels="{nchannels}" '
        f'nchunksperloop="{program.schedules[0].nchunks}" ngpus="{program.nranks}" coll="{MSCCL[program.collective]}" '
        f'inplace="{int(program.in_place)}" outofplace="{int(program.out_of_place)}" '
        f'minBytes="{program.min_bytes}" maxBytes="{program.max_bytes}"{root}>'
    ]
    for gpu in gpus:
        lines += gpu.lines()
    return Written("\n".join([*lines, "</algo>"]) + "\n", _note([gpu.blocks for gpu in gpus]))


def _line(number: int, step: XmlStep) -> str:
    (src, srcoff, _), (dst, dstoff, n) = step.src, step.dst
    return (
        f'      <step s="{number}" type="{step.type}" srcbuf="{BUFFERS[src]}" srcoff="{srcoff}" dstbuf="{BUFFERS[dst]}" '
        f'dstoff="{dstoff}" cnt="{n}" depid="{step.needs[0]}" deps="{step.needs[1]}" hasdep="{int(step.hasdep)}"/>'
    )


def _fuse(blocks: Sequence[XmlBlock]) -> None:
    """Join each receive with the send behind it of what it wrote, unless another thread block waits for the receive alone."""
    places: list[list[int]] = []
    for block in blocks:
        before, block.steps = block.steps, []
        places.append([])
        for step in before:
            last = block.steps[-1] if block.steps else step
            if (
                step.type == "s"
                and step.needs[0] < 0
                and last.type in _WITH_SEND
                and last.dst == step.src
                and not last.hasdep
            ):
                last.type, last.hasdep = _WITH_SEND[last.type], step.hasdep
            else:
                block.steps.append(step)
            places[-1].append(len(block.steps) - 1)
    for step in (step for block in blocks for step in block.steps if step.needs[0] >= 0):
        step.needs = step.needs[0], places[step.needs[0]][step.needs[1]]


def _note(gpus: Sequence[Sequence[XmlBlock]]) -> str:
    blocks = [block for gpu in gpus for block in gpu]
    counts = [step.dst.n for block in blocks for step in block.steps]
    sizes = (
        max(map(len, gpus)),
        max((len(block.steps) for block in blocks), default=0),
        max(counts, default=0),
    )
    names = "thread blocks of a gpu", "steps of a thread block", "chunks of a step"
    beyond = [
        f"{size} {name}, of at most {most}"
        for size, name, most in zip(sizes, names, (MAX_BLOCKS, MAX_STEPS, MAX_COUNT))
        if size > most
    ]
    return f"RCCL's reader refuses it: {'; '.join(beyond)}" if beyond else ""


def _latest(places: Iterable[_At]) -> dict[int, int]:
    """Return the last step of each thread block."""
    latest: dict[int, int] = {}
    for block, at in places:
        latest[block] = max(at, latest.get(block, -1))
    return latest


class _Gpu:
    """The thread blocks of a rank."""

    def __init__(self, schedule: Schedule, program: FileProgram) -> None:
        s, meaning = schedule, program.meaning
        who = (s.rank, s.nranks, s.root, s.nchunks)
        self.schedule = s
        self.counts = meaning.ninputs(*who), meaning.noutputs(*who), len(s.scratch)
        self.alias = dict(meaning.aliases(*who)) if program.in_place and meaning.aliases else {}
        self.blocks: list[XmlBlock] = []
        # for each step of a thread block the last step of each other block that has run before
        self.known: dict[int, list[dict[int, int]]] = defaultdict(list)
        self.turn = 0
        self.by_peer: list[
            tuple[dict[int, int], dict[int, int]]
        ] = []  # per channel: the blocks that send to, and receive from each peer
        for channel, steps in enumerate(s.channels):
            self.by_peer.append(self._open(steps, s.links[channel] if s.links else channel))
        # Per channel and chunk: the last step that wrote it, and those that have read it since, by thread block.
        self.writers: list[dict[_At, _At]] = [{} for _ in s.channels]
        self.readers: list[dict[_At, dict[int, int]]] = [defaultdict(dict) for _ in s.channels]
        # for each block of a channel, what AFTER steps want of it
        self.waits: list[dict[int, dict[int, int]]] = [{} for _ in s.channels]
        # thread block and step of each step; of AFTER what it wants
        self.places: list[list[dict[int, int]]] = [[] for _ in s.channels]
        self._run()

    def _open(self, steps: Sequence[Step], chan: int) -> tuple[dict[int, int], dict[int, int]]:
        """Open the thread blocks of a channel: one for both ways of a peer, and of the other peers one for two."""
        sends = dict.fromkeys(step.peer for step in steps if step.op is Op.SEND)
        recvs = dict.fromkeys(step.peer for step in steps if step.op in (Op.RECV, Op.RECV_REDUCE))
        both = [(peer, peer) for peer in sends if peer in recvs]
        others = zip_longest(
            [p for p in sends if p not in recvs], [p for p in recvs if p not in sends], fillvalue=-1
        )
        pairs = [*both, *others] or [(-1, -1)] * bool(steps)
        first = len(self.blocks)
        self.blocks += [XmlBlock(first + i, send, recv, chan) for i, (send, recv) in enumerate(pairs)]
        return {send: first + i for i, (send, _) in enumerate(pairs)}, {
            recv: first + i for i, (_, recv) in enumerate(pairs)
        }

    def _run(self) -> None:
        """Write the steps of all channels, each AFTER behind what it waits for."""
        channels = self.schedule.channels
        done, moved = [0] * len(channels), True
        while moved:
            moved = False
            for channel, steps in enumerate(channels):
                while done[channel] < len(steps):
                    step = steps[done[channel]]
                    if step.op is Op.AFTER and done[step.after[0]] < step.after[1]:
                        break
                    self._write(channel, done[channel])
                    done[channel], moved = done[channel] + 1, True
        if done != list(map(len, channels)):
            raise ArgumentError(f"rank {self.schedule.rank}: channels wait for each other")

    def _write(self, channel: int, number: int) -> None:
        step = self.schedule.channels[channel][number]
        if step.op is Op.AFTER:
            wanted = _latest(
                at for place in self.places[step.after[0]][: step.after[1]] for at in place.items()
            )
            for block in {*self.by_peer[channel][0].values(), *self.by_peer[channel][1].values()}:
                self.waits[channel][block] = _latest(
                    [*self.waits[channel].get(block, {}).items(), *wanted.items()]
                )
            self.places[channel].append(wanted)
            return
        reads, writes = [cell for src in step.srcs for cell in self._cells(src)], self._cells(step.dst)
        needs = self._needs(channel, reads, writes)
        block = self._block(channel, number, needs, {*reads, *writes})
        needs = _latest([*needs.items(), *self.waits[channel].pop(block, {}).items()])
        for type_, src, dst in self._parts(step):
            self._add(block, type_, src, dst, needs)
            needs = {}
        at = len(self.blocks[block].steps) - 1
        self.places[channel].append({block: at})
        for cell in reads:
            self.readers[channel][cell][block] = at
        for cell in writes:
            self.writers[channel][cell] = (block, at)
            self.readers[channel].pop(cell, None)

    def _cells(self, run: Chunk | None) -> list[_At]:
        if run is None:
            return []
        if run.n < 1:
            raise ArgumentError(f"rank {self.schedule.rank}: MSCCL XML has no message without data")
        cells = cells_of(run)
        return [
            (Buffer.OUTPUT, self.alias[i]) if buffer is Buffer.INPUT and i in self.alias else (buffer, i)
            for buffer, i in cells
        ]

    def _needs(self, channel: int, reads: Iterable[_At], writes: Iterable[_At]) -> dict[int, int]:
        """Return the last step of each thread block that must have run before one that reads and writes these chunks."""
        writers, readers = self.writers[channel], self.readers[channel]
        befores = [writers[cell] for cell in (*reads, *writes) if cell in writers]
        return _latest(befores + [at for cell in writes if cell in readers for at in readers[cell].items()])

    def _block(self, channel: int, number: int, needs: dict[int, int], cells: set[_At]) -> int:
        """Return the thread block of a step: a local one's is where the last step is that it needs, else where its chunks go next."""
        steps, (sends, recvs) = self.schedule.channels[channel], self.by_peer[channel]
        step = steps[number]
        if step.peer >= 0:
            return (sends if step.op is Op.SEND else recvs)[step.peer]
        if needs:
            return max(needs.items(), key=lambda at: self.blocks[at[0]].steps[at[1]].line)[0]
        for later in steps[number + 1 :]:
            touched = {cell for run in later.runs for cell in self._cells(run)}
            if later.peer >= 0 and touched & cells:
                return (sends if later.op is Op.SEND else recvs)[later.peer]
        return next(iter((*sends.values(), *recvs.values())))

    def _parts(self, step: Step) -> Iterator[tuple[str, Chunk | None, Chunk | None]]:
        """Return type, source and target of the XML steps of a step; a fold begins with what its target is already."""
        op, dst, srcs = step.op, step.dst, step.srcs
        if op is Op.REDUCE:
            first, *others = sorted(srcs, key=lambda src: (src != dst, self._cells(src) != self._cells(dst)))
            if first != dst:
                yield "cpy", first, dst
            yield from (("re", src, dst) for src in others)
        else:
            yield (
                {Op.SEND: "s", Op.RECV: "r", Op.RECV_REDUCE: "rrc", Op.COPY: "cpy"}[op],
                srcs[0] if srcs else None,
                dst,
            )

    def _add(
        self, block: int, type_: str, src: Chunk | None, dst: Chunk | None, needs: dict[int, int]
    ) -> None:
        """Append a step to a thread block, behind a nop for each dependency but the last."""
        here, knowns = self.blocks[block].steps, self.known[block]
        known = knowns[-1] if knowns else {}
        needs = {other: at for other, at in needs.items() if other != block and known.get(other, -1) < at}
        clocks = {other: self.known[other][at] for other, at in needs.items()}
        least = [
            (other, at)
            for other, at in needs.items()
            if all(clock.get(other, -1) < at for clock in clocks.values())
        ]
        for other, at in least:
            known = {**known, **{b: max(s, known.get(b, -1)) for b, s in clocks[other].items()}, other: at}
            self.blocks[other].steps[at].hasdep = True
        for need in least[:-1]:
            here.append(XmlStep(self.turn, "nop", _NOWHERE, _NOWHERE, need))
        both = src or dst or _NOWHERE, dst or src or _NOWHERE
        here.append(XmlStep(self.turn, type_, *both, least[-1] if least else (-1, -1)))
        self.turn += 1
        knowns += [known] * max(1, len(least))

    def lines(self) -> Iterator[str]:
        """Write the gpu's XML lines."""
        i, o, scratch = self.counts
        yield f'  <gpu id="{self.schedule.rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{scratch}">'
        for block in self.blocks:
            yield f'    <tb id="{block.id}" send="{block.send}" recv="{block.recv}" chan="{block.chan}">'
            yield from (_line(at, step) for at, step in enumerate(block.steps))
            yield "    </tb>"
        yield "  </gpu>"
