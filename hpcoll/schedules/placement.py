"""The placement of ranks on nodes: arithmetic on node numbers.

A placement is a tuple with the number of each rank's node. Nodes are numbered from 0, in the order of their lowest ranks.

    4 ranks per node, by blocks       cyclic           uneven
    (0, 0, 0, 0, 1, 1, 1, 1)          (0, 1, 0, 1)     (0, 0, 0, 1, 2, 2)
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache

from hpcoll.base.canonical import split
from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import is_count, quoted

Nodes = tuple[int, ...]


def numbered(names: Iterable[Hashable]) -> Nodes:
    """Return the placement of ranks, from the name of each rank's node.

    >>> numbered(["b", "a", "b"])
    (0, 1, 0)
    """
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)


@lru_cache(maxsize=256)
def members(nodes: Nodes) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each node, ascending.

    >>> members((0, 1, 0))
    ((0, 2), (1,))
    """
    ranks: list[list[int]] = [[] for _ in range(max(nodes, default=-1) + 1)]
    for rank, node in enumerate(nodes):
        ranks[node].append(rank)
    return tuple(map(tuple, ranks))


def parse_nodes(text: str, nranks: int) -> Nodes:
    """Return the placement of ``nranks`` ranks that a text describes, or raise ArgumentError.

    The text has the ranks per node, ``6`` (the last node may have fewer), or the sizes of all nodes, ``3+1+4``. With ``:cyclic`` ranks go
    round the nodes.

    >>> parse_nodes("2", 5), parse_nodes("2:cyclic", 5), parse_nodes("1+3", 4)
    ((0, 0, 1, 1, 2), (0, 1, 2, 0, 1), (0, 1, 1, 1))
    """
    sizes_text, _, order = text.partition(":")
    parts = sizes_text.split("+")
    if order not in ("", "block", "cyclic") or not all(map(is_count, parts)):
        raise ArgumentError(f"nodes must look like 6, 3+1+4 or 2:cyclic, got {quoted(text)}")
    sizes = [int(part) for part in parts]
    if len(sizes) == 1:
        full, rest = divmod(nranks, sizes[0])
        sizes = [sizes[0]] * full + [rest] * (rest > 0)
    if sum(sizes) != nranks:
        raise ArgumentError(f"nodes {quoted(text)} have {sum(sizes)} ranks together, expected {nranks}")
    return cyclic(sizes) if order == "cyclic" else blocks(sizes)


def blocks(sizes: Sequence[int]) -> Nodes:
    """Return the placement that fills one node after the other.

    >>> blocks([2, 1, 2])
    (0, 0, 1, 2, 2)
    """
    return tuple(node for node, size in enumerate(sizes) for _ in range(size))


def cyclic(sizes: Sequence[int]) -> Nodes:
    """Return the placement that deals ranks to the nodes in turn, for as long as a node has room.

    >>> cyclic([2, 1, 2])
    (0, 1, 2, 0, 2)
    """
    dealt, left, turn = list[int](), list(range(len(sizes))), 0
    while left := [node for node in left if sizes[node] > turn]:
        dealt += left
        turn += 1
    return numbered(dealt)


def parts(nodes: Nodes, domains: Nodes) -> Nodes:
    """Return the parts that hierarchical algorithms use: the nodes where there are several, else the cache domains of the one node.

    Domains are counted over all nodes. Those of one rank each do not count, because no rank could work for others there.

    >>> parts((0, 0, 1, 1), (0, 1, 2, 2)), parts((0, 0, 0), (0, 1, 1)), parts((0, 0), (0, 1))
    ((0, 0, 1, 1), (0, 1, 1), (0, 0))
    """
    return domains if len(set(nodes)) == 1 < len(set(domains)) < len(nodes) else nodes


def are_aligned(nodes: Nodes) -> bool:
    """Say whether nodes are blocks of ranks whose folds, folded in order, make the canonical expression (`hpcoll.base.canonical`).

    So are nodes of a power of two of ranks each, of which the last may have fewer.

    >>> are_aligned((0, 0, 1, 1, 2)), are_aligned((0, 1, 2, 2)), are_aligned((0, 1, 1)), are_aligned((0, 1, 0)), are_aligned((0, 0, 0))
    (True, True, False, False, True)
    """

    def tile(sizes: Sequence[int]) -> bool:
        left, right = sizes[: split(len(sizes))], sizes[split(len(sizes)) :]
        return len(sizes) == 1 or (sum(left) == split(sum(sizes)) and tile(left) and tile(right))

    return list(nodes) == sorted(nodes) and tile([len(ranks) for ranks in members(nodes)])


def describe(nodes: Nodes, name: str = "node") -> str:
    """Describe a placement: the number of nodes (or of whatever ``name`` says), their ranks, and the order.

    >>> describe((0, 0, 1, 1)), describe((0, 1, 0)), describe((0, 1))
    ('2 nodes of 2 ranks, by blocks', '2 nodes of 1 to 2 ranks, cyclic', '2 nodes of 1 rank')
    """
    sizes = [len(ranks) for ranks in members(nodes)]
    count = f"{len(sizes)} {name}" + "s" * (len(sizes) > 1)
    size = (
        f"{min(sizes)} to {max(sizes)} ranks"
        if min(sizes) < max(sizes)
        else f"{sizes[0]} rank" + "s" * (sizes[0] > 1)
    )
    if len(sizes) == 1 or max(sizes) == 1:
        return f"{count} of {size}"
    order = (
        "by blocks"
        if list(nodes) == sorted(nodes)
        else "cyclic"
        if nodes == cyclic(sizes)
        else "in another order"
    )
    return f"{count} of {size}, {order}"


def describe_all(nodes: Nodes, domains: Nodes) -> str:
    """Describe a placement on nodes, and on cache domains where a node has several.

    >>> describe_all((0, 0, 0), (0, 1, 1))
    '1 node of 3 ranks; 2 cache domains of 1 to 2 ranks, by blocks'
    """
    texts = [describe(nodes)] + [describe(domains, "cache domain")] * (max(domains) > max(nodes))
    return "; ".join(texts)
