"""Routes of arrays in host memory: shared-memory rings to local peers, messages of the MPI library to all others."""

from collections.abc import Mapping
from typing import ClassVar

from hpcoll.analysis.cost import Levels, Network
from hpcoll.runtime.program.chunks import Pieces, join, names_of, nbytes_of
from hpcoll.runtime.program.items import InPlace, Items
from hpcoll.runtime.program.opcodes import INLINE_NBYTES, Code
from hpcoll.runtime.program.route import Route, Routes


class RingRoute(Route):
    """A short message travels inside the ring slot that announces it; another is staged once for all peers, or read in place.

    Of blocks that vary all are staged, since the length is not known here. A receiver uses messages where they lie, in the order of their
    announcements, then acknowledges them.
    """

    name: ClassVar[str] = "shm"
    text: ClassVar[str] = "get them through shared memory"
    uses_in_place: ClassVar[bool] = True
    batches: ClassVar[bool] = True

    @classmethod
    def cost(cls, levels: Levels) -> Network:
        """Return the cost model's constants for messages on a node."""
        return levels.node

    def send(self, items: Items, pieces: Pieces) -> None:
        """Post pieces, or their staged copy."""
        whole, names = items.are_whole(pieces), names_of(pieces)
        if whole and not items.keeps_empty and nbytes_of(pieces) <= INLINE_NBYTES:
            items.post(self.peer, join(pieces), names)
        else:
            in_place = InPlace.IF_SYMMETRIC if whole else InPlace.NEVER
            staged, _ = items.staged(pieces, in_place)
            items.post(
                self.peer,
                join(pieces) if whole else staged,
                names,
                staged_displ=staged.displ,
                in_place=in_place,
            )

    def receive(self, items: Items, pieces: Pieces) -> None:
        """Copy a message into pieces."""
        items.copy(pieces, self.land(items, pieces))
        items.acknowledge()

    def land(self, items: Items, pieces: Pieces) -> Pieces:
        """Await a message, and leave it where it is."""
        return items.await_message(self.peer, pieces)


class MpiRoute(Route):
    """A message leaves from and lands in any memory; pieces that are not contiguous there are packed."""

    name: ClassVar[str] = "mpi"
    text: ClassVar[str] = "get them by MPI"
    uses_in_place: ClassVar[bool] = False

    def send(self, items: Items, pieces: Pieces) -> None:
        """Send pieces, or their packed copy."""
        items.message(Code.SEND, self.peer, pieces if items.are_whole(pieces) else items.packed(pieces))

    def receive(self, items: Items, pieces: Pieces) -> None:
        """Receive into pieces, or copy them from where the message lands."""
        if items.are_whole(pieces):
            items.message(Code.RECV, self.peer, pieces)
        else:
            items.copy(pieces, self.land(items, pieces))

    def land(self, items: Items, pieces: Pieces) -> Pieces:
        """Receive a message into a landing slot."""
        landed = items.landing(pieces)
        items.message(Code.RECV, self.peer, landed)
        return landed


def host_routes(local_peers: Mapping[int, int]) -> Routes:
    """Return the routes, the best first, by the local rank of each peer with which this rank has rings."""
    return Routes((RingRoute, local_peers), (MpiRoute, None))
