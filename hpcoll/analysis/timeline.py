"""The timeline of all ranks, by LogGP simulation of their schedules on a network of equal links. No MPI, no data."""

from collections.abc import Sequence
from typing import NamedTuple

from hpcoll.analysis.cost import Levels, Network
from hpcoll.analysis.event_loop import LANE, ROW, prepare
from hpcoll.analysis.event_loop import simulate as run
from hpcoll.analysis.event_table import build
from hpcoll.schedules.ir import Chunk, Op, Schedule, Step

ROUNDS = Network(alpha=1.0, overhead=1.0)  # every message takes one unit of time, so that times count rounds


class Event(NamedTuple):
    """A piece of a rank's work."""

    start: float  # seconds; of a transfer: when it begins to keep this rank's port busy
    end: float
    op: Op  # SEND, RECV or RECV_REDUCE (port), REDUCE (processor; also the second half of a RECV_REDUCE) or COPY (no time)
    step: Step
    channel: int

    @property
    def peer(self) -> int:
        """The other rank of a transfer; -1 for local work."""
        return self.step.peer

    @property
    def chunk(self) -> Chunk:
        """The chunks that are sent, or written."""
        return self.step.srcs[0] if self.step.dst is None else self.step.dst


class Timeline(NamedTuple):
    """The work of all ranks."""

    events: list[list[Event]]  # each rank's events, in order of their start
    total: float  # seconds until the last event ends


def simulate(schedules: Sequence[Schedule], nbytes: float, network: Network) -> Timeline:
    """Simulate one segment of ``nbytes`` bytes of a collective, all of whose chunks have ``nbytes / nchunks`` bytes.

    For block collectives, ``nbytes`` are those of all ranks' blocks together, as in the catalogue. The schedules are in rank order.
    ScheduleError: a message has no receive, or a receive no message; ArgumentError: the costs are impossible.
    """
    table = build(schedules, len(schedules), joined=False)
    simulation = prepare(table, Levels(network, network), nbytes, 1, table.nchannels, spans=True)
    total = float(run(simulation))
    if total < 0:
        stuck = simulation.active[simulation.active[:, LANE] >= 0]
        raise table.error(int(stuck[0, ROW]), "waits for a message that is sent after it")
    spans, first = simulation.spans.tolist(), table.first.reshape(len(schedules), -1)
    return Timeline(
        [_events_of(schedule, spans, starts.tolist()) for schedule, starts in zip(schedules, first)], total
    )


def _events_of(schedule: Schedule, spans: list[list[float]], starts: list[int]) -> list[Event]:
    """Return the events of a rank whose channels begin at rows ``starts``."""
    events: list[Event] = []
    for channel, (start, steps) in enumerate(zip(starts, schedule.channels)):
        for step, (sends, sent, works, worked) in zip(steps, spans[start:]):
            if step.peer >= 0:
                events.append(Event(sends, sent, step.op, step, channel))
            if step.op in (Op.COPY, Op.REDUCE) or worked > works:
                events.append(
                    Event(works, worked, Op.COPY if step.op == Op.COPY else Op.REDUCE, step, channel)
                )
    return sorted(events, key=lambda event: (event.start, event.end))
