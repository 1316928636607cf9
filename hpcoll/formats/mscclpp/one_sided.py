"""One-sided programs as messages: thread blocks that write and read the memory of other gpus, and signals that order them.

A thread block is two channels: all its threads, which move data, and the first ones, which signal and wait. Only a nop or a barrier orders
the two. For each gpu that a channel uses there is one more channel on that gpu, its **agent**, which does nothing but what the channel asks
for. So an access to another gpu's memory is a step of that gpu, ordered behind what the
thread block knew when it asked, and before what it does next:

    thread block     send chunk ...... recv signal        send signal .. recv chunk        send signal
    its agent              recv chunk  send signal    recv signal  send chunk                   recv signal
                            a write (put)                  a read (get)                  another thread block waits for this step

A write through a port goes its own way: the port is a channel, which the thread block does not wait for before a flush. A thread block
that waits for a signal, or for the packets in a chunk, waits for the step of the agent that received them. A gpu's call ends with its
thread blocks: a last channel waits for them, and uses what OUTPUT must hold, which must have arrived by then.
"""

from collections.abc import Sequence

from hpcoll.base.budget import CHANNELS, Budget
from hpcoll.base.errors import ArgumentError
from hpcoll.formats.mscclpp.channels import Action, ChannelMark, Direction, MemoryRun, OpenChannel, finished
from hpcoll.formats.mscclpp.waits import Waits
from hpcoll.formats.program import FilePlace
from hpcoll.schedules.ir import Buffer, Chunk, Op, Step

_SIGNAL = Chunk(Buffer.SCRATCH, 0, 0)


class Translation:
    """The channels of all gpus, from the actions of their thread blocks.

    Attributes:
        cells: Chunks of scratch that each gpu needs.
    """

    def __init__(
        self,
        path: str,
        blocks: Sequence[Sequence[Sequence[Action]]],
        cells: Sequence[int],
        results: Sequence[Sequence[Chunk]],
        budget: Budget,
    ) -> None:
        """Translate.

        Args:
            path: The file, for errors.
            blocks: The actions of each thread block of each gpu.
            cells: Chunks of each gpu's scratch.
            results: Chunks of OUTPUT that each gpu must have in the end.
            budget: What is left for the file.

        Raises:
            ArgumentError: The program is not understood, or too large.
            ScheduleError: A signal, a barrier or packets miss their counterpart.
        """
        self.path, self.cells, self._waits, self._nlinks, self._budget = (
            path,
            list(cells),
            Waits(path, budget),
            0,
            budget,
        )
        self._channels: list[list[OpenChannel]] = [[] for _ in blocks]
        self._agents: dict[tuple[int, int], OpenChannel] = {}  # (link of its client, gpu)
        self._ports: dict[Direction, OpenChannel] = {}
        self._packets: dict[int, bool] = {}  # whether a gpu's scratch holds packets
        self._start()
        pairs = [[self._pair(gpu, actions) for actions in mine] for gpu, mine in enumerate(blocks)]
        for channels, mine in zip(pairs, blocks):
            for (data, control), actions in zip(channels, mine):
                self._translate(data, control, actions)
        self._waits.resolve()
        for gpu, runs in enumerate(results):
            end, place = self._channel(gpu), FilePlace(-1, gpu)
            end.wait([channel.mark() for pair in pairs[gpu] for channel in pair], place)
            for run in runs:
                end.add(Op.COPY, place, -1, run, run)

    def _start(self) -> None:
        """Begin each gpu's call with a signal, so that whatever waits for a channel of thread blocks waits for a step."""
        channels = [self._channel(gpu, 0) for gpu in range(len(self._channels))]
        self._nlinks = 1
        for gpu, start in enumerate(channels):
            place = FilePlace(-1, gpu)
            start.add(Op.SEND, place, (gpu + 1) % len(channels), None, _SIGNAL)
            start.add(Op.RECV, place, (gpu - 1) % len(channels), _SIGNAL)

    def _begin(self, gpu: int) -> OpenChannel:
        channel = self._channel(gpu)
        channel.wait([ChannelMark(self._channels[gpu][0], 1)], FilePlace(-1, gpu))
        return channel

    def _pair(self, gpu: int, actions: Sequence[Action]) -> tuple[OpenChannel, OpenChannel]:
        """Return the channels of a thread block, which are one where there is nothing to do for the other one."""
        data, kinds = (
            self._begin(gpu),
            {action.verb == "move" and not action.port for action in actions if action.verb != "nop"},
        )
        return data, self._begin(gpu) if len(kinds) == 2 else data

    def written(
        self, gpu: int
    ) -> tuple[tuple[tuple[Step, ...], ...], tuple[tuple[FilePlace, ...], ...], tuple[int, ...]]:
        """Return steps, places and links of a gpu's channels."""
        return *finished(self._channels[gpu]), tuple(channel.link for channel in self._channels[gpu])

    def _channel(self, gpu: int, link: int = -1) -> OpenChannel:
        if link < 0:
            link, self._nlinks = self._nlinks, self._nlinks + 1
        self._budget.spend(1, CHANNELS)
        self._channels[gpu].append(OpenChannel(gpu, len(self._channels[gpu]), link))
        return self._channels[gpu][-1]

    def _agent(self, client: OpenChannel, gpu: int) -> OpenChannel:
        if (client.link, gpu) not in self._agents:
            self._agents[client.link, gpu] = self._channel(gpu, client.link)
        return self._agents[client.link, gpu]

    def _port(self, main: OpenChannel, direction: Direction, action: Action) -> OpenChannel:
        """Return the channel of a port, behind what the thread block has done."""
        main.early = False
        self._waits.own(main, "use", direction, action)
        if direction not in self._ports:
            self._ports[direction] = self._channel(main.gpu)
        self._ports[direction].wait([main.mark()], action.place)
        return self._ports[direction]

    def _translate(self, data: OpenChannel, control: OpenChannel, actions: Sequence[Action]) -> None:
        """Write the actions of a thread block."""
        for action in actions:
            if data.unconfirmed and (action.verb != "move" or data.unconfirmed[0][1] != action.place):
                self._confirm(data)
            if action.verb == "move" and not action.port:
                self._move(data, action)
            elif action.verb == "move":
                self._push(control, action)
            elif action.verb in ("wait", "acquire"):
                control.early &= action.relaxed
                self._waits.wait(control, action)
            elif action.verb == "release":
                self._waits.done(action, control.mark())
            elif action.verb in ("signal", "flush"):
                self._signal(control, action)
            else:
                self._synchronize(data, control, action)
        self._confirm(data)

    def _synchronize(self, data: OpenChannel, control: OpenChannel, action: Action) -> None:
        """Let all threads of a block wait for one another, at a barrier for those of the other blocks, too."""
        marks = data.mark(), control.mark()
        control.wait([marks[0]], action.place)
        control.early &= data.early and action.verb == "nop"
        if action.verb == "barrier":
            self._waits.arrive(control, action)
            marks = data.mark(), control.mark()
        data.wait([marks[1]], action.place)

    def _confirm(self, main: OpenChannel) -> None:
        """Wait until what an operation has written elsewhere is there."""
        for gpu, place in main.unconfirmed:
            main.add(Op.RECV, place, gpu, _SIGNAL)
        main.unconfirmed.clear()

    def _signal(self, main: OpenChannel, action: Action) -> None:
        """Write a signal, or a flush: a signal through the port that comes back."""
        direction, place = action.name, action.place
        assert isinstance(direction, Direction)
        sender = self._port(main, direction, action) if action.port else main
        agent = self._agent(sender, direction.receiver)
        sender.add(Op.SEND, place, direction.receiver, None, _SIGNAL)
        agent.add(Op.RECV, place, main.gpu, _SIGNAL)
        if action.verb == "signal":
            self._waits.own(main, "signal", direction, action)
            self._waits.done(action, agent.mark(), main.early)
        else:
            agent.add(Op.SEND, place, main.gpu, None, _SIGNAL)
            sender.add(Op.RECV, place, direction.receiver, _SIGNAL)
            main.wait([sender.mark()], place)

    def _push(self, control: OpenChannel, action: Action) -> None:
        """Write a move through a port, from a chunk here to one elsewhere."""
        (src,), (dst,), direction, place = action.srcs, action.dsts, action.port, action.place
        assert direction
        self._check(control, action)
        port = self._port(control, direction, action)
        port.add(Op.SEND, place, dst.gpu, None, src.chunk)
        self._land(port, control.gpu, dst, place)

    def _check(self, main: OpenChannel, action: Action) -> None:
        """Let a move wait for the packets that it reads."""
        for run in action.srcs + action.dsts:
            if (
                run.chunk.buffer is Buffer.SCRATCH
                and self._packets.setdefault(run.gpu, run.packets) != run.packets
            ):
                cause = f"expected packets or other chunks in scratch of gpu {run.gpu}, got both"
                raise ArgumentError(f"{self.path}, {action.place}: {cause}")
        if action.checked and any(src.packets for src in action.srcs):
            self._waits.read(main, action)

    def _move(self, main: OpenChannel, action: Action) -> None:
        place, gpu, main.early = action.place, main.gpu, False
        self._check(main, action)
        here, there = (
            [dst for dst in action.dsts if dst.gpu == gpu],
            [dst for dst in action.dsts if dst.gpu != gpu],
        )
        value = self._value(main, action, here[0].chunk if here else None)
        for dst in here:
            if dst.chunk != value:
                main.add(Op.COPY, place, -1, dst.chunk, value)
            if dst.packets:
                self._waits.write(dst, main.mark())
        for dst in there:
            main.add(Op.SEND, place, dst.gpu, None, value)
            self._land(main, gpu, dst, place)
            self._agent(main, dst.gpu).add(Op.SEND, place, gpu, None, _SIGNAL)
            main.unconfirmed.append((dst.gpu, place))

    def _land(self, client: OpenChannel, gpu: int, dst: MemoryRun, place: FilePlace) -> None:
        """Let the agent receive what was sent to it."""
        agent = self._agent(client, dst.gpu)
        agent.add(Op.RECV, place, gpu, dst.chunk)
        if dst.packets:
            self._waits.write(dst, agent.mark())

    def _value(self, main: OpenChannel, action: Action, dst: Chunk | None) -> Chunk:
        """Return the chunks with the result of a move: those of ``dst``, if there are, unless it is a copy of what is here."""
        place, gpu, srcs = action.place, main.gpu, action.srcs
        for src in srcs:
            if src.gpu != gpu:
                agent = self._agent(main, src.gpu)
                main.add(Op.SEND, place, src.gpu, None, _SIGNAL)
                agent.add(Op.RECV, place, gpu, _SIGNAL)
                agent.add(Op.SEND, place, gpu, None, src.chunk)
        if len(srcs) == 1 and srcs[0].gpu == gpu:
            return srcs[0].chunk
        dst = dst or self._scratch(gpu, srcs[0].chunk.n)
        if len(srcs) == 1:
            main.add(Op.RECV, place, srcs[0].gpu, dst)
        elif len(srcs) == 2 and srcs[0].gpu == gpu != srcs[1].gpu:
            main.add(Op.RECV_REDUCE, place, srcs[1].gpu, dst, srcs[0].chunk)
        else:
            operands = [src.chunk if src.gpu == gpu else self._scratch(gpu, src.chunk.n) for src in srcs]
            for src, operand in zip(srcs, operands):
                if src.gpu != gpu:
                    main.add(Op.RECV, place, src.gpu, operand)
            main.add(Op.REDUCE, place, -1, dst, *operands)
        return dst

    def _scratch(self, gpu: int, n: int) -> Chunk:
        self.cells[gpu] += n
        return Chunk(Buffer.SCRATCH, self.cells[gpu] - n, n)
