"""`ParameterServer`: parameters in shards on server ranks, updated by gradients that workers push, over one-sided MPI.

A push is a Put, a pull a Get. Words beside them, written by Accumulate and read by Fetch_and_op, tell what has arrived, and its version.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.training.optimizers import SGD, Optimizer
from hpcoll.training.parameters import agree, check_like, check_nan, layouts_of, readable, writable
from hpcoll.training.shard_client import EAGER, NAP_S, ShardClient, ShardTraffic
from hpcoll.training.shard_server import ASYNCHRONOUS, BOUNDED, SYNCHRONOUS, ShardServer, Staleness
from hpcoll.training.shard_window import ABANDONED, LostRank, Places, ShardWindow, State, WindowWord, failed
from hpcoll.training.shards import cut_shards

_kept: list[Any] = []  # abandoned windows, which other ranks may still use


def _check_arguments(
    comm: MPI.Intracomm,
    servers: Sequence[int] | None,
    dedicated: bool,
    mode: str,
    staleness: int | None,
    timeout: float,
    optimizer: Any,
) -> None:
    """Refuse arguments that one rank can see to be wrong."""
    subject = f"rank {comm.rank}: ParameterServer"
    if servers is not None and (
        not servers or sorted(set(servers)) != sorted(servers) or not set(servers) <= set(range(comm.size))
    ):
        raise ArgumentError(f"{subject} needs distinct servers among {comm.size} ranks, got {servers}")
    if dedicated and (servers is None or len(servers) == comm.size):
        raise ArgumentError(
            f"{subject} with dedicated servers needs a rank that is none, got {servers} of {comm.size} ranks"
        )
    if mode not in (SYNCHRONOUS, ASYNCHRONOUS):
        raise ArgumentError(f"{subject} needs mode {SYNCHRONOUS!r} or {ASYNCHRONOUS!r}, got {mode!r}")
    if staleness is not None and (mode != ASYNCHRONOUS or not isinstance(staleness, int) or staleness < 0):
        raise ArgumentError(
            f"{subject} needs staleness >= 0 and mode {ASYNCHRONOUS!r} for it, got {staleness!r} and {mode!r}"
        )
    if not timeout > 0:
        raise ArgumentError(f"{subject} needs a timeout > 0 s, got {timeout}")
    if not callable(optimizer):
        raise ArgumentError(f"{subject} needs an optimizer that can be called, got {optimizer!r}")


class ParameterServer:
    """Parameters in shards on server ranks, updated by gradients of workers.

    All ranks of the communicator make it, with equal arguments. As a context manager it ends with `close`, or after an exception by
    leaving as failed, without waiting.

        with hpcoll.ParameterServer(comm, parameters, optimizer=SGD(0.1)) as server:
            for batch in batches:
                server.pull(parameters)
                server.push(gradients(batch, parameters))

    Args:
        comm: Communicator whose ranks are servers, workers or both; an mpi4py intracommunicator or an `hpcoll.Communicator`.
        parameters: Arrays of floating-point numbers by name, in host or GPU memory, alike on all ranks. Rank 0's values count.
        servers: Ranks that keep a shard each; None: all.
        dedicated: Only the other ranks are workers. Else all ranks are, and a server serves whenever its rank calls a method here.
        optimizer: ``optimizer(parameter, gradient, state, step)``, which changes a parameter in place (`hpcoll.training.optimizers`).
        mode: ``"synchronous"``: each update uses the mean of all workers' gradients, and `pull` waits for it. ``"asynchronous"``: each
            gradient is an update.
        staleness: Largest number of updates, ``>= 0``, of a shard between the version that a gradient was computed from and its own
            update; None: any. Only for ``"asynchronous"``. `pull` waits where it must, and each `push` needs a `pull` before it.
        timeout: Seconds, ``> 0``, after which a rank is given up that is waited for and gives no sign of life.
        split: Cut parameters so that shards are equal. Else each is whole on one server, for optimisers that need that.
        check_nan: Refuse gradients with NaN.

    Attributes:
        rank: This rank in ``comm``.
        workers: Ranks of the workers.
        servers: Ranks of the servers.
        traffic: Calls and bytes of this rank as a worker.

    Raises:
        ArgumentError: on all ranks; names the argument or parameter, and the rank on which it is wrong or differs.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        parameters: Mapping[str, Any],
        *,
        servers: Sequence[int] | None = None,
        dedicated: bool = False,
        optimizer: Optimizer = SGD(0.01),  # noqa: B008
        mode: str = SYNCHRONOUS,
        staleness: int | None = None,
        timeout: float = 300.0,
        split: bool = True,
        check_nan: bool = False,
    ) -> None:
        comm = MPI.Intracomm(comm)
        wrong = ""
        arrays = {}
        try:
            _check_arguments(comm, servers, dedicated, mode, staleness, timeout, optimizer)
            arrays = readable(parameters, "value", comm.rank)
        except ArgumentError as error:
            wrong = str(error)
        layouts = layouts_of(arrays)
        facts = dict(dedicated=dedicated, mode=mode, staleness=staleness, split=split)
        agree(comm, wrong, {"servers": servers and list(servers)} | facts, layouts)
        self._comm = comm.Dup()
        self.rank = comm.rank
        self._layouts = layouts
        self.servers = list(range(comm.size)) if servers is None else list(servers)
        self.workers = [rank for rank in range(comm.size) if not (dedicated and rank in self.servers)]
        self._mode = mode if staleness is None else BOUNDED
        self._timeout = timeout
        self._check_nan = check_nan
        self._shards = dict(zip(self.servers, cut_shards(layouts, len(self.servers), split=split)))
        places = {rank: Places(len(self.workers), shard.nbytes) for rank, shard in self._shards.items()}
        self._pulled = self._left = False
        values = {name: comm.bcast(array) for name, array in arrays.items()}
        self._window = ShardWindow(self._comm, places)
        self._server: ShardServer | None = None
        self._client: ShardClient | None = None
        who: dict[str, Any] = {"rank": self.rank, "workers": self.workers, "timeout": timeout}
        if self.rank in self.servers:
            self._server = ShardServer(
                self._window,
                places[self.rank],
                self._shards[self.rank],
                values,
                optimizer=optimizer,
                mode=self._mode,
                bound=staleness or 0,
                **who,
            )
        if self.rank in self.workers:
            self._client = ShardClient(self._window, self._shards, server=self._server, **who)
        self.traffic = self._client.traffic if self._client else ShardTraffic()
        self._comm.Barrier()

    def __repr__(self) -> str:
        roles = [
            name for name, ranks in (("worker", self.workers), ("server", self.servers)) if self.rank in ranks
        ]
        return f"<hpcoll.ParameterServer: {self._mode}, rank {self.rank} is {' and '.join(roles)}>"

    @property
    def staleness(self) -> Staleness:
        """Staleness of the gradients that this rank's server has applied; empty on ranks without a server."""
        return self._server.staleness if self._server else Staleness()

    @property
    def versions(self) -> dict[int, int]:
        """Version of each server's shard, by rank, that this worker's last pull or read returned; empty on ranks without a worker."""
        return dict(self._client.bases) if self._client else {}

    @property
    def nbytes_per_step(self) -> int:
        """Bytes that a push and a pull of this worker move to and from other ranks: twice all shards but its own."""
        return 2 * sum(shard.payload for rank, shard in self._shards.items() if rank != self.rank)

    # --- workers

    def push(self, gradients: Mapping[str, Any]) -> None:
        """Send the gradient of every parameter, as a worker.

        On return the arrays may be changed; the update may still be to come.

        Args:
            gradients: Arrays with the parameters' names, shapes and element types, in host or GPU memory.

        Raises:
            ArgumentError: on this rank alone, before anything is sent; names the parameter.
            TransportError: a server is gone, or a worker that a synchronous update needs; its ``rank`` is the lost one.
        """
        client = self._client_for("push")
        arrays = readable(gradients, "gradient", self.rank)
        check_like(arrays, self._layouts, "gradient", self.rank)
        if self._check_nan:
            check_nan(arrays, self.rank)
        if self._mode == BOUNDED and not self._pulled:
            raise ArgumentError(
                f"rank {self.rank}: push with bounded staleness needs a pull since the push before it"
            )
        client.push(arrays)
        self._pulled = False

    def pull(self, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Get the parameters for computing the next gradient, as a worker: a whole version of every shard.

        It waits for the update by this worker's last push. With bounded staleness it waits until all gradients under way are safe, and
        servers then wait for this worker's gradient; so a `push` must follow, or `leave`. Use `read` for a mere look.

        Args:
            into: Arrays with the parameters' names, shapes and element types, which are overwritten; None: new ones in host memory.

        Returns:
            The arrays, by name.

        Raises:
            ArgumentError: as `push`.
            TransportError: as `push`.
        """
        return self._pull(into, promise=True)

    def read(self, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Get the parameters as `pull`, without promising a gradient; waits only in synchronous mode, and nobody waits for this rank.

        Args:
            into: As of `pull`.

        Returns:
            The arrays, by name.
        """
        return self._pull(into, promise=False)

    def _pull(self, into: Mapping[str, Any] | None, *, promise: bool) -> dict[str, Any]:
        client = self._client_for("pull")
        given = (
            into
            if into is not None
            else {layout.name: np.empty(layout.shape, layout.dtype) for layout in self._layouts}
        )
        arrays, store = writable(given, self.rank)
        check_like(arrays, self._layouts, "array to pull to", self.rank)
        client.pull(
            arrays, granted=promise and self._mode == BOUNDED, applied=promise or self._mode == SYNCHRONOUS
        )
        self._pulled |= promise
        store()
        return dict(given)

    def barrier(self) -> None:
        """Wait until all workers that have not left are here and their gradients are applied; servers of these ranks serve meanwhile."""
        self._client_for("barrier").barrier()

    def _client_for(self, call: str) -> ShardClient:
        """Return this rank's worker; raise where there is none."""
        if self._left:
            raise ArgumentError(
                f"rank {self.rank}: {call} needs a parameter server that this rank has not left"
            )
        if self._client is None:
            raise ArgumentError(
                f"rank {self.rank}: {call} is for workers, which are ranks {self.workers}; this one only serves"
            )
        return self._client

    # --- servers, and the end

    def serve(self) -> None:
        """Serve until all workers have left; return at once on ranks without a server.

        Raises:
            TransportError: a worker that a synchronous update needs failed or was given up; its ``rank`` is that worker's.
        """
        turns = 0
        while self._server and not self._server.finished:
            turns = 0 if self._server.turn() else turns + 1
            time.sleep(NAP_S if turns > EAGER else 0)

    def leave(self) -> None:
        """Leave without waiting; the window's memory is then never freed. A second call does nothing.

        Synchronous workers go on without this one, unless it leaves by an exception out of the ``with`` block. Workers whose server has
        left raise `TransportError`.
        """
        self._leave(State.LEFT)

    def _leave(self, state: int) -> None:
        if not self._left:
            self._go(state)
            if self._server:
                self._server.stop(state)
            self._abandon()

    def _abandon(self) -> None:
        """Leave the window to the other ranks, which then do not free it."""
        self._window.add(*self._closed, ABANDONED)
        _kept.append((self._window, self._comm))

    def close(self) -> None:
        """Leave, serve until all workers have left, and free the window if all ranks close within the timeout.

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
        """Tell all servers that this rank's worker, if there is one, leaves."""
        self._left = True
        if self._client:
            self._client.leave(state)

    @property
    def _closed(self) -> tuple[int, WindowWord]:
        """The word by which all ranks decide whether to free the window, and its server."""
        return self.servers[0], WindowWord.CLOSED

    def _all_closed(self) -> bool:
        """Say whether all ranks are ready to free the window; one word decides, so all ranks get the same answer."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._leave(failed(error.rank if isinstance(error, LostRank) else -1))
