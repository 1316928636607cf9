"""Programs that write their input in place, and programs that are not of calls in place, on a copy of the input.

channel 0   copy input to scratch   its steps, on scratch   after all other channels   copy what is OUTPUT's from scratch
channel 1   after 1 of 0            its steps, on scratch
"""

from collections.abc import Sequence

from hpcoll.formats.program import FilePlace
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step

Places = tuple[tuple[FilePlace, ...], ...]  # by channel and step


def with_private_input(
    s: Schedule, places: Places, ninputs: int, aliases: Sequence[tuple[int, int]]
) -> tuple[Schedule, Places]:
    """Return a rank's schedule that writes no INPUT, and the places of its steps; ``aliases`` as in `Collective`."""
    if not any(step.dst and step.dst.buffer is Buffer.INPUT for steps in s.channels for step in steps):
        return s, places
    return on_private_input(s, places, ninputs, aliases)


def on_private_input(
    s: Schedule, places: Places, ninputs: int, aliases: Sequence[tuple[int, int]]
) -> tuple[Schedule, Places]:
    """Return a rank's schedule that begins with a copy of the input and reads only that; arguments as of `with_private_input`."""
    runs = [run for steps in s.channels for step in steps for run in step.runs]
    first, shared = len(s.scratch), {o: i for i, o in aliases}
    n = max([ninputs, *(run.index + run.n for run in runs if run.buffer is Buffer.INPUT)])

    def moved(run: Chunk) -> Chunk:
        if run.buffer is Buffer.OUTPUT:
            return Chunk(Buffer.SCRATCH, first + shared[run.index], run.n) if run.index in shared else run
        return Chunk(Buffer.SCRATCH, first + run.index, run.n) if run.buffer is Buffer.INPUT else run

    channels = []
    for index, steps in enumerate(s.channels):
        begin = (
            _after(0, 1)
            if index
            else Step(Op.COPY, -1, Chunk(Buffer.SCRATCH, first, ninputs), (Chunk(Buffer.INPUT, 0, ninputs),))
        )
        found = [
            step._replace(
                dst=step.dst and moved(step.dst),
                srcs=tuple(map(moved, step.srcs)),
                after=(step.after[0], step.after[1] + 1),
            )
            for step in steps
        ]
        channels.append([begin, *found])
    if aliases:
        channels[0] += [_after(index, len(steps)) for index, steps in enumerate(channels) if index]
        (source, target), count = aliases[0], len(aliases)
        channels[0].append(
            Step(
                Op.COPY,
                -1,
                Chunk(Buffer.OUTPUT, target, count),
                (Chunk(Buffer.SCRATCH, first + source, count),),
            )
        )
    anywhere = FilePlace(-1, s.rank)
    known = [
        (anywhere, *its, *[anywhere] * (len(steps) - 1 - len(its))) for steps, its in zip(channels, places)
    ]
    return s._replace(channels=tuple(map(tuple, channels)), scratch=s.scratch + (0,) * n), tuple(known)


def _after(channel: int, steps: int) -> Step:
    return Step(Op.AFTER, -1, None, (), after=(channel, steps))
