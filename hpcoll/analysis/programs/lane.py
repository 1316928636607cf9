"""A lane that is being written: its steps, its scratch memory, and its messages on their way."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hpcoll.base.budget import CELLS, Budget
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.collectives import Collective
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step, cells_of


class LaneScratch:
    """The new scratch memory of a rank.

    A **kind** numbers the size of a chunk: chunks of one kind have one size on all ranks.
    """

    def __init__(self, schedule: Schedule, meaning: Collective, budget: Budget) -> None:
        self.nkinds = schedule.nchunks // schedule.nranks if meaning.blocks else schedule.nchunks
        self.blocks, self.kinds, self._budget = meaning.blocks, list[int](), budget

    def take(self, kinds: Sequence[int]) -> Chunk:
        """Allocate cells of these kinds."""
        first = len(self.kinds)
        self._budget.spend(len(kinds), CELLS)
        self.kinds += kinds
        return Chunk(Buffer.SCRATCH, first, len(self.kinds) - first)

    def compact(self, s: Schedule, channels: Sequence[Sequence[Step]]) -> Schedule:
        """Return a schedule with these channels, and the cells that they use."""
        runs = [
            run for steps in channels for step in steps for run in step.runs if run.buffer is Buffer.SCRATCH
        ]
        used = sorted({index for run in runs for _, index in cells_of(run)})
        places = {index: place for place, index in enumerate(used)}

        def moved(run: Chunk) -> Chunk:
            return run._replace(index=places[run.index]) if run.buffer is Buffer.SCRATCH else run

        extents = [
            (0, self.kinds[index]) if self.blocks and self.nkinds > 1 else self.kinds[index] for index in used
        ]
        steps = (
            tuple(
                step._replace(dst=step.dst and moved(step.dst), srcs=tuple(map(moved, step.srcs)))
                for step in c
            )
            for c in channels
        )
        return s._replace(channels=tuple(steps), scratch=tuple(extents), links=())


class Lane:
    """The new channel of a rank for a part of its old ones, and the new places of what they have in scratch memory.

    An **image** is a copy of the old scratch memory in the new one. Each difference between kinds and indices has an image of its own.
    """

    def __init__(
        self,
        schedule: Schedule,
        channels: Sequence[int],
        scratch: LaneScratch,
        shared: Mapping[tuple[Buffer, int], tuple[Buffer, int]],
    ) -> None:
        """``shared``: by chunk of OUTPUT the chunk of INPUT that may be the same memory."""
        self.schedule, self.rank, self.channels, self.scratch, self.shared = (
            schedule,
            schedule.rank,
            channels,
            scratch,
            shared,
        )
        self.steps: list[list[Step]] = []  # a send may become two steps
        self.images: dict[int, int] = {}  # difference -> first new cell
        self.places: dict[
            tuple[Buffer, int], tuple[Buffer, int]
        ] = {}  # of the scratch cells that have been written
        self.lent: dict[tuple[Buffer, int], list[LaneMessage]] = defaultdict(list)

    def add(self, step: Step) -> None:
        """Append a step."""
        self.steps.append([step])

    def read(self, run: Chunk) -> Chunk:
        """Return the new place of a run of chunks."""
        cells = [self.places.get(cell, cell) for cell in cells_of(run)]
        if any(cell != (cells[0][0], cells[0][1] + i) for i, cell in enumerate(cells)):
            raise self.error(f"{run} holds chunks of different sizes in turn")
        return Chunk(*cells[0], run.n)

    def written(self, run: Chunk, kinds: Sequence[int]) -> Chunk:
        """Return the new place for a run of chunks of these kinds; messages that are under way from there are sent from a copy."""
        chunk, nkinds = run, self.scratch.nkinds
        difference = (kinds[0] - run.index) % nkinds
        if any((kind - run.index - i) % nkinds != difference for i, kind in enumerate(kinds)):
            raise self.error(f"{run} holds chunks that do not follow one another")
        if run.buffer is Buffer.SCRATCH:
            if difference not in self.images:
                image = self.scratch.take(
                    [(index + difference) % nkinds for index in range(len(self.schedule.scratch))]
                )
                self.images[difference] = image.index
            chunk = Chunk(Buffer.SCRATCH, self.images[difference] + run.index, run.n)
            self.places.update(zip(cells_of(run), cells_of(chunk)))
        elif difference:
            raise self.error(f"{run} holds another chunk for a while, whose size may differ")
        for cell in cells_of(chunk):
            for place in (cell, self.shared.get(cell, cell)):
                for message in self.lent.pop(place, ()):
                    message.copy()
        return chunk

    def kinds_of(self, run: Chunk) -> list[int]:
        """Return the kinds of the chunks that a run holds."""
        cells = (self.places.get(cell, cell) for cell in cells_of(run))
        return [
            self.scratch.kinds[i] if buffer is Buffer.SCRATCH else i % self.scratch.nkinds
            for buffer, i in cells
        ]

    def error(self, text: str) -> ScheduleError:
        """Return the error of a program that is right and cannot run."""
        return ScheduleError(f"{text}, so it cannot run on messages of any count", rank=self.rank)


class LaneMessage:
    """A message from one rank to another; of a signal nothing is sent."""

    def __init__(self, lane: Lane, peer: int, src: Chunk, arrival: int) -> None:
        self.lane, self.peer, self.arrival = lane, peer, arrival
        self.kinds, self.number = lane.kinds_of(src), len(lane.steps)
        self.landed: Chunk | None = None
        self.arrived = not src.n
        if src.n:
            self.src = lane.read(src)
            lane.add(Step(Op.SEND, peer, None, (self.src,)))
            for cell in cells_of(self.src):
                lane.lent[cell].append(self)

    def copy(self) -> None:
        """Let the sender send from a copy, unless the message has arrived."""
        if not self.arrived:
            copy = self.lane.scratch.take(self.kinds)
            self.lane.steps[self.number] = [
                Step(Op.COPY, -1, copy, (self.src,)),
                Step(Op.SEND, self.peer, None, (copy,)),
            ]
            self.arrived = True
