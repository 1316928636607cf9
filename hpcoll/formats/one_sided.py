"""One-sided programs as messages: thread blocks that write and read the memory of other gpus, and signals that order them.

A thread block is a channel. For each gpu whose memory it uses there is one more channel on that gpu, its **agent**, which does nothing but
what the thread block asks for. So an access to another gpu's memory is a step of that gpu, ordered behind what the thread block knew when
it asked, and before what it does next:

    thread block     send chunk ...... recv signal        send signal .. recv chunk        send signal
    its agent              recv chunk  send signal    recv signal  send chunk                   recv signal
                            a write (put)                  a read (get)                  another thread block waits for this step

A write through a port goes its own way: the port is a channel, which the thread block does not wait for before a flush. A thread block
that waits for a signal, or for the packets in a chunk, waits for the step of the agent that received them. A gpu's call ends with its
thread blocks: a last channel waits for them, and uses what OUTPUT must hold, which must have arrived by then.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.formats.program import FilePlace
from hpcoll.schedules.ir import Buffer, Chunk, Op, Step

MAX_CHANNELS = 8192  # of all gpus, agents among them: the proof has a number for each pair of channels
_SIGNAL = Chunk(Buffer.SCRATCH, 0, 0)


class Run(NamedTuple):
    """A run of chunks of a gpu's memory; ``packets``: each has a flag, by which its readers see that it is there."""

    gpu: int
    chunk: Chunk
    packets: bool = False


class Action(NamedTuple):
    """An operation of a thread block.

    Attributes:
        verb: ``move``: fold the sources and write the result to all destinations; ``signal``, ``wait``, ``flush``; ``release``, ``acquire``
            for a semaphore of the gpu; ``barrier`` of thread blocks of the gpu.
        place: The place in the file.
        srcs: The sources of a move; ``dsts``: its destinations.
        name: Name of the channel's direction that is signalled or waited for, of the semaphore or the barrier.
        port: The port that a move or a signal goes through, or that is flushed; None: the thread block does it itself.
        checked: A move waits for the packets that it reads.
        relaxed: A signal or wait that orders no accesses to memory.
        count: Thread blocks of a barrier; for a semaphore its first value.
    """

    verb: str
    place: FilePlace
    srcs: tuple[Run, ...] = ()
    dsts: tuple[Run, ...] = ()
    name: Hashable = None
    port: Hashable = None
    checked: bool = True
    relaxed: bool = False
    count: int = 0


class _Channel:
    """A channel as it is written; ``items`` are steps, and keys of what it waits for, which is known once all is written."""

    def __init__(self, gpu: int, index: int, link: int) -> None:
        self.gpu, self.index, self.link = gpu, index, link
        self.items: list[tuple[Step | list[_Mark], FilePlace]] = []
        self.early = True  # it has touched no memory and waited for nothing that orders
        self.pending: list[tuple[int, FilePlace]] = []  # gpus that it has written to for an operation, and not heard from

    def add(self, op: Op, place: FilePlace, peer: int, dst: Chunk | None = None, srcs: tuple[Chunk, ...] = ()) -> None:
        """Append a step."""
        self.items.append((Step(op, peer, dst, srcs), place))

    def wait(self, marks: "list[_Mark]", place: FilePlace) -> None:
        """Append AFTER steps for marks; the list may still be filled."""
        self.items.append((marks, place))

    def mark(self) -> "_Mark":
        """Return the place behind what has been written."""
        return _Mark(self, len(self.items))


class _Mark(NamedTuple):
    channel: _Channel
    items: int


class _Waiting(NamedTuple):
    """A wait for the ``number``-th signal of a name, or for packets in cells; ``marks`` are what it waits for, found at the end."""

    action: Action
    channel: _Channel
    number: int
    marks: list[_Mark]


class Translation:
    """The channels of all gpus, from the actions of their thread blocks."""

    def __init__(
        self, path: str, blocks: Sequence[Sequence[Sequence[Action]]], cells: Sequence[int], results: Sequence[Sequence[Chunk]]
    ) -> None:
        """Translate.

        Args:
            path: The file, for errors.
            blocks: The actions of each thread block of each gpu.
            cells: Chunks of each gpu's scratch.
            results: Chunks of OUTPUT that each gpu must have in the end.

        Raises:
            ArgumentError: The program is not understood, or too large.
            ScheduleError: A signal, a barrier or packets miss their counterpart.
        """
        self.path, self.cells, self.nlinks = path, list(cells), 0
        self.channels: list[list[_Channel]] = [[] for _ in blocks]
        self.agents: dict[tuple[int, int], _Channel] = {}  # (link of its client, gpu)
        self.ports: dict[Hashable, _Channel] = {}
        self.owners: dict[Hashable, _Channel] = {}  # the one thread block that does this
        self.done: dict[Hashable, list[tuple[_Mark, Action, bool]]] = defaultdict(list)  # signals and releases of a name
        self.waits: dict[Hashable, list[_Waiting]] = defaultdict(list)
        self.arrived: dict[Hashable, list[tuple[_Mark, _Waiting]]] = defaultdict(list)  # at barriers
        self.packets: dict[tuple[int, int], list[_Mark]] = defaultdict(list)  # writes of packets into a cell of scratch
        self.read: list[_Waiting] = []  # reads of packets
        self.forms: dict[int, bool] = {}  # whether a gpu's scratch holds packets
        mains = [[self._channel(gpu) for _ in mine] for gpu, mine in enumerate(blocks)]
        for gpu, mine in enumerate(blocks):
            for actions, main in zip(mine, mains[gpu]):
                for action in actions:
                    if main.pending and (action.verb != "move" or action.place != main.pending[0][1]):
                        self._settle(main)
                    getattr(self, f"_{action.verb}")(main, action)
                self._settle(main)
        self._resolve()
        for gpu, runs in enumerate(results):
            self._end(gpu, mains[gpu], runs)

    def _end(self, gpu: int, mains: list[_Channel], runs: Sequence[Chunk]) -> None:
        end, place = self._channel(gpu), FilePlace(-1, gpu)
        end.wait([main.mark() for main in mains], place)
        for run in runs:
            end.add(Op.COPY, place, -1, run, (run,))

    def written(self, gpu: int) -> tuple[list[list[Step]], list[list[FilePlace]], tuple[int, ...]]:
        """Return steps, places and links of a gpu's channels."""
        marks, positions = self._positions(gpu)
        steps: list[list[Step]] = []
        places: list[list[FilePlace]] = []
        for channel, mine in zip(self.channels[gpu], marks):
            steps.append([])
            places.append([])
            for (item, place), waited in zip(channel.items, mine):
                if isinstance(item, Step):
                    found = [item]
                else:
                    found = [Step(Op.AFTER, -1, None, (), after=(index, positions[index][items])) for index, items in waited]
                steps[-1] += found
                places[-1] += [place] * len(found)
        return steps, places, tuple(channel.link for channel in self.channels[gpu])

    def _positions(self, gpu: int) -> tuple[list[list[list[tuple[int, int]]]], list[list[int]]]:
        """Return, for each channel, what each item waits for, and the number of steps before each item; marks of no step are left out."""
        channels = self.channels[gpu]
        marks = [[[] if isinstance(item, Step) else _latest(item, channel) for item, _ in channel.items] for channel in channels]
        while True:
            positions = []
            for channel, mine in zip(channels, marks):
                position = [0]
                for (item, _), waited in zip(channel.items, mine):
                    position.append(position[-1] + (1 if isinstance(item, Step) else len(waited)))
                positions.append(position)
            kept = [[[mark for mark in waited if positions[mark[0]][mark[1]]] for waited in mine] for mine in marks]
            if kept == marks:
                return marks, positions
            marks = kept

    def _channel(self, gpu: int, link: int | None = None) -> _Channel:
        if link is None:
            link, self.nlinks = self.nlinks, self.nlinks + 1
        channel = _Channel(gpu, len(self.channels[gpu]), link)
        self.channels[gpu].append(channel)
        if sum(map(len, self.channels)) > MAX_CHANNELS:
            raise ArgumentError(f"{self.path}: expected at most {MAX_CHANNELS:,} thread blocks and gpus that they use, got more")
        return channel

    def _agent(self, client: _Channel, gpu: int) -> _Channel:
        if (client.link, gpu) not in self.agents:
            self.agents[client.link, gpu] = self._channel(gpu, client.link)
        return self.agents[client.link, gpu]

    def _own(self, main: _Channel, what: str, action: Action) -> None:
        """Let one thread block alone do something: several would do it in an order that nobody knows."""
        if self.owners.setdefault((what, action.name), main) is not main:
            raise ArgumentError(f"{self.path}, {action.place}: not understood: several thread blocks {what} {action.name}")

    def _scratch(self, gpu: int, n: int) -> Chunk:
        self.cells[gpu] += n
        return Chunk(Buffer.SCRATCH, self.cells[gpu] - n, n)

    def _port(self, main: _Channel, action: Action) -> _Channel:
        """Return the channel of a port, as far as the thread block has pushed to it."""
        self._own(main, "use", Action("", action.place, name=action.port))
        if action.port not in self.ports:
            self.ports[action.port] = self._channel(main.gpu)
        port = self.ports[action.port]
        port.wait([main.mark()], action.place)
        return port

    def _move(self, main: _Channel, action: Action) -> None:
        place, gpu, main.early = action.place, main.gpu, False
        for run in action.srcs + action.dsts:
            if run.chunk.buffer is Buffer.SCRATCH and self.forms.setdefault(run.gpu, run.packets) != run.packets:
                raise ArgumentError(f"{self.path}, {place}: not understood: scratch of gpu {run.gpu} has packets and other chunks")
        if action.checked and any(src.packets for src in action.srcs):
            self.read.append(_Waiting(action, main, 0, []))
            main.wait(self.read[-1].marks, place)
        if action.port is not None:
            (src,), (dst,) = action.srcs, action.dsts
            port = self._port(main, action)
            port.add(Op.SEND, place, dst.gpu, srcs=(src.chunk,))
            self._land(port, src.gpu, dst, place)
            return
        here, there = [dst for dst in action.dsts if dst.gpu == gpu], [dst for dst in action.dsts if dst.gpu != gpu]
        value = self._value(main, action, here[0].chunk if here else None)
        for dst in here:
            if dst.chunk != value:
                main.add(Op.COPY, place, -1, dst.chunk, (value,))
            self._remember(dst, main)
        for dst in there:
            main.add(Op.SEND, place, dst.gpu, srcs=(value,))
            self._land(main, gpu, dst, place)
            self._agent(main, dst.gpu).add(Op.SEND, place, gpu, srcs=(_SIGNAL,))
            main.pending.append((dst.gpu, place))

    def _settle(self, main: _Channel) -> None:
        """Wait until what an operation has written elsewhere is there."""
        for gpu, place in main.pending:
            main.add(Op.RECV, place, gpu, _SIGNAL)
        main.pending.clear()

    def _value(self, main: _Channel, action: Action, dst: Chunk | None) -> Chunk:
        """Return the chunks with the result of a move, which are those of ``dst`` unless it is a copy."""
        place, gpu, srcs = action.place, main.gpu, action.srcs
        n = srcs[0].chunk.n
        remote = [src for src in srcs if src.gpu != gpu]
        for src in remote:
            agent = self._agent(main, src.gpu)
            main.add(Op.SEND, place, src.gpu, srcs=(_SIGNAL,))
            agent.add(Op.RECV, place, gpu, _SIGNAL)
            agent.add(Op.SEND, place, gpu, srcs=(src.chunk,))
        if len(srcs) == 1 and not remote:
            return srcs[0].chunk
        dst = dst or self._scratch(gpu, n)
        if len(srcs) == 1:
            main.add(Op.RECV, place, remote[0].gpu, dst)
        elif len(srcs) == 2 and srcs[1] in remote and srcs[0] not in remote:
            main.add(Op.RECV_REDUCE, place, remote[0].gpu, dst, (srcs[0].chunk,))
        else:
            operands = []
            for src in srcs:
                operands.append(self._scratch(gpu, n) if src in remote else src.chunk)
                if src in remote:
                    main.add(Op.RECV, place, src.gpu, operands[-1])
            main.add(Op.REDUCE, place, -1, dst, tuple(operands))
        return dst

    def _land(self, client: _Channel, gpu: int, dst: Run, place: FilePlace) -> None:
        """Let the agent receive what was sent to it."""
        agent = self._agent(client, dst.gpu)
        agent.add(Op.RECV, place, gpu, dst.chunk)
        self._remember(dst, agent)

    def _remember(self, dst: Run, channel: _Channel) -> None:
        if dst.packets:
            for cell in range(dst.chunk.index, dst.chunk.index + dst.chunk.n):
                self.packets[dst.gpu, cell].append(channel.mark())

    def _signal(self, main: _Channel, action: Action) -> None:
        self._own(main, "signal", action)
        _, _, peer, _ = action.name  # type: ignore[misc]
        sender = main if action.port is None else self._port(main, action)
        sender.add(Op.SEND, action.place, peer, srcs=(_SIGNAL,))
        agent = self._agent(sender, peer)
        agent.add(Op.RECV, action.place, main.gpu, _SIGNAL)
        self.done[action.name].append((agent.mark(), action, main.early))

    def _wait(self, main: _Channel, action: Action) -> None:
        self._own(main, "wait for", action)
        main.early &= action.relaxed
        self._later(main, action)

    def _later(self, main: _Channel, action: Action) -> None:
        """Wait for what is known once all is written."""
        waits = self.waits[action.name]
        waits.append(_Waiting(action, main, len(waits), []))
        main.wait(waits[-1].marks, action.place)

    def _flush(self, main: _Channel, action: Action) -> None:
        main.early = False
        port = self._port(main, action)
        _, _, peer, _ = action.port  # type: ignore[misc]
        agent = self._agent(port, peer)
        port.add(Op.SEND, action.place, peer, srcs=(_SIGNAL,))
        agent.add(Op.RECV, action.place, main.gpu, _SIGNAL)
        agent.add(Op.SEND, action.place, main.gpu, srcs=(_SIGNAL,))
        port.add(Op.RECV, action.place, peer, _SIGNAL)
        main.wait([port.mark()], action.place)

    def _release(self, main: _Channel, action: Action) -> None:
        self.done[action.name].append((main.mark(), action, False))

    def _acquire(self, main: _Channel, action: Action) -> None:
        self._own(main, "acquire", action)
        main.early = False
        self._later(main, action)

    def _barrier(self, main: _Channel, action: Action) -> None:
        main.early = False
        waiting = _Waiting(action, main, sum(other.channel is main for _, other in self.arrived[action.name]), [])
        self.arrived[action.name].append((main.mark(), waiting))
        main.wait(waiting.marks, action.place)

    def _resolve(self) -> None:
        """Find what every wait waits for."""
        for name, waits in self.waits.items():
            self._match(name, waits)
        for name, done in self.done.items():
            signals, waits = len(done), len(self.waits[name])
            if done[0][1].verb == "signal" and signals > waits:
                counts = f"{signals} signals through {_said(name)}, and {waits} waits for them"
                raise self._refused(done[waits][1], f"{counts}: one is left, and the next call takes it for its own")
        for arrived in self.arrived.values():
            self._meet(arrived)
        for waiting in self.read:
            for src in waiting.action.srcs:
                for cell in range(src.chunk.index, src.chunk.index + src.chunk.n) if src.packets else ():
                    waiting.marks.extend(self._packets(waiting, src.gpu, cell))

    def _match(self, name: Hashable, waits: list[_Waiting]) -> None:
        done = self.done[name]
        if waits[0].action.verb == "acquire":
            self._match_semaphore(waits, done)
            return
        if len(waits) > len(done):
            waiting = waits[len(done)]
            raise self._refused(waiting.action, f"deadlock: {len(waits)} waits for {_said(name)}, and {len(done)} signals through it")
        for waiting, (mark, action, early) in zip(waits, done):
            if early or not (action.relaxed or waiting.action.relaxed):
                waiting.marks.append(mark)

    def _match_semaphore(self, waits: list[_Waiting], done: list[tuple[_Mark, Action, bool]]) -> None:
        """Let each acquire wait for the releases of a thread block that must have been done, however many the others have done."""
        mine: dict[int, list[_Mark]] = defaultdict(list)
        for mark, _, _ in done:
            mine[mark.channel.index].append(mark)
        for waiting in waits:
            needed = waiting.number + 1 - waiting.action.count
            if needed > len(done):
                raise self._refused(waiting.action, f"deadlock: semaphore {_said(waiting.action.name)} is released {len(done)} times")
            for marks in mine.values():
                least = needed - (len(done) - len(marks))
                if least > 0:
                    waiting.marks.append(marks[least - 1])

    def _meet(self, arrived: list[tuple[_Mark, _Waiting]]) -> None:
        """Let each thread block at a barrier wait for the others."""
        meetings: dict[int, list[tuple[_Mark, _Waiting]]] = defaultdict(list)
        for mark, waiting in arrived:
            meetings[waiting.number].append((mark, waiting))
        for meeting in meetings.values():
            action = meeting[0][1].action
            if any(waiting.action.count != len(meeting) for _, waiting in meeting):
                raise self._refused(action, f"deadlock: a barrier of {action.count} thread blocks, and {len(meeting)} come to it")
            for _, waiting in meeting:
                waiting.marks.extend(mark for mark, other in meeting if other is not waiting)

    def _packets(self, waiting: _Waiting, gpu: int, cell: int) -> list[_Mark]:
        found = self.packets.get((gpu, cell), [])
        where = f"packets of scratch[{cell}] of gpu {gpu}"
        if not found:
            raise self._refused(waiting.action, f"deadlock: it waits for {where}, which nobody writes")
        if len(found) > 1:
            raise self._refused(waiting.action, f"race: it waits for {where}, which are written {len(found)} times")
        return found

    def _refused(self, action: Action, text: str) -> ScheduleError:
        return ScheduleError(f"{self.path}, {action.place}: {text}")


def _latest(marks: list[_Mark], channel: _Channel) -> list[tuple[int, int]]:
    """Return one mark for each other channel of those in a list, the last, as its number and its items."""
    found: dict[int, int] = {}
    for mark in marks:
        if mark.channel is not channel and mark.items:
            found[mark.channel.index] = max(mark.items, found.get(mark.channel.index, 0))
    return list(found.items())


def _said(name: Hashable) -> str:
    """Return the name of a direction of a channel, or of a semaphore, in words."""
    if isinstance(name, tuple) and len(name) == 4:
        kind, sender, receiver, number = name
        return f"{kind} channel {number} from gpu {sender} to gpu {receiver}"
    return str(name[-1]) if isinstance(name, tuple) else str(name)
