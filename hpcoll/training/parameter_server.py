"""`ParameterServer`: parameters in shards on some ranks, to which workers push gradients and from which they pull, by one-sided MPI.

Pushes are Put, pulls are Get; words beside them, written by Accumulate and read by Fetch_and_op, say what is there, of which version.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcoll.base.errors import ArgumentError
from hpcoll.training.agreement import agree
from hpcoll.training.arguments import check_arguments
from hpcoll.training.host_arrays import check_like, check_nan, layouts_of, readable, writable
from hpcoll.training.optimizers import SGD, Optimizer
from hpcoll.training.shard_client import EAGER, NAP_S, ShardClient, ShardTraffic
from hpcoll.training.shard_server import BOUNDED, SYNCHRONOUS, ShardServer
from hpcoll.training.shard_window import ABANDONED, LostRank, Places, ShardWindow, State, WindowWord, failed
from hpcoll.training.shards import Shard, cut_shards
from hpcoll.training.staleness import Staleness

Array = NDArray[Any]
_kept: list[Any] = []  # windows that were abandoned: other ranks may still use them


class ParameterServer:
    """Parameters in shards on server ranks, updated by gradients of workers. Made collectively.

    Args:
        comm: Its ranks are servers, workers or both.
        parameters: Arrays of floating-point numbers by name, alike on all ranks; the values are those of rank 0.
        servers: Ranks that keep a shard each; None: all.
        dedicated: The other ranks are the workers; without it all ranks are, and servers serve whenever they call anything here.
        optimizer: Changes ``parameter`` in place: ``optimizer(parameter, gradient, state, step)``, see `hpcoll.training.optimizers`.
        mode: ``"synchronous"``: an update by the mean of all workers' gradients, for which `pull` waits. ``"asynchronous"``: an update
            by each gradient as it comes.
        staleness: Asynchronous, but a gradient comes at most so many updates of each shard after the version that it was computed
            from, ``>= 0``; `pull` waits where it must, and each `push` needs a `pull` of its own before it.
        timeout: Seconds, ``> 0``: whoever shows no sign of life for so long while it is waited for is given up.
        split: Cut parameters to make shards equal. Without it each is whole on one server, for optimisers that need that.
        check_nan: Refuse gradients with NaN.

    Raises:
        ArgumentError: on all ranks, with the argument or parameter and the rank that is wrong or differs.

    Attributes:
        workers, servers: Ranks.
        traffic: Of this rank as a worker.

    As a context manager it ends with `close`, and with an exception as failed, without waiting.
    """

    def __init__(
        self, comm: MPI.Intracomm, parameters: Mapping[str, Any], *, servers: Sequence[int] | None = None, dedicated: bool = False,
        optimizer: Optimizer = SGD(0.01), mode: str = SYNCHRONOUS, staleness: int | None = None, timeout: float = 300.0,  # noqa: B008
        split: bool = True, check_nan: bool = False,
    ) -> None:  # fmt: skip
        comm = MPI.Intracomm(comm)
        wrong, arrays = "", {}
        try:
            check_arguments(comm, servers, dedicated, mode, staleness, timeout, optimizer)
            arrays = readable(parameters, "value", comm.rank)
        except ArgumentError as error:
            wrong = str(error)
        layouts = layouts_of(arrays)
        facts = {"servers": servers and list(servers), "dedicated": dedicated, "mode": mode, "staleness": staleness, "split": split}
        agree(comm, wrong, facts, layouts)
        self._comm = comm.Dup()
        self.rank, self._layouts = comm.rank, layouts
        self.servers = list(range(comm.size)) if servers is None else list(servers)
        self.workers = [rank for rank in range(comm.size) if not (dedicated and rank in self.servers)]
        self._mode, self._timeout, self._check_nan = mode if staleness is None else BOUNDED, timeout, check_nan
        self._shards: dict[int, Shard] = dict(zip(self.servers, cut_shards(layouts, len(self.servers), split=split)))
        self._places = {rank: Places(len(self.workers), shard.nbytes) for rank, shard in self._shards.items()}
        self._pulled = self._left = False
        values = {name: comm.bcast(array) for name, array in arrays.items()}
        self._window = ShardWindow(self._comm, self._places)
        self._server = self._make_server(optimizer, staleness or 0, values)
        self._client = self._make_client()
        self.traffic = self._client.traffic if self._client else ShardTraffic()
        self._comm.Barrier()

    def _make_server(self, optimizer: Optimizer, bound: int, values: dict[str, Array]) -> ShardServer | None:
        """The server of this rank, if it has one, with version 0."""
        if self.rank not in self.servers:
            return None
        server = ShardServer(
            self._window, self._places[self.rank], self._shards[self.rank], rank=self.rank, workers=self.workers,
            optimizer=optimizer, mode=self._mode, bound=bound, timeout=self._timeout,
        )  # fmt: skip
        server.publish_initial(values)
        self._window.fence()
        return server

    def _make_client(self) -> ShardClient | None:
        """The worker of this rank, if it has one."""
        if self.rank not in self.workers:
            return None
        return ShardClient(
            self._window, self._places, self._shards, rank=self.rank, workers=self.workers, server=self._server, timeout=self._timeout
        )

    @property
    def staleness(self) -> Staleness:
        """Of the gradients that this rank's shard was updated by, counted by the server; empty on ranks without one."""
        return self._server.staleness if self._server else Staleness()

    @property
    def versions(self) -> dict[int, int]:
        """Updates of each server's shard that this worker's last pull has seen, by the server's rank."""
        return dict(self._client.bases) if self._client else {}

    @property
    def nbytes_per_step(self) -> int:
        """Bytes that one push and one pull of this worker move to and from other ranks: twice all shards but its own."""
        return 2 * sum(shard.payload for rank, shard in self._shards.items() if rank != self.rank)

    # --- workers

    def push(self, gradients: Mapping[str, Any]) -> None:
        """Send the gradient of every parameter; on return the arrays may be changed, and the update may still be to come.

        Args:
            gradients: Arrays of the parameters' names, shapes and element types, in host or GPU memory.

        Raises:
            ArgumentError: not on all ranks, and before anything is sent: names the parameter, this rank and what is wrong.
            TransportError: a server or, synchronous, a worker is gone; with its rank.
        """
        client = self._client_for("push")
        arrays = readable(gradients, "gradient", self.rank)
        check_like(layouts_of(arrays), self._layouts, "gradient", self.rank)
        if self._check_nan:
            check_nan(arrays, self.rank)
        if self._mode == BOUNDED and not self._pulled:
            raise ArgumentError(f"rank {self.rank}: push with bounded staleness needs a pull since the push before it")
        client.push(arrays)
        self._pulled = False

    def pull(self, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Parameters to compute the next gradient from: a whole version of every shard.

        After the update by this worker's last push. Bounded: once the staleness of all gradients on their way is safe;
        this worker is then waited for, so a gradient must follow, or `leave`. What is only looked at is better had by `read`.

        Args:
            into: Arrays of the parameters' names, shapes and element types, to be overwritten; None: new ones in host memory.

        Returns:
            The arrays, by name.

        Raises:
            ArgumentError, TransportError: as `push`.
        """
        return self._pull(into, promise=True)

    def read(self, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As `pull`, but without a promise of a gradient: waits for nothing, unless synchronous, nor makes anyone wait."""
        return self._pull(into, promise=False)

    def _pull(self, into: Mapping[str, Any] | None, *, promise: bool) -> dict[str, Any]:
        client = self._client_for("pull")
        given = into if into is not None else {one.name: np.empty(one.shape, one.dtype) for one in self._layouts}
        arrays, store = writable(given, self.rank)
        check_like(layouts_of(arrays), self._layouts, "array to pull to", self.rank)
        client.pull(arrays, granted=promise and self._mode == BOUNDED, applied=promise or self._mode == SYNCHRONOUS)
        self._pulled = self._pulled or promise
        store()
        return dict(given)

    def barrier(self) -> None:
        """Wait until all workers that have not left are here and what they pushed is applied; servers of these ranks serve meanwhile."""
        self._client_for("barrier").barrier()

    def _client_for(self, call: str) -> ShardClient:
        """This rank's worker; raises where there is none."""
        if self._left:
            raise ArgumentError(f"rank {self.rank}: {call} needs a parameter server that this rank has not left")
        if self._client is None:
            raise ArgumentError(f"rank {self.rank}: {call} is for workers, which are ranks {self.workers}; this one only serves")
        return self._client

    # --- servers, and the end

    def serve(self) -> None:
        """Serve until all workers have left; returns at once on ranks without a shard.

        Raises:
            TransportError: synchronous, and a worker failed or was given up; with its rank.
        """
        turns = 0
        while self._server and not self._server.finished:
            turns = 0 if self._server.turn() else turns + 1
            time.sleep(NAP_S if turns > EAGER else 0)

    def leave(self) -> None:
        """Leave without waiting for anyone, whose memory is then never freed; a second call does nothing.

        Synchronous workers go on without this one. A worker whose server has left cannot, nor can synchronous
        ones when this rank leaves by an exception out of the ``with`` block.
        """
        self._leave(State.LEFT)

    def _leave(self, state: int) -> None:
        if not self._left:
            self._go(state)
            if self._server:
                self._server.stop(state)
            self._abandon()

    def _abandon(self) -> None:
        """Leave the window to the other ranks, none of which then frees it."""
        self._window.add(*self._closed, ABANDONED)
        _kept.append((self._window, self._comm))

    def close(self) -> None:
        """Leave, serve until all workers have left, and free the memory where all ranks come here within the timeout.

        Raises:
            TransportError: as `serve`.
        """
        if self._left:
            return
        self._go(State.LEFT)
        try:
            self.serve()
        except BaseException:
            self._abandon()
            raise
        if self._server:
            self._server.stop(State.LEFT)
        if self._all_closed():
            self._window.free()
            self._comm.Free()
        else:
            _kept.append((self._window, self._comm))

    def _go(self, state: int) -> None:
        """Tell all servers that this rank's worker, if it has one, is gone."""
        self._left = True
        if self._client:
            self._client.leave(state)

    @property
    def _closed(self) -> tuple[int, int]:
        """Rank and displacement of the word that decides whether the window is freed."""
        return self.servers[0], self._places[self.servers[0]].word(WindowWord.CLOSED)

    def _all_closed(self) -> bool:
        """Whether all ranks are ready to free the window; the same on all, since one word decides."""
        self._window.add(*self._closed, 1)
        end = time.monotonic() + self._timeout
        while (count := self._window.read(*self._closed)) < self._comm.size:
            if time.monotonic() > end and self._window.exchange(*self._closed, count, count + ABANDONED):
                return False
            self._window.sync()
            time.sleep(NAP_S)
        return count == self._comm.size

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._leave(failed(error.rank if isinstance(error, LostRank) else -1))
