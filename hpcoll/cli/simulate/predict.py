"""How long a collective takes on a network of nodes: its schedules, played by compiled code.

Where all ranks run the same steps relative to themselves (ring, circulant, dissemination, ...), as many of them are built and played as
share a node, and stand for all; `exact` plays every rank.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hpcoll.analysis import event_loop as playing
from hpcoll.analysis.cost import Levels, Network, byte_seconds
from hpcoll.analysis.event_table import Tape, alike, build, period, placed
from hpcoll.base.errors import ArgumentError, ScheduleError
from hpcoll.schedules.placement import Nodes
from hpcoll.schedules.row import Algorithm, schedule

MAX_MESSAGES = 1_500_000  # that one play of segments may have; longer pipelines are carried on at their pace
MAX_STEPS = 20_000_000  # that are built at most


class Prediction(NamedTuple):
    """What was played.

    Attributes:
        seconds: Time of the whole call.
        played: Messages that were played for it.
        stands_for: Messages of all ranks and segments.
        carried_on: Whether only the first segments were played, and the rest follows at their pace.
    """

    seconds: float
    played: int
    stands_for: int
    carried_on: bool


class Score(NamedTuple):
    """A row's schedules for some ranks, on nodes.

    Attributes:
        row: Catalogue row.
        nodes: Placement of all ranks.
        tape: Of all ranks, or of those that stand for them.
    """

    row: Algorithm
    nodes: Nodes
    tape: Tape


def score(row: Algorithm, nodes: Nodes, root: int = 0, nchunks: int = 1, *, exact: bool = False) -> Score:
    """Build what is played; see `Score`.

    Args:
        row, root, nchunks: As in `hpcoll.schedules.row.schedule`.
        nodes: Placement of all ranks, 2 or more.
        exact: Build every rank, also where some would stand for all.
    Raises:
        ArgumentError: that would be more steps than `MAX_STEPS`; says how many.
    """
    nranks = len(nodes)

    def one(rank: int) -> Any:
        return schedule(row, nranks, rank, root, nchunks, nodes)

    every = period(nodes)
    few = not exact and every < nranks and alike(one, nranks, every)
    nbuilt = every if few else nranks
    steps = max(sum(map(len, one(rank).channels)) for rank in {0, nranks // 2}) * nbuilt
    if steps > MAX_STEPS:
        raise ArgumentError(f"{row.key} on {nranks} ranks has some {steps:,} steps that must be built one by one, more than {MAX_STEPS:,}")
    try:
        tape = build(map(one, range(nbuilt)), nranks, joined=True)
    except ScheduleError:  # what a rank sends as one run that wraps, another receives as two
        tape = build(map(one, range(nranks)), nranks, joined=False)
    return Score(row, nodes, placed(tape, nodes))


def predict(scored: Score, nbytes: float, levels: Levels, segments: int = 1, window: int = 1, *, exact: bool = False) -> Prediction:
    """Play a collective.

    Args:
        scored: What to play.
        nbytes: Bytes of the message, as the catalogue counts them.
        levels: Costs of messages on a node and between nodes.
        segments: Parts of the message that follow one another, ``>= 1``.
        window: Lanes that a rank has in flight, ``>= 1``.
        exact: Play all segments, however many messages that are.
    """
    tape = scored.tape
    per_segment = tape.nmessages
    stands_for = per_segment * segments * tape.nranks // tape.nbuilt
    most = max(1, MAX_MESSAGES // max(1, per_segment))
    some = max(4, min(most, 8 * window))
    if exact or segments <= max(most, some):
        return Prediction(_play(scored, nbytes / segments, segments, window, levels), per_segment * segments, stands_for, carried_on=False)
    long, short = some, some // 2
    times = [_play(scored, nbytes / segments, n, window, levels) for n in (short, long)]
    pace = (times[1] - times[0]) / (long - short)
    return Prediction(times[1] + (segments - long) * pace, per_segment * (long + short), stands_for, carried_on=True)


def predict_in_step(scored: Score, nbytes: float, levels: Levels) -> Prediction:
    """Play every rank of a schedule that few ranks stand for, all in step, one segment on one channel.

    Raises:
        ArgumentError: ranks differ, or there are several channels.
    """
    tape = scored.tape
    if tape.nbuilt == tape.nranks > 1 or tape.nchannels > 1:
        raise ArgumentError(f"{scored.row.key} cannot be played in step: its ranks differ, or it has several channels")
    one = build([schedule(scored.row, tape.nranks, 0, 0, tape.nchunks, scored.nodes)], tape.nranks, joined=True)
    costs, chunk = _costs(scored.nodes, nbytes, levels), nbytes / tape.nchunks
    nodes = np.array(scored.nodes, np.int64)
    distances = np.where(one.peers >= 0, one.peers, 0).astype(np.int64)
    seconds = _compiled().play_in_step(one.rows, distances, costs, nodes, chunk, tape.shared)
    return Prediction(float(seconds), one.nmessages * tape.nranks, one.nmessages * tape.nranks, carried_on=False)


def _play(scored: Score, piece: float, segments: int, window: int, levels: Levels) -> float:
    """Seconds of some segments of ``piece`` bytes."""
    tape = scored.tape
    window = min(window, segments * tape.nchannels)
    nplaces, queued = tape.nbuilt * window, tape.nmessages * segments + tape.nbuilt * window + 1
    rows = tape.rows
    arrays = (
        rows, tape.first, _costs(scored.nodes, piece, levels), np.zeros((tape.nbuilt, 5)),
        np.zeros((int(rows[:, playing.NODE].max()) + 1, 2)), np.zeros((segments, len(rows))), np.zeros((nplaces, 3), np.int64),
        np.empty(queued), np.empty(queued, np.int64),
    )  # fmt: skip
    seconds = float(_compiled().play(*arrays, piece / tape.nchunks, tape.nchannels, window))
    assert seconds >= 0, f"{scored.row.key} waits for ever"
    return seconds


def _costs(nodes: Nodes, piece: float, levels: Levels) -> np.ndarray:
    """`hpcoll.analysis.event_loop.Play.costs`; ranks with a node each have no link that others share."""
    alone = len(set(nodes)) == len(nodes)
    return np.array([_row(level, piece) for level in ((levels.network, levels.network) if alone else levels)])


def _row(level: Network, piece: float) -> list[float]:
    if not 0 <= level.overhead <= level.alpha or min(level.beta, level.gamma, level.handshake) < 0 or level.spill < 1:
        raise ArgumentError(f"network needs 0 <= overhead <= alpha, spill >= 1 and nothing below 0, got {level}")
    beta = byte_seconds(level, piece, reduces=False)
    return [level.alpha, level.overhead, beta, byte_seconds(level, piece, reduces=True) - beta, float(level.eager), level.handshake]


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """The module of compiled players; what is compiled is kept on disk."""
    from hpcoll.cli.simulate import event_loop_jit

    return event_loop_jit
