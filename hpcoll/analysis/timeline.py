"""What each rank does when, by LogGP simulation of the schedules of all ranks on a network of equal links. No MPI, no data."""

from collections.abc import Sequence
from typing import NamedTuple

from hpcoll.analysis.cost import Levels, Network
from hpcoll.analysis.event_loop import LANE, ROW, prepare
from hpcoll.analysis.event_loop import simulate as run
from hpcoll.analysis.event_table import build
from hpcoll.schedules.ir import Chunk, Op, Schedule, Step

ROUNDS = Network(alpha=1.0, overhead=1.0)  # every message takes one unit of time: time is counted in rounds


class Event(NamedTuple):
    """One thing that one rank does.

    Attributes:
        start, end: In seconds; of a transfer: when this rank's port is busy with it.
        op: SEND, RECV or RECV_REDUCE (port), REDUCE (processor; also the second half of a RECV_REDUCE) or COPY (no time).
        step: The step it belongs to.
        channel: The channel that the step is in.
    """

    start: float
    end: float
    op: Op
    step: Step
    channel: int

    @property
    def peer(self) -> int:
        """Other end of a transfer; -1 for local work."""
        return self.step.peer

    @property
    def chunk(self) -> Chunk:
        """Chunks sent, or written."""
        return self.step.srcs[0] if self.step.dst is None else self.step.dst


class Timeline(NamedTuple):
    """What all ranks do: ``events[rank]`` in order of their start; ``total`` is when the last one ends, in seconds."""

    events: list[list[Event]]
    total: float


def simulate(schedules: Sequence[Schedule], nbytes: float, network: Network) -> Timeline:
    """Simulate one segment of a collective; every chunk is ``nbytes / nchunks`` long.

    Args:
        schedules: One per rank, in rank order.
        nbytes: Bytes of the segment; for block collectives of all ranks' blocks together, as in the catalogue.
        network: What messages cost.

    Raises:
        ScheduleError: a message is not received, or nobody sends what is waited for.
        ArgumentError: the network is impossible.
    """
    table = build(schedules, len(schedules), joined=False)
    simulation = prepare(table, Levels(network, network), nbytes, 1, table.nchannels, spans=True)
    total = float(run(simulation))
    if total < 0:
        stuck = simulation.active[simulation.active[:, LANE] >= 0]
        raise table.error(int(stuck[0, ROW]), "waits for a message that is sent after it")
    spans, first = simulation.spans.tolist(), table.first.reshape(len(schedules), -1)
    return Timeline([_events_of(schedule, spans, starts.tolist()) for schedule, starts in zip(schedules, first)], total)


def _events_of(schedule: Schedule, spans: list[list[float]], starts: list[int]) -> list[Event]:
    """Events of one rank, whose channels begin at rows ``starts``."""
    found: list[Event] = []
    for channel, (start, steps) in enumerate(zip(starts, schedule.channels)):
        for step, (sends, sent, works, worked) in zip(steps, spans[start:]):
            if step.peer >= 0:
                found.append(Event(sends, sent, step.op, step, channel))
            if step.op in (Op.COPY, Op.REDUCE) or worked > works:
                found.append(Event(works, worked, Op.COPY if step.op == Op.COPY else Op.REDUCE, step, channel))
    return sorted(found, key=lambda event: (event.start, event.end))
