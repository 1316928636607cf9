"""Rows for the model of shared memory (`ring_model`): what ranks run, what these rows mean, and some to run."""

from collections.abc import Sequence
from typing import Any

SLOTS, CAPACITY = 2, 2  # ring slots of a pair; lanes that fit into a staging slot

# of RESERVE, STAGE datum, POST peer kind datum, AWAIT peer, USE peer, ACK peer, DRAIN peer, OWN datum
Row = tuple[Any, ...]


class Rows:
    """Rows as operations, one per load, and what follows from them alone.

    Args:
        rows: Of each rank.
        fenced: Whether a fence stands behind what is staged.
    Attributes:
        places: Of each piece of memory; ``names`` is the other way round.
        messages: Per sender and receiver the kind and the datum of each message.
        readers: Of what is read where it lies: who reads it, and which message of his that is.
        ops: Operations of each rank.
        counts: Per rank and operation how many of each kind were done before, with each peer.
    """

    def __init__(self, rows: Sequence[Sequence[Row]], *, fenced: bool) -> None:
        self.n = len(rows)
        names: list[Row] = []
        for s in range(self.n):
            areas: list[Row] = [("staging", s, area) for area in range(CAPACITY)] + [("own", s)]
            areas += [("slot", s, d, k) for d in range(self.n) for k in range(SLOTS)]
            names += [(*area, part) for area in areas for part in (0, 1)]
            names += [("word", s, d, k) for d in range(self.n) for k in range(SLOTS)] + [
                ("ack", s, d) for d in range(self.n)
            ]
        self.names, self.places = names, {name: i for i, name in enumerate(names)}
        self.messages: dict[tuple[int, int], list[tuple[str, str]]] = {
            (s, d): [] for s in range(self.n) for d in range(self.n)
        }
        self.readers: dict[str, list[tuple[int, int]]] = {}
        self.counts: list[list[dict[str, tuple[int, ...]]]] = []
        self.ops = [self._operations(rank, part, fenced) for rank, part in enumerate(rows)]

    def _operations(self, rank: int, rows: Sequence[Row], fenced: bool) -> list[Row]:
        ops: list[Row] = []
        for row in rows:
            if row[0] == "POST":
                self.readers.setdefault(row[3], []).extend(
                    [(row[1], len(self.messages[rank, row[1]]))] * (row[2] != "inline")
                )
                self.messages[rank, row[1]].append(row[2:])
            stage = [row, ("FENCE",)] if fenced else [row]
            ops += {"STAGE": stage, "AWAIT": [row, ("WHERE", row[-1])], "USE": [row, ("USED", row[-1])]}.get(
                row[0], [row]
            )
        done = {what: [0] * self.n for what in ("POST", "AWAIT", "WHERE", "USE", "USED", "ACK", "DRAIN")}
        self.counts.append([])
        for op in [*ops, ("END",)]:
            self.counts[rank].append({what: tuple(counts) for what, counts in done.items()})
            if op[0] in done:
                done[op[0]][op[1]] += 1
        return [*ops, ("END",)]


def take(*peers: int) -> list[Row]:
    """Rows that use a message of each peer at once."""
    return [(op, peer) for op in ("AWAIT", "USE", "ACK") for peer in peers]


def lane(datum: str, kind: str, *peers: int, sources: Sequence[int] = ()) -> list[Row]:
    """A lane: one datum for all peers, then a message of each source."""
    first: dict[str, list[Row]] = {
        "staged": [("RESERVE",), ("STAGE", datum)],
        "inline": [],
        "own": [("OWN", datum)],
    }
    posts: list[Row] = [("POST", peer, kind, datum) for peer in peers]
    return [*first[kind], *posts, *take(*sources), *(("DRAIN", peer) for peer in peers if kind == "own")]


def in_a_ring(n: int, kinds: Sequence[str]) -> list[list[Row]]:
    """Each rank sends to its right and receives from its left; with two ranks they exchange."""
    return [
        [row for i, k in enumerate(kinds) for row in lane(f"{r}.{i}", k, (r + 1) % n, sources=[(r - 1) % n])]
        for r in range(n)
    ]


def from_one(n: int, kinds: Sequence[str]) -> list[list[Row]]:
    """Rank 0 sends to all others."""
    sends = [row for i, k in enumerate(kinds) for row in lane(f"0.{i}", k, *range(1, n))]
    return [sends, *(take(0) * len(kinds) for _ in range(1, n))]
