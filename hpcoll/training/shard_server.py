"""The server's side of a parameter server: it takes gradients from mailboxes, updates its shard and publishes versions of it.

It works in turns, which touch this rank's memory only. A rank gives its server turns while it waits for something itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcoll.training.optimizers import Optimizer
from hpcoll.training.shard_window import LostRank, Places, ShardWindow, State, WindowWord, WorkerWord, culprit
from hpcoll.training.shards import Shard

Array = NDArray[Any]
_AWAY_S = 1.0  # a server without a turn for longer could not notice signs of life, and blames no worker
SYNCHRONOUS = "synchronous"
ASYNCHRONOUS = "asynchronous"
BOUNDED = "bounded"


@dataclass
class Staleness:
    """Observed staleness: updates of a shard between the version that a gradient was computed from and the gradient's own update.

    Attributes:
        histogram: Number of gradients by staleness.
    """

    histogram: Counter[int] = field(default_factory=Counter)

    def add(self, observed: int) -> None:
        """Count a gradient."""
        self.histogram[observed] += 1

    @property
    def max(self) -> int:
        """The largest staleness; 0 without gradients."""
        return max(self.histogram, default=0)

    @property
    def mean(self) -> float:
        """The mean staleness; 0 without gradients."""
        count = self.histogram.total()
        return sum(value * times for value, times in self.histogram.items()) / count if count else 0.0


def keeps_bound(version: int, bases: Iterable[int], bound: int) -> bool:
    """Say whether gradients under way can be applied from ``version`` on, one after the other, none staler than ``bound``.

    The next update makes the version ``version + 1``. ``bases`` are the versions that the gradients are computed from; the best order,
    which is checked, is oldest first.
    """
    return all(version + turn - base <= bound for turn, base in enumerate(sorted(bases)))


class ShardServer:
    """The server of a rank, with the memory of its window, in which a shard has its places; whole ``parameters`` are its version 0.

    ``workers`` are in the order of their words. ``optimizer`` changes a piece of a parameter in place. ``mode`` is SYNCHRONOUS,
    ASYNCHRONOUS or BOUNDED, and ``bound`` the largest staleness of the latter. A worker that is silent for ``timeout`` seconds is given up.

    Attributes:
        staleness: Staleness of the applied gradients.
    """

    def __init__(
        self,
        window: ShardWindow,
        places: Places,
        shard: Shard,
        parameters: dict[str, Array],
        *,
        rank: int,
        workers: Sequence[int],
        optimizer: Optimizer,
        mode: str,
        bound: int,
        timeout: float,
    ) -> None:
        self._window = window
        self._shard = shard
        self._rank = rank
        self._workers = workers
        self._optimizer = optimizer
        self._mode = mode
        self._bound = bound
        self._timeout = timeout
        words = window.memory[: places.nwords * 8].view(np.int64)
        self._own = words[: len(WindowWord)]
        self._of = words[len(WindowWord) :].reshape(len(WorkerWord), len(workers))
        self._copies = [self._part(places.copy(version)) for version in (0, 1)]
        self._mailboxes = [self._part(places.mailbox(worker)) for worker in range(len(workers))]
        self._states: list[dict[str, Any]] = [{} for _ in shard.pieces]
        self._outstanding: dict[int, int] = {}  # worker -> version from which it computes a gradient
        self._asking: list[int] = []  # workers that wait for a pull, in order
        self._heard: dict[
            int, tuple[float, tuple[int, ...]]
        ] = {}  # worker -> time and words of its last sign of life
        self._last_turn = time.monotonic()
        self._own_worker = workers.index(rank) if rank in workers else -1
        self.staleness = Staleness()
        shard.pack(parameters, self._copies[0])
        window.fence()

    def _part(self, start: int) -> Array:
        return self._window.memory[start : start + self._shard.nbytes]

    @property
    def version(self) -> int:
        """The number of updates."""
        return int(self._own[WindowWord.DONE])

    @property
    def finished(self) -> bool:
        """All workers have left, and all their gradients are applied."""
        return not (self._of[WorkerWord.STATE] == State.ACTIVE).any() and not self._waiting()

    def stop(self, state: int) -> None:
        """Tell the workers that this server has stopped."""
        self._own[WindowWord.STATE] = state
        self._window.fence()

    def turn(self) -> bool:
        """Take a turn, and say whether it made an update.

        Where a worker of a synchronous training failed or was given up, the workers are told, and `LostRank` is raised.
        """
        self._window.sync()
        self._own[WindowWord.BEAT] += 1
        self._give_up_silent()
        before = self.version
        states = self._of[WorkerWord.STATE].copy()
        self._window.fence()  # gradients that a worker sent before it left are visible now
        try:
            if self._mode == SYNCHRONOUS:
                self._step(states)
            elif self._mode == ASYNCHRONOUS:
                for worker in self._waiting():
                    self._apply([worker])
            else:
                self._bounded(states)
        except Exception:
            self.stop(State.FAILED)  # also where an optimiser raises
            raise
        return self.version > before

    def _waiting(self) -> list[int]:
        """Return the workers with a gradient in their mailbox."""
        return [int(w) for w in np.flatnonzero(self._of[WorkerWord.SENT] > self._of[WorkerWord.TAKEN])]

    def _step(self, states: Array) -> None:
        """Make a synchronous update once all workers that have not left have sent gradients."""
        for rank, state in zip(self._workers, states.tolist()):
            if state >= State.FAILED:
                self._own[WindowWord.FAILED] = 1 + culprit(state, rank)
                raise lost_worker(self._rank, culprit(state, rank))
        waiting = self._waiting()
        if waiting and set(np.flatnonzero(states == State.ACTIVE)) <= set(waiting):
            self._apply(waiting)

    def _bounded(self, states: Array) -> None:
        """Make the updates and grant the pulls after which every gradient under way can still be within the bound."""
        waiting = self._waiting()
        for worker in [w for w in self._outstanding if states[w] != State.ACTIVE and w not in waiting]:
            del self._outstanding[worker]
        for worker in sorted(waiting, key=lambda w: self._outstanding.get(w, 0)):
            others = [base for other, base in self._outstanding.items() if other != worker]
            if keeps_bound(self.version + 1, others, self._bound):
                self._outstanding.pop(worker, None)
                self._apply([worker])
        asked = self._of[WorkerWord.ASKED]
        granted = self._of[WorkerWord.GRANTED]
        for worker in [int(w) for w in np.flatnonzero(asked > granted) if w not in self._asking]:
            self._asking.append(worker)
            if worker not in self._waiting():
                self._outstanding.pop(worker, None)  # it has dropped what it pulled before
        while self._asking and keeps_bound(
            self.version, [*self._outstanding.values(), self.version], self._bound
        ):
            if self._asking[0] in self._waiting():
                break  # until its gradient is applied, the version that it was computed from counts
            worker = self._asking.pop(0)
            if states[worker] == State.ACTIVE:
                self._outstanding[worker] = self.version
                granted[worker] = asked[worker]

    def _apply(self, workers: list[int]) -> None:
        """Publish a new version, by the mean of some workers' gradients, added in order, and free their mailboxes."""
        old, new = (self._copies[(self.version + i) % 2] for i in (0, 1))
        for worker in workers:
            self.staleness.add(self.version - int(self._of[WorkerWord.BASE, worker]))
        self._own[WindowWord.BEGUN] = step = self.version + 1
        self._window.fence()
        new[:] = old
        views = zip(
            self._states,
            self._shard.views(new),
            *(self._shard.views(self._mailboxes[worker]) for worker in workers),
        )
        for state, parameter, gradient, *more in views:
            for other in more:
                gradient += other
            if more:
                gradient /= parameter.dtype.type(len(workers))
            self._optimizer(parameter, gradient, state, step)
        self._window.fence()
        self._own[WindowWord.DONE] = step
        self._window.fence()
        self._of[WorkerWord.TAKEN, workers] = self._of[WorkerWord.SENT, workers]

    def _give_up_silent(self) -> None:
        """Mark workers as failed that have done nothing for longer than the timeout, while they waited for nothing here."""
        now = time.monotonic()
        away = now - self._last_turn
        self._last_turn = now
        if away > _AWAY_S:
            self._heard.clear()
        owed = set(self._waiting()) | set(self._asking)
        for worker in np.flatnonzero(self._of[WorkerWord.STATE] == State.ACTIVE).tolist():
            known = tuple(self._of[:, worker].tolist())
            when, before = self._heard.get(worker, (now, ()))
            if known != before or worker in owed or worker == self._own_worker:
                self._heard[worker] = now, known
            elif now - when > self._timeout:
                self._of[WorkerWord.STATE, worker] = State.FAILED


def lost_worker(rank: int, lost: int) -> LostRank:
    """Return the error of a synchronous step that lacks a worker."""
    text = f"rank {rank}: worker of rank {lost} is gone: it failed or was silent for over the timeout, and no step is without it"
    return LostRank(text, lost)
