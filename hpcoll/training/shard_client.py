"""The worker's side of a parameter server: it writes gradients to the servers' mailboxes, reads whole versions, and never hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcoll.training.shard_server import ShardServer, lost_worker
from hpcoll.training.shard_window import LostRank, ShardWindow, State, WindowWord, WorkerWord, culprit
from hpcoll.training.shards import Shard

Array = NDArray[Any]
NAP_S, EAGER = 5e-5, 50  # pause between reads of a word, after the first reads without one
_CHECK_S = 0.02  # between checks of the server


@dataclass
class ShardTraffic:
    """The calls of a worker, and the bytes that it moved to and from servers of other ranks."""

    pushes: int = 0
    pulls: int = 0  # and reads
    pushed: int = 0  # bytes of gradients
    pulled: int = 0  # bytes of parameters
    torn: int = 0  # reads that it repeated because the server had begun to overwrite the version


class ShardClient:
    """The worker of a rank, with the shards of each server, by rank.

    ``workers`` are in the order of their words. The server of this rank, if it has one, gets turns while the worker waits. A server that is
    silent for ``timeout`` seconds is given up.

    Attributes:
        bases: Version of each server's shard that was read last, by rank.
    """

    def __init__(
        self,
        window: ShardWindow,
        shards: dict[int, Shard],
        *,
        rank: int,
        workers: Sequence[int],
        server: ShardServer | None,
        timeout: float,
    ) -> None:
        self._window = window
        self._shards = shards
        self._rank = rank
        self._nworkers = len(workers)
        self._worker = workers.index(rank)
        self._server = server
        self._timeout = timeout
        self._scratch = {number: np.zeros(shard.nbytes, np.uint8) for number, shard in shards.items()}
        self._pushed = self._asked = self._met = 0
        self.traffic = ShardTraffic()
        self.bases = dict.fromkeys(shards, 0)

    def push(self, gradients: dict[str, Array]) -> None:
        """Put gradients into the mailboxes, each as soon as the one before is applied."""
        for server, shard in self._shards.items():
            self._wait(server, WorkerWord.TAKEN, self._pushed)
            shard.pack(gradients, self._scratch[server])
            self._window.put(server, self._worker, self._scratch[server])
            self._write(server, WorkerWord.BASE, self.bases[server])
            self._write(server, WorkerWord.SENT, self._pushed + 1)
            self.traffic.pushed += shard.payload * (server != self._rank)
        self._pushed += 1
        self.traffic.pushes += 1
        self.serve()

    def pull(self, parameters: dict[str, Array], *, granted: bool, applied: bool) -> None:
        """Read a whole version of every shard into contiguous arrays.

        ``granted``: wait until the server grants the read; ``applied``: wait until this worker's gradients are applied.
        """
        self._asked += 1
        # in one order on all ranks, else two could wait for each other
        for server, shard in self._shards.items():
            if granted:
                self._write(server, WorkerWord.ASKED, self._asked)
                self._wait(server, WorkerWord.GRANTED, self._asked)
            else:
                self._write(server, WorkerWord.READ, self._asked)
                self._wait(server, WorkerWord.TAKEN, self._pushed if applied else 0)
            self.bases[server] = self._get_whole(server)
            shard.unpack(self._scratch[server], parameters)
            self.traffic.pulled += shard.payload * (server != self._rank)
        self.traffic.pulls += 1
        self.serve()

    def _get_whole(self, server: int) -> int:
        """Read a version of a shard, again if the server has meanwhile begun to overwrite it; return the version."""
        while True:
            version = self._window.read(server, WindowWord.DONE)
            self._window.get(server, version, self._scratch[server])
            if self._window.read(server, WindowWord.BEGUN) <= version + 1:
                return version
            self.traffic.torn += 1

    def barrier(self) -> None:
        """Wait until all workers that have not left are here and their gradients are applied."""
        for server in self._shards:
            self._wait(server, WorkerWord.TAKEN, self._pushed)
        self._met += 1
        first = next(iter(self._shards))
        self._write(first, WorkerWord.MET, self._met)
        for worker in range(self._nworkers):
            self._until(first, partial(self._has_come, first, worker))

    def _has_come(self, first: int, worker: int) -> bool:
        """Say whether a worker is at the barrier or has left."""
        if self._window.read(first, WorkerWord.MET, worker) >= self._met:
            return True
        return self._window.read(first, WorkerWord.STATE, worker) != State.ACTIVE

    def leave(self, state: int) -> None:
        """Tell all servers that this worker leaves."""
        for server in self._shards:
            self._write(server, WorkerWord.STATE, state)

    def _write(self, server: int, word: WorkerWord, value: int) -> None:
        """Write a word of this worker."""
        self._window.write(server, word, self._worker, value)

    def _wait(self, server: int, word: WorkerWord, value: int) -> None:
        """Wait until a word of this worker has reached a value."""
        self._check_alive(server)
        self._until(server, lambda: self._window.read(server, word, self._worker) >= value)

    def _until(self, server: int, done: Callable[[], bool]) -> None:
        """Wait for a server, and serve meanwhile; `LostRank` where a rank that is waited for is gone."""
        turns = 0
        beat = -1
        looked = time.monotonic()
        heard = looked
        while not done():
            busy = self.serve()
            turns = turns + 1
            now = time.monotonic()
            if now - looked > _CHECK_S:
                looked = now
                self._check_alive(server)
                before = beat
                beat = self._window.read(server, WindowWord.BEAT)
                heard = now if beat != before else heard
                if now - heard > self._timeout:
                    raise LostRank(
                        f"rank {self._rank}: server of rank {server} has done nothing for {self._timeout:g} s",
                        server,
                    )
            if not busy:
                time.sleep(NAP_S if turns > EAGER else 0)

    def _check_alive(self, server: int) -> None:
        """Raise `LostRank` if a server is gone, or has given up this worker or one that a synchronous step needs."""
        if self._window.read(server, WorkerWord.STATE, self._worker) == State.FAILED:
            text = f"rank {self._rank}: server of rank {server} gave this worker up: silent for over {self._timeout:g} s"
            raise LostRank(text, self._rank)
        lost = self._window.read(server, WindowWord.FAILED)
        if lost:
            raise lost_worker(self._rank, lost - 1)
        state = self._window.read(server, WindowWord.STATE)
        if state != State.ACTIVE:
            first = culprit(state, server)
            because = f", because rank {first} is gone" if first != server else ""
            raise LostRank(f"rank {self._rank}: server of rank {server} has left{because}", first)

    def serve(self) -> bool:
        """Give this rank's server, if there is one, a turn; say whether it made an update."""
        return self._server is not None and self._server.turn()
