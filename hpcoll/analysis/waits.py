"""Waits of one rank in collectives: for whom, how long, where; and the judgement of all ranks' waits.

Programs ask for it through `hpcoll.Communicator.stragglers`, and ``hpcoll trace`` for what a run has left in its trace.
"""

from collections.abc import Mapping
from typing import NamedTuple


class PlaceWaits(NamedTuple):
    """The waits of one rank in calls made at one place of the program; only calls that took long have a place."""

    place: str  # file and line, such as ``train.py:88``; empty where none is known
    region: str  # names of the regions, outermost first, joined by ``/``; empty outside of them
    calls: int
    waited_s: float
    moved_s: float
    waited_for: Mapping[int, float]  # seconds, by the rank that was awaited


class RankWaits(NamedTuple):
    """The waits of one rank of a communicator, since it was made or `Communicator.stragglers` was told to forget.

    Ranks are those of the communicator that was asked. Times of calls in flight count while the program waits for them.
    """

    rank: int
    host: str
    run_s: float  # wall-clock time
    calls: int  # that were compared between ranks
    uncompared: int  # that were not, because their records were lost before
    held_up_by: Mapping[int, int]  # calls in which this rank waited, by the rank that came last
    waited_s: float  # for ranks that came later
    moved_s: float  # in calls that all ranks had reached
    hidden_s: float  # of calls in flight, while the program did other things
    python_s: float  # around calls, in hpcoll's own Python
    nbytes: int
    waited_for: Mapping[int, float]  # seconds, by the rank that came last
    caused: Mapping[int, float]  # the same, each wait divided by the number of ranks that could wait for that one in that call
    inherited: Mapping[int, float]  # of `caused`, what the late rank had spent in other collectives since its last call of this kind
    taken_s: float  # in which this rank's thread could have run, and had no core
    absent_s: float  # in which it slept, was stopped, or waited for a device, outside of collectives
    computed_s: float  # of the thread's time on a core outside of collectives
    places: tuple[PlaceWaits, ...]
    clock_error_s: float  # below which a difference between hosts is no finding
