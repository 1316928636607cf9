"""A server's side of a parameter server: it takes gradients from mailboxes, updates its shard and publishes versions of it.

All of it happens in turns that touch this rank's own memory alone; whoever waits for something gives that rank's server its turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcoll.training.optimizers import Optimizer
from hpcoll.training.shard_window import LostRank, Places, ShardWindow, State, WindowWord, WorkerWord, culprit
from hpcoll.training.shards import Shard
from hpcoll.training.staleness import Staleness, keeps_bound

Array = NDArray[Any]
_AWAY_S = 1.0  # a server that had no turn for so long heard nobody, and holds that against nobody
SYNCHRONOUS, ASYNCHRONOUS, BOUNDED = "synchronous", "asynchronous", "bounded"


class ShardServer:
    """The server of one rank.

    Args:
        window, places, shard: Its memory, what lies where in it, and which elements of which parameters these are.
        rank: Of this process; ``workers``: ranks of the workers, in the order of their words.
        optimizer: Changes a piece of a parameter in place.
        mode: SYNCHRONOUS, ASYNCHRONOUS or BOUNDED; ``bound``: then the largest staleness, in updates.
        timeout: Seconds after which a silent worker is given up.

    Attributes:
        staleness: Of the gradients that were applied.
    """

    def __init__(
        self, window: ShardWindow, places: Places, shard: Shard, *, rank: int, workers: Sequence[int],
        optimizer: Optimizer, mode: str, bound: int, timeout: float,
    ) -> None:  # fmt: skip
        self._window, self._shard, self._rank, self._workers = window, shard, rank, workers
        self._optimizer, self._mode, self._bound, self._timeout = optimizer, mode, bound, timeout
        words = window.memory[: places.nwords * 8].view(np.int64)
        self._own, self._of = words[: len(WindowWord)], words[len(WindowWord) :].reshape(len(WorkerWord), len(workers))
        self._copies = [self._part(places.copy(version)) for version in (0, 1)]
        self._mailboxes = [self._part(places.mailbox(worker)) for worker in range(len(workers))]
        self._states: list[dict[str, Any]] = [{} for _ in shard.pieces]
        self._outstanding: dict[int, int] = {}  # worker -> version that it computes a gradient from
        self._asking: list[int] = []  # workers that wait for a pull, in order
        self._heard: dict[int, tuple[float, tuple[int, ...]]] = {}  # worker -> when it last did something, and what was known of it then
        self._last_turn = time.monotonic()
        self.staleness = Staleness()

    def _part(self, start: int) -> Array:
        return self._window.memory[start : start + self._shard.nbytes]

    def publish_initial(self, parameters: dict[str, Array]) -> None:
        """Make version 0 of whole, flat or shaped, parameters."""
        self._shard.pack(parameters, self._copies[0])

    @property
    def version(self) -> int:
        """Updates so far."""
        return int(self._own[WindowWord.DONE])

    @property
    def finished(self) -> bool:
        """Whether all workers have left and all their gradients are applied."""
        return not (self._of[WorkerWord.STATE] == State.ACTIVE).any() and not self._waiting()

    def stop(self, state: int) -> None:
        """Tell the workers that nobody serves here any more."""
        self._own[WindowWord.STATE] = state
        self._window.fence()

    def turn(self) -> bool:
        """Do what there is to do; whether there was anything.

        Raises:
            LostRank: synchronous, and a worker failed or was given up. The workers are told.
        """
        self._window.sync()
        self._own[WindowWord.BEAT] += 1
        self._give_up_silent()
        before = self.version
        states = self._of[WorkerWord.STATE].copy()
        self._window.fence()  # whoever has left has sent before
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
        """Workers whose gradient lies in their mailbox."""
        return [int(w) for w in np.flatnonzero(self._of[WorkerWord.SENT] > self._of[WorkerWord.TAKEN])]

    def _step(self, states: Array) -> None:
        """One synchronous update, when everyone who has not left has sent."""
        for rank, state in zip(self._workers, states.tolist(), strict=True):
            if state >= State.FAILED:
                self._own[WindowWord.FAILED] = 1 + culprit(state, rank)
                raise lost_worker(self._rank, culprit(state, rank))
        waiting = self._waiting()
        if waiting and set(np.flatnonzero(states == State.ACTIVE)) <= set(waiting):
            self._apply(waiting)

    def _bounded(self, states: Array) -> None:
        """Updates and pulls that leave every gradient on its way a chance to be within the bound."""
        waiting = self._waiting()
        for worker in [w for w in self._outstanding if states[w] != State.ACTIVE and w not in waiting]:
            del self._outstanding[worker]
        for worker in sorted(waiting, key=lambda w: self._outstanding.get(w, 0)):
            others = [base for other, base in self._outstanding.items() if other != worker]
            if keeps_bound(self.version + 1, others, self._bound):
                self._outstanding.pop(worker, None)
                self._apply([worker])
        asked, granted = self._of[WorkerWord.ASKED], self._of[WorkerWord.GRANTED]
        for worker in [int(w) for w in np.flatnonzero(asked > granted) if w not in self._asking]:
            self._asking.append(worker)
            if worker not in self._waiting():
                self._outstanding.pop(worker, None)  # it has dropped what it pulled before
        while self._asking and keeps_bound(self.version, [*self._outstanding.values(), self.version], self._bound):
            if self._asking[0] in self._waiting():
                break  # until its gradient is applied, the version that it was computed from counts
            worker = self._asking.pop(0)
            if states[worker] == State.ACTIVE:
                self._outstanding[worker] = self.version
                granted[worker] = asked[worker]

    def _apply(self, workers: list[int]) -> None:
        """Update by the mean of some workers' gradients, added in the order of workers: a new version, and their mailboxes are free."""
        old, new = (self._copies[(self.version + i) % 2] for i in (0, 1))
        for worker in workers:
            self.staleness.add(self.version - int(self._of[WorkerWord.BASE, worker]))
        self._own[WindowWord.BEGUN] = step = self.version + 1
        self._window.fence()
        new[:] = old
        views = zip(self._states, self._shard.views(new), *(self._shard.views(self._mailboxes[worker]) for worker in workers), strict=True)
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
        """Note as failed whoever has done nothing for too long, though nothing was owed to it."""
        now = time.monotonic()
        away, self._last_turn = now - self._last_turn, now
        if away > _AWAY_S:
            self._heard.clear()
        owed = set(self._waiting()) | set(self._asking)
        for worker in np.flatnonzero(self._of[WorkerWord.STATE] == State.ACTIVE).tolist():
            known = tuple(self._of[:, worker].tolist())
            when, before = self._heard.get(worker, (now, ()))
            if known != before or worker in owed or worker == self._own_worker():
                self._heard[worker] = now, known
            elif now - when > self._timeout:
                self._of[WorkerWord.STATE, worker] = State.FAILED

    def _own_worker(self) -> int:
        return self._workers.index(self._rank) if self._rank in self._workers else -1


def lost_worker(rank: int, lost: int) -> LostRank:
    """The error of a synchronous step that cannot be done without a worker."""
    text = f"rank {rank}: worker of rank {lost} is gone: it failed or was silent for over the timeout, and no step is without it"
    return LostRank(text, lost)
