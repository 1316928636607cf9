"""Topologies: the links between ranks, and what they carry. By name, or from a JSON file."""

from collections.abc import Callable, Sequence
from itertools import permutations
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from hpcoll.base.errors import ArgumentError
from hpcoll.base.json_fields import integer, member, read_json, refused
from hpcoll.base.text import meant, printable, quoted
from hpcoll.schedules.graph import grid, parse_dims

MAX_NODES, MAX_BANDWIDTH = 64, 1 << 16  # ranks of a topology; chunks that a link carries in a round
NAMES = "ring:N, full:N, hypercube:N, grid:AxB, torus:AxB, dgx1"
FAR = 1 << 30  # steps to a rank that no links lead to

Edge = tuple[int, int]  # a link: from a rank, to a rank

# NVLinks of a DGX-1 with V100 between each two GPUs: of the even ones twice the bandwidth. They go both ways.
_DGX1 = {
    1: ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)),
    2: ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)),
}


class Fabric(NamedTuple):
    """The links of a topology.

    Attributes:
        name: Its name, or that of its file.
        nranks: Number of ranks.
        links: Chunks that each link carries in a round.
        groups: Links that share a port, a bus or a switch, and the chunks that they carry together in a round.
    """

    name: str
    nranks: int
    links: dict[Edge, int]
    groups: tuple[tuple[tuple[Edge, ...], int], ...] = ()

    def reversed(self) -> "Fabric":
        """Return the topology with each link the other way."""
        links = {(b, a): width for (a, b), width in self.links.items()}
        return self._replace(
            links=links,
            groups=tuple((tuple((b, a) for a, b in edges), width) for edges, width in self.groups),
        )

    def same(self, other: "Fabric") -> bool:
        """Say whether two topologies carry the same."""
        ours, theirs = ({(frozenset(edges), width) for edges, width in one.groups} for one in (self, other))
        return self.links == other.links and ours == theirs

    def distances(self) -> list[list[int]]:
        """Return the fewest steps from each rank to each other; `FAR` where there is no way."""
        ranks = range(self.nranks)
        rows = [[0 if a == b else 1 if (a, b) in self.links else FAR for b in ranks] for a in ranks]
        for via in ranks:
            for row in rows:
                row[:] = [min(row[b], row[via] + rows[via][b]) for b in ranks]
        return rows


def topology(text: str) -> Fabric:
    """Return the topology of a name such as ``ring:4``, or of a JSON file; ArgumentError: there is none, or it is wrong."""
    if text == "dgx1":
        return Fabric(
            text,
            8,
            {edge: width for width, pairs in _DGX1.items() for a, b in pairs for edge in ((a, b), (b, a))},
        )
    shape, colon, size = text.partition(":")
    if not colon or shape not in _SHAPES:
        if not Path(text).exists():
            hint = meant((*_SHAPES, "dgx1"), shape)
            raise ArgumentError(
                f"topology must be {NAMES} or the name of a JSON file, got {quoted(text)}{hint}"
            )
        return _read(text)
    dims = parse_dims(size)
    nranks = prod(dims)
    if (
        not 2 <= nranks <= MAX_NODES
        or (len(dims) > 1 and shape not in ("grid", "torus"))
        or (shape == "hypercube" and nranks & nranks - 1)
    ):
        raise ArgumentError(
            f"topology must be {NAMES}, of 2 to {MAX_NODES} ranks, or the name of a JSON file, got {quoted(text)}"
        )
    return Fabric(text, nranks, dict.fromkeys(_SHAPES[shape](dims), 1))


def _on_grid(dims: Sequence[int], periodic: bool) -> list[Edge]:
    ends = grid(dims, [periodic] * len(dims)).targets
    return sorted(
        {(rank, end[0]) for rank, its_ends in enumerate(ends) for end in its_ends if end and end[0] != rank}
    )


_SHAPES: dict[str, Callable[[Sequence[int]], list[Edge]]] = {
    "ring": lambda dims: _on_grid(dims, True),
    "torus": lambda dims: _on_grid(dims, True),
    "grid": lambda dims: _on_grid(dims, False),
    "hypercube": lambda dims: _on_grid([2] * (dims[0].bit_length() - 1), False),
    "full": lambda dims: list(permutations(range(dims[0]), 2)),
}


def _read(path: str) -> Fabric:
    """Read a file: ``{"nranks": 2, "links": [[0, 1, 3]], "both_ways": true, "groups": [{"links": [[0, 1], [1, 0]], "bandwidth": 4}]}``."""
    content, name = read_json(path, f"topology {path}"), printable(Path(path).stem)
    try:
        return _checked(content, name)
    except ArgumentError as error:
        raise ArgumentError(f"topology {printable(path)}: {error}") from None


def _checked(content: Any, name: str) -> Fabric:
    nranks = integer(content, "nranks", "", 2, MAX_NODES)
    both = content.get("both_ways", False)
    if not isinstance(both, bool):
        raise refused("both_ways", "true or false", both)
    links: dict[Edge, int] = {}
    for i, entry in enumerate(member(content, "links", list, "")):
        a, b, width = _numbers(entry, f"links[{i}]", (nranks - 1, nranks - 1, MAX_BANDWIDTH))
        for edge in ((a, b), (b, a)) if both else ((a, b),):
            if a == b or width < 1 or edge in links:
                expected = (
                    "[from, to, bandwidth], of two ranks, a bandwidth of at least 1, and each link once"
                )
                raise refused(f"links[{i}]", expected, entry)
            links[edge] = width
    groups = []
    for i, group in enumerate(member(content, "groups", list, "") if "groups" in content else []):
        edges = []
        for j, entry in enumerate(member(group, "links", list, f"groups[{i}]")):
            a, b = _numbers(entry, f"groups[{i}].links[{j}]", (nranks - 1, nranks - 1))
            if (a, b) not in links:
                raise refused(f"groups[{i}].links[{j}]", "[from, to] of a link", entry)
            edges.append((a, b))
        groups.append((tuple(edges), integer(group, "bandwidth", f"groups[{i}]", 1, MAX_BANDWIDTH)))
    return Fabric(name, nranks, links, tuple(groups))


def _numbers(entry: Any, where: str, most: Sequence[int]) -> list[int]:
    """Return a list of integers, each from 0 to its largest."""
    numbers = entry if isinstance(entry, list) else []
    if len(numbers) != len(most) or not all(
        type(n) is int and 0 <= n <= top for n, top in zip(numbers, most)
    ):
        raise refused(where, f"{len(most)} integers, from 0 to {', '.join(map(str, most))}", entry)
    return numbers
