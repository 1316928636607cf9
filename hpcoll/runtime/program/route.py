"""Routes: the ways of messages to and from a peer, and the interface of every transport.

A schedule says who sends what to whom. A **route** says how: which items a send and a receive are. `lower` asks the route to each peer and
knows no transport. A new one is a subclass in `transports/` or `gpu/` and a row in the table of routes there (`host_routes`, `gpu_routes`).
Operations of its own have codes in `Code` and a compiled function that `compiled.interpreter._execute` finds.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from hpcoll.analysis.cost import Levels, Network
from hpcoll.runtime.program.chunks import Pieces
from hpcoll.runtime.program.items import Items


class Route(ABC):
    """The way of messages to and from a peer, by its rank in the communicator or its local rank.

    Both ends of a message decide alike, because they see equal sizes. Messages to a peer are used in the order in which they were sent.
    """

    name: ClassVar[str]  # for the ledger
    text: ClassVar[str]  # for the log
    uses_in_place: ClassVar[bool]  # `land` gives a message where the sender or the library left it: it needs no memory here
    puts: bool = False  # the sender of a put writes the receiver's memory; else it is a message like any other. Both ends know

    def __init__(self, peer: int) -> None:
        self.peer = peer

    @classmethod
    def cost(cls, levels: Levels) -> Network:
        """Return the cost model's constants for its messages: those between nodes, unless it stays on one."""
        return levels.network

    @abstractmethod
    def send(self, items: Items, pieces: Pieces) -> None:
        """Send pieces as one message."""

    @abstractmethod
    def receive(self, items: Items, pieces: Pieces) -> None:
        """Receive a message into pieces."""

    @abstractmethod
    def land(self, items: Items, pieces: Pieces) -> Pieces:
        """Receive a message of the sizes of pieces, to be reduced; return where it is until `Items.acknowledge`."""

    def destination(self, items: Items, pieces: Pieces) -> Pieces:
        """Return the receiver's memory for a put of these sizes, until `Items.acknowledge`."""
        raise NotImplementedError

    def receive_put(self, items: Items, pieces: Pieces) -> None:
        """Receive a put into pieces."""
        raise NotImplementedError


def in_words(routes: Mapping[int, Route], peers: Iterable[int], levels: Levels) -> str:
    """Return the number of peers and the cost by the model of each route, for the log."""
    found = Counter(type(routes[peer]) for peer in peers)
    costs = {kind: kind.cost(levels) for kind in found}
    return "; ".join(
        f"{n} {kind.text} ({1e6 * costs[kind].alpha:.3g} us, {1e-9 / costs[kind].beta:.3g} GB/s)" for kind, n in found.items()
    ) or "one rank"  # fmt: skip


class Routes(dict[int, Route]):
    """The route to each peer, by its rank.

    Args:
        table: Routes, the best first, and what rows call the peers that each one reaches.
    """

    def __init__(self, *table: tuple[Callable[[int], Route], Mapping[int, int] | None]) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, peer: int) -> Route:
        for route, peers in self._table:
            if peers is None:
                self[peer] = route(peer)
            elif peer in peers:
                self[peer] = route(peers[peer])
            else:
                continue
            return self[peer]
        raise KeyError(peer)
