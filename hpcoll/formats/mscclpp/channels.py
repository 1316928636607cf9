"""One-sided actions, and the channels into which they are translated (`hpcoll.formats.mscclpp.one_sided`), while they are being written."""

from collections.abc import Sequence
from typing import NamedTuple

from hpcoll.formats.program import FilePlace
from hpcoll.schedules.ir import Chunk, Op, Step


class MemoryRun(NamedTuple):
    """A run of chunks of a gpu's memory; ``packets``: each has a flag, by which its readers see that it is there."""

    gpu: int
    chunk: Chunk
    packets: bool = False


class Direction(NamedTuple):
    """A direction of a channel, which one gpu signals and the other one waits for; of a port it is the port."""

    kind: str
    sender: int
    receiver: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind} channel {self.number} from gpu {self.sender} to gpu {self.receiver}"


class Local(NamedTuple):
    """A semaphore or a barrier of a gpu."""

    kind: str
    gpu: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} of gpu {self.gpu}"


class Action(NamedTuple):
    """An operation of a thread block.

    Attributes:
        verb: ``move``: fold the sources and write the result to all destinations; ``signal``, ``wait``, ``flush``; ``release``, ``acquire``
            for a semaphore of the gpu; ``barrier`` of thread blocks of the gpu; ``nop``, one of all threads of the block.
        place: The place in the file.
        srcs: The sources of a move; ``dsts``: its destinations.
        name: What is signalled, waited for, released, acquired or met at.
        port: The port that a move or a signal goes through, or that is flushed; None: the thread block does it itself.
        checked: A move waits for the packets that it reads.
        relaxed: A signal or wait that orders no accesses to memory.
        count: Thread blocks of a barrier; the first value of a semaphore.
    """

    verb: str
    place: FilePlace
    srcs: tuple[MemoryRun, ...] = ()
    dsts: tuple[MemoryRun, ...] = ()
    name: Direction | Local | None = None
    port: Direction | None = None
    checked: bool = True
    relaxed: bool = False
    count: int = 0  # type: ignore[assignment]  # hides tuple.count


class OpenChannel:
    """A channel that is being written; its ``items`` are steps, and lists of marks that it waits for, which may still be filled."""

    def __init__(self, gpu: int, index: int, link: int) -> None:
        self.gpu, self.index, self.link = gpu, index, link
        self.items: list[tuple[Step | list[ChannelMark], FilePlace]] = []
        self.early = True  # it has touched no memory, and waited for nothing that orders accesses
        self.unconfirmed: list[
            tuple[int, FilePlace]
        ] = []  # gpus that it has written to for an operation, and not heard from

    def add(self, op: Op, place: FilePlace, peer: int, dst: Chunk | None = None, *srcs: Chunk) -> None:
        """Append a step."""
        self.items.append((Step(op, peer, dst, srcs), place))

    def wait(self, marks: "list[ChannelMark]", place: FilePlace) -> None:
        """Append a wait for marks."""
        self.items.append((marks, place))

    def mark(self) -> "ChannelMark":
        """Return the mark behind what has been written."""
        return ChannelMark(self, len(self.items))


class ChannelMark(NamedTuple):
    """A place in a channel, behind so many items."""

    channel: OpenChannel
    nitems: int


def finished(
    channels: Sequence[OpenChannel],
) -> tuple[tuple[tuple[Step, ...], ...], tuple[tuple[FilePlace, ...], ...]]:
    """Return steps and places of a gpu's channels, of which the first item is a step, with AFTER steps for marks."""
    waits = [
        [[] if isinstance(item, Step) else _latest(item, channel) for item, _ in channel.items]
        for channel in channels
    ]
    behind = [_counted(channel, mine) for channel, mine in zip(channels, waits)]
    steps: list[tuple[Step, ...]] = []
    places: list[tuple[FilePlace, ...]] = []
    for channel, mine in zip(channels, waits):
        placed: list[tuple[Step, FilePlace]] = []
        for (item, place), wait in zip(channel.items, mine):
            if isinstance(item, Step):
                placed.append((item, place))
            placed.extend(
                (Step(Op.AFTER, -1, None, (), after=(index, behind[index][nitems])), place)
                for index, nitems in wait
            )
        steps.append(tuple(step for step, _ in placed))
        places.append(tuple(place for _, place in placed))
    return tuple(steps), tuple(places)


def _latest(marks: list[ChannelMark], channel: OpenChannel) -> list[tuple[int, int]]:
    """Return the last mark of each other channel: its number and its items."""
    latest: dict[int, int] = {}
    for mark in marks:
        if mark.channel is not channel and mark.nitems:
            latest[mark.channel.index] = max(mark.nitems, latest.get(mark.channel.index, 0))
    return list(latest.items())


def _counted(channel: OpenChannel, waits: list[list[tuple[int, int]]]) -> list[int]:
    """Return the number of steps before each item of a channel, and at its end."""
    steps = [0]
    for (item, _), wait in zip(channel.items, waits):
        steps.append(steps[-1] + (1 if isinstance(item, Step) else len(wait)))
    return steps
