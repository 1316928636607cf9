"""The account of a rank's waits in the collectives of all communicators of the same ranks."""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from operator import add

import numpy as np

from hpcoll.analysis.waits import PlaceWaits, RankWaits
from hpcoll.comm.status.names import place_text, region_text
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.program import wait_fields as w
from hpcoll.runtime.telemetry.call_log import PROCESS

SHORT_NS = 1000
_NS = 1e-9


class WaitAccount:
    """Sums over compared calls, in nanoseconds; compiled code adds to the arrays.

    Attributes:
        world_ranks: Ranks of the communicators, in their order, as those of ``MPI.COMM_WORLD``.
        sums: int64, as of `hpcoll.runtime.program.wait_fields`.
        by_rank: int64 ``(4, nranks)``: calls held up, waited for, caused, inherited, by the rank of the communicators that came last.
        addresses: Of `sums`, and of the rows of `by_rank`.
        places: By names of a record: calls, nanoseconds waited and moved, and waited by rank.
        uncompared: Calls whose records were lost before they could be compared.
        least: Nanoseconds below which a difference is no finding: `SHORT_NS`, or the clocks' error.
    """

    def __init__(self, world_ranks: tuple[int, ...]) -> None:
        self.world_ranks = world_ranks
        self.sums, self.by_rank = np.zeros(w.NSUMS, np.int64), np.zeros((4, len(world_ranks)), np.int64)
        self.addresses = self.sums.ctypes.data, *(row.ctypes.data for row in self.by_rank)
        self.places: dict[int, tuple[list[int], defaultdict[int, int]]] = {}
        self.uncompared, self.least = 0, SHORT_NS

    def add_places(self, groups: np.ndarray) -> None:
        """Add rows of `hpcoll.runtime.program.wait_fields`: of compared calls that took long, or were made in a region."""
        for names, owner, *numbers in groups.tolist():
            sums, by_rank = self.places.setdefault(names, ([0, 0, 0], defaultdict(int)))
            sums[:] = map(add, sums, numbers)
            if owner != w.NOBODY:
                by_rank[owner] += numbers[1]


class Life:
    """The life of the thread that calls: its times since the first communicator, or since the last report that began anew."""

    def __init__(self) -> None:
        self.begun = self._now()

    @staticmethod
    def _now() -> tuple[float, ...]:
        """Return seconds: wall-clock time; on a core; ready to run but without a core; of `hpcoll.runtime.program.fields` for a process."""
        delayed = 0.0
        try:
            with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as file:
                delayed = _NS * int(file.read().split()[1])
        except (OSError, IndexError, ValueError):  # a kernel without it
            pass
        in_calls = (_NS * PROCESS[f.SPENT : f.ON_CORE + 1]).tolist()
        return time.monotonic(), time.thread_time(), delayed, *in_calls

    def passed(self) -> tuple[float, ...]:
        """Return what has passed since the begin, in the order of `_now`."""
        return tuple(now - then for now, then in zip(self._now(), self.begun, strict=True))


_accounts: dict[tuple[int, ...], WaitAccount] = {}
_life = [Life()]


def account_of(resources: Resources) -> WaitAccount:
    """Return the account of all communicators of the same ranks in the same order."""
    ranks = resources.team.world_ranks
    return _accounts.get(ranks) or _accounts.setdefault(ranks, WaitAccount(ranks))


def accounts() -> list[WaitAccount]:
    """Return the accounts of all communicators of this process."""
    return list(_accounts.values())


def forget(inside: Sequence[int]) -> None:
    """Begin anew: forget the accounts of communicators all of whose ranks are among these ranks of ``MPI.COMM_WORLD``."""
    for ranks in [ranks for ranks in _accounts if set(ranks) <= set(inside)]:
        del _accounts[ranks]
    _life[0] = Life()


def _outside(
    run_s: float,
    on_core_s: float,
    taken_s: float,
    in_calls_s: float,
    blocking_s: float,
    lingered_s: float,
    lingered_on_core_s: float,
) -> tuple[float, float, float]:
    """Return the seconds outside of collectives: on a core; asleep, stopped, or waiting for a device; ready, but without a core.

    In calls that end at once this thread has had a core for as large a share as in the whole run. The program sleeps while it waits for
    calls in flight, as a rule. How long it had no core is known of the whole run alone: a rank for which others wait has hardly waited
    itself, and had none outside of collectives.
    """
    in_flight_s = max(0.0, in_calls_s - blocking_s)
    share = on_core_s / (on_core_s + taken_s) if taken_s else 1.0
    computed_s = max(0.0, on_core_s - lingered_on_core_s - share * (blocking_s - lingered_s))
    others_s = max(0.0, run_s - blocking_s - in_flight_s - computed_s)
    taken_s = min(taken_s, others_s)
    return computed_s, others_s - taken_s, taken_s


def rank_waits(resources: Resources, nbytes: int = 0, python_s: float = 0.0) -> RankWaits:
    """Return this rank's waits in all communicators whose ranks are among those of one; ranks are numbered as in that one."""
    world = {rank: number for number, rank in enumerate(resources.team.world_ranks)}
    accounts = [one for one in _accounts.values() if set(one.world_ranks) <= set(world)]
    by_rank, sums, places = (
        np.zeros((4, len(world)), np.int64),
        np.zeros(w.NSUMS, np.int64),
        dict[tuple[str, str], PlaceWaits](),
    )
    for account in accounts:
        ranks = [world[rank] for rank in account.world_ranks]
        by_rank[:, ranks] += account.by_rank
        sums += account.sums
        for names, (numbers, for_rank) in account.places.items():
            key = place_text(names >> f.PLACE_AT), region_text(names & f.REGION_BITS)
            ncalls, waited, moved = numbers
            before = places.get(key, PlaceWaits(*key, 0, 0.0, 0.0, {}))
            awaited = dict(before.waited_for)
            for rank, ns in for_rank.items():
                awaited[ranks[rank]] = awaited.get(ranks[rank], 0.0) + _NS * ns
            places[key] = PlaceWaits(
                *key,
                before.calls + ncalls,
                before.waited_s + _NS * waited,
                before.moved_s + _NS * moved,
                awaited,
            )
    run_s, on_core_s, taken_s, *in_blocking = _life[0].passed()
    ncalls, waited, moved, hidden = sums.tolist()
    computed_s, absent_s, taken_s = _outside(run_s, on_core_s, taken_s, _NS * (waited + moved), *in_blocking)
    waited_for, caused, inherited = (
        {rank: _NS * ns for rank, ns in enumerate(row) if ns} for row in by_rank[1:].tolist()
    )
    held_up = {rank: n for rank, n in enumerate(by_rank[0].tolist()) if n}
    return RankWaits(
        resources.rank,
        os.uname().nodename,
        run_s,
        ncalls,
        sum(one.uncompared for one in accounts),
        held_up,
        _NS * waited,
        _NS * moved,
        _NS * hidden,
        python_s,
        nbytes,
        waited_for,
        caused,
        inherited,
        taken_s,
        absent_s,
        computed_s,
        tuple(places.values()),
        _NS * max((one.least for one in accounts), default=0),
    )
