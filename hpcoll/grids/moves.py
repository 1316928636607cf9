"""The moves of a redistribution: which pieces of its local array a rank sends to whom, and receives from whom. Pure arithmetic.

A rank computes with its own intervals and those of all cuts, so planning takes as long as the rank has peers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcoll.grids.parts import Cuts, Parts, Pieces, Words, pieces_of


class Move(NamedTuple):
    """The elements that a rank and a peer hand over, by their places in the rank's local array."""

    peer: int
    pieces: list[tuple[Words, Words]]  # along each axis: starts and lengths

    @property
    def nelements(self) -> int:
        """The number of elements."""
        n = 1
        for _, lengths in self.pieces:
            n *= int(lengths.sum())
        return n


def sent(source: Parts, target: Parts, rank: int) -> list[Move]:
    """Return the moves from a rank to each that gets elements of it, ascending; itself may be among them."""
    pieces = _pieces(source, rank, target.cuts)
    peers = _meeting(pieces, target.coords)
    return _moves(pieces, target.coords, peers[_is_sender(source, rank, peers)])


def received(source: Parts, target: Parts, rank: int) -> list[Move]:
    """Return the moves to a rank from each of which it gets elements, ascending; itself may be among them."""
    pieces = _pieces(target, rank, source.cuts)
    peers = _meeting(pieces, source.coords)
    return _moves(pieces, source.coords, peers[_is_sender(source, peers, rank)])


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
