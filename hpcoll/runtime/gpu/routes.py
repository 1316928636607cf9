"""Routes of arrays in GPU memory: CUDA IPC and pinned shared memory on a node, MPI from GPU or from pinned memory elsewhere."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from hpcoll.runtime.program.chunks import Pieces, spans_of
from hpcoll.runtime.program.items import InPlace, Items
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.program.route import Routes
from hpcoll.runtime.transports.host_routes import MpiRoute, RingRoute
from hpcoll.schedules.ir import Buffer


class IpcRoute(RingRoute):
    """Peers map this rank's memory, and read messages there or in a copy in SCRATCH.

    A message in memory that is overwritten behind it makes the lane wait for the reader there. A put is written by its sender's GPU.
    ``exported`` says whether INPUT and OUTPUT may be mapped; SCRATCH always may.
    """

    name: ClassVar[str] = "ipc"
    text: ClassVar[str] = "read them in place (CUDA IPC)"

    def __init__(self, exported: tuple[bool, bool], puts: bool, peer: int) -> None:
        super().__init__(peer)
        self._exported, self.puts = exported, puts

    def send(self, items: Items, pieces: Pieces) -> None:
        """Lend pieces, or a copy."""
        items.lend(self.peer, pieces, readable=self._is_mapped(pieces))

    def destination(self, items: Items, pieces: Pieces) -> Pieces:
        """Await the receiver's memory for a put."""
        return items.await_message(self.peer, pieces)

    def receive_put(self, items: Items, pieces: Pieces) -> None:
        """Grant pieces to the sender, or room from which they are copied."""
        room = pieces if self._is_mapped(pieces) else items.room(pieces)
        items.grant(self.peer, room)
        items.copy(pieces, room)

    def _is_mapped(self, pieces: Pieces) -> bool:
        """Say whether the peer reaches pieces where they are, as one piece."""
        buffer = pieces[0][1].buffer
        return len(spans_of(pieces)) == 1 and (buffer == Buffer.SCRATCH or self._exported[buffer])


class PinnedRingRoute(RingRoute):
    """Messages are staged in shared memory that GPUs write and read; none travels inside a ring slot."""

    name: ClassVar[str] = "staged"
    text: ClassVar[str] = "get them through pinned memory"

    def send(self, items: Items, pieces: Pieces) -> None:
        """Post a staged copy of pieces."""
        staged, name = items.staged(pieces, InPlace.NEVER)
        items.post(self.peer, staged, [name], staged_displ=staged.displ)


class CudaAwareRoute(MpiRoute):
    """Messages of an MPI library that takes addresses of GPU memory."""

    name: ClassVar[str] = "direct"
    text: ClassVar[str] = "get them by MPI from GPU memory"


class PinnedMpiRoute(MpiRoute):
    """Messages leave from and land in pinned host memory, because the MPI library takes no addresses of GPU memory."""

    name: ClassVar[str] = "staged"
    text: ClassVar[str] = "get them by MPI through pinned memory"

    def send(self, items: Items, pieces: Pieces) -> None:
        """Send a copy of pieces in pinned memory."""
        items.message(Code.SEND, self.peer, items.packed(pieces, pinned=True))

    def receive(self, items: Items, pieces: Pieces) -> None:
        """Copy a message from pinned memory into pieces."""
        items.copy(pieces, self.land(items, pieces))

    def land(self, items: Items, pieces: Pieces) -> Pieces:
        """Receive a message into pinned memory."""
        landed = items.landing(pieces, pinned=True)
        items.message(Code.RECV, self.peer, landed)
        return landed


def gpu_routes(
    local_peers: Mapping[int, int],
    readers: frozenset[int],
    exported: tuple[bool, bool],
    *,
    mpi_takes_gpu: bool,
    puts: bool = False,
) -> Routes:
    """Return the routes of arrays in GPU memory, the best first.

    ``local_peers``: local rank of each peer with which this rank has rings; ``readers``: peers that map this rank's GPU memory;
    ``puts``: all ranks map each other's, as all of them know.
    """
    return Routes(
        (
            partial(IpcRoute, exported, puts),
            {peer: local for peer, local in local_peers.items() if peer in readers},
        ),
        (PinnedRingRoute, local_peers),
        (CudaAwareRoute if mpi_takes_gpu else PinnedMpiRoute, None),
    )
