"""The route of messages of the MPI library, which reaches every rank."""

from typing import ClassVar

from hpcoll.runtime.program.items import Items
from hpcoll.runtime.program.opcodes import Code
from hpcoll.runtime.program.route import Route
from hpcoll.runtime.program.spans import Pieces, spans_of


class MpiRoute(Route):
    """Messages leave from and land in any memory; what is not contiguous there is packed."""

    name: ClassVar[str] = "mpi"
    text: ClassVar[str] = "get them by MPI"
    uses_in_place: ClassVar[bool] = False

    def send(self, items: Items, pieces: Pieces) -> None:
        items.message(Code.SEND, self.peer, pieces if len(spans_of(pieces)) == 1 else items.packed(pieces))

    def receive(self, items: Items, pieces: Pieces) -> None:
        if len(spans_of(pieces)) == 1:
            items.message(Code.RECV, self.peer, pieces)
        else:
            items.copy(pieces, self.land(items, pieces))

    def land(self, items: Items, pieces: Pieces) -> Pieces:
        landed = items.landing(pieces)
        items.message(Code.RECV, self.peer, landed)
        return landed
