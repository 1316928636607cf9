"""The moves of a redistribution: which pieces of its local array a rank sends to whom, and receives from whom. Pure arithmetic.

A rank computes with its own intervals and those of all cuts, so planning takes as long as the rank has peers.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hpcoll.grids.parts import Cuts, Parts, Pieces, Words, between, indices, pieces_of


class Move(NamedTuple):
    """The elements that a rank and a peer hand over, by their places in the rank's local array."""

    peer: int
    pieces: list[tuple[Words, Words]]  # along each axis: starts and lengths

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return tuple(int(lengths.sum()) for _, lengths in self.pieces)

    @property
    def nelements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def is_box(self) -> bool:
        """The elements are in one run along each axis."""
        return all(len(starts) == 1 for starts, _ in self.pieces)

    @property
    def places(self) -> tuple[Any, ...]:
        """The index of its elements in the local array."""
        if self.is_box:
            return tuple(slice(starts[0], starts[0] + lengths[0]) for starts, lengths in self.pieces)
        return np.ix_(*(indices(starts, lengths) for starts, lengths in self.pieces))

    def most(self, nrounds: int, order: str) -> int:
        """Return the elements of the largest part, where the move is made in so many rounds."""
        return prod(-(-n // nparts) for n, nparts in zip(self.shape, self._cut(nrounds, order)))

    def part(self, at: int, nrounds: int, order: str) -> "Move | None":
        """Return the part of a round, the same elements for both ranks; the first is the largest. None: it has none."""
        pieces = list[tuple[Words, Words]]()
        for (starts, lengths), n, nparts in zip(self.pieces, self.shape, self._cut(nrounds, order)):
            at, i = divmod(at, nparts)
            low, high = (k * (n // nparts) + min(k, n % nparts) for k in (i, i + 1))
            pieces.append(between(starts, lengths, low, high))
        return None if at else Move(self.peer, pieces)

    def _cut(self, nrounds: int, order: str) -> list[int]:
        """Return the number of parts of each axis, the outermost cut first, of so many rounds at most."""
        outward = slice(None, None, 1 if order == "C" else -1)
        nparts = list[int]()
        for n in self.shape[outward]:
            nparts.append(min(n, nrounds))
            nrounds //= nparts[-1]
        return nparts[outward]


def sent(source: Parts, target: Parts, rank: int, *, every: bool = False) -> list[Move]:
    """Return the moves from a rank to each that gets elements of it, ascending; itself may be among them.

    With ``every`` each rank that has an element sends it; else one of them does.
    """
    pieces = _pieces(source, rank, target.cuts)
    peers = _meeting(pieces, target.coords)
    return _moves(pieces, target.coords, peers[every | _is_sender(source, rank, peers)])


def received(source: Parts, target: Parts, rank: int, *, every: bool = False) -> list[Move]:
    """Return the moves to a rank from each of which it gets elements, ascending; arguments as of `sent`."""
    pieces = _pieces(target, rank, source.cuts)
    peers = _meeting(pieces, source.coords)
    return _moves(pieces, source.coords, peers[every | _is_sender(source, peers, rank)])


def _pieces(parts: Parts, rank: int, cuts: Sequence[Cuts]) -> list[Pieces]:
    return [pieces_of(parts.own(rank, axis), one) for axis, one in enumerate(cuts)]


def _meeting(pieces: Sequence[Pieces], coords: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the ranks whose parts have pieces along all axes."""
    found = np.ones(len(coords), bool)
    for axis, one in enumerate(pieces):
        found &= (np.diff(one.firsts) > 0)[coords[:, axis]]
    return np.flatnonzero(found)


def _is_sender(source: Parts, sender: Any, receiver: Any) -> np.ndarray[Any, Any]:
    """Say whether a rank sends what its group has to another: that sends it itself, if it is of the group; else they take turns."""
    same = source.group[sender] == source.group[receiver]
    turn = receiver % source.replicas[sender]
    return np.where(same, sender == receiver, source.number[sender] == turn)


def _moves(pieces: Sequence[Pieces], coords: np.ndarray[Any, Any], peers: np.ndarray[Any, Any]) -> list[Move]:
    return [
        Move(peer, [one.of(part) for one, part in zip(pieces, coords[peer].tolist())])
        for peer in peers.tolist()
    ]
