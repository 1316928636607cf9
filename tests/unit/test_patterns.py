"""Rank arithmetic: what the patterns promise, for all small numbers of ranks and some large ones."""

from collections.abc import Sequence
from math import ceil, floor, log2

import pytest

from hpcoll.schedules.patterns import circulant, double_binary_tree
from hpcoll.schedules.patterns.trees import TreeNode, bine, bine_span

SMALL = range(1, 65)
LARGE = (100, 255, 256, 257, 1000, 1023, 1024, 1025, 4096)


def depths(nodes: Sequence[TreeNode], root: int) -> list[int]:
    """Depth of every rank, after checking that the nodes agree with each other and are one tree below the root."""
    assert nodes[root].parent is None
    found = {root: 0}
    queue = [root]
    for rank in queue:
        for child in nodes[rank].children:
            assert nodes[child].parent == rank
            assert child not in found
            found[child] = found[rank] + 1
            queue.append(child)
    assert len(found) == len(nodes)
    return [found[rank] for rank in range(len(nodes))]


def subtree(nodes: Sequence[TreeNode], rank: int) -> list[int]:
    """Ranks below and including a rank."""
    return sorted([rank, *(r for child in nodes[rank].children for r in subtree(nodes, child))])


def assert_largest_first(nodes: Sequence[TreeNode]) -> None:
    for node in nodes:
        heights = [max_depth(nodes, child) for child in node.children]
        assert heights == sorted(heights, reverse=True)


def max_depth(nodes: Sequence[TreeNode], rank: int) -> int:
    return max((1 + max_depth(nodes, child) for child in nodes[rank].children), default=0)


@pytest.mark.parametrize("nranks", [*SMALL, *LARGE])
def test_bine(nranks: int) -> None:
    """As deep and as wide as the binomial tree, subtrees are cyclic intervals, and two thirds of its ways for powers of two."""
    nodes = [bine(vrank, nranks, 0) for vrank in range(nranks)]
    assert max(depths(nodes, 0)) == floor(log2(nranks))
    assert len(nodes[0].children) == ceil(log2(nranks))
    for vrank in range(nranks):
        first, n = bine_span(vrank, nranks)
        assert sorted(v % nranks for v in range(first, first + n)) == subtree(nodes, vrank)
    if nranks & (nranks - 1) == 0:
        ways = sorted(min(child, nranks - child) for child in nodes[0].children)
        assert ways == [round(2 ** (k + 1) / 3) for k in range(len(ways))]


@pytest.mark.parametrize("nranks", [*range(2, 65), *LARGE])
@pytest.mark.parametrize("pair", ["mirrored", "rooted"])
def test_double_binary_tree(pair: str, nranks: int) -> None:
    """Depth q, at most 2 children over both trees, and nobody an inner node of both but rank 0 (with one child in each)."""
    trees = pair_of_trees(pair, nranks, 0)
    roots = (0, nranks - 1) if pair == "mirrored" and nranks % 2 == 0 else (0, 0)
    for nodes, root in zip(trees, roots):
        assert max(depths(nodes, root)) == ceil(log2(nranks))
        assert_largest_first(nodes)
    children = [(len(a.children), len(b.children)) for a, b in zip(*trees)]
    assert all(sum(counts) <= 2 for counts in children)
    inner_twice = [rank for rank, counts in enumerate(children) if all(counts)]
    assert inner_twice == ([] if roots[1] else [0])
    assert children[0] == ((1, 0) if roots[1] and nranks > 2 else (1, 1) if not roots[1] else (1, 0))


def pair_of_trees(pair: str, nranks: int, root: int) -> tuple[list[TreeNode], list[TreeNode]]:
    if pair == "mirrored":
        places = [double_binary_tree.mirrored(rank, nranks) for rank in range(nranks)]
    else:
        places = [double_binary_tree.rooted(rank, nranks, root) for rank in range(nranks)]
    return [a for a, _ in places], [b for _, b in places]


@pytest.mark.parametrize("nranks", [*range(2, 65), 100, 257, 1000, 2047])
def test_circulant_schedules(nranks: int) -> None:
    """Every vrank gets q blocks that differ modulo q, one of them in the first phase; it sends only what it holds."""
    skips = circulant.skips(nranks)
    q = len(skips) - 1
    assert circulant.send_schedule(0, nranks) == tuple(range(q))
    for vrank in range(1, nranks):
        receives, sends = circulant.receive_schedule(vrank, nranks), circulant.send_schedule(vrank, nranks)
        assert sorted(block % q for block in receives) == list(range(q))
        assert sum(block >= 0 for block in receives) == 1
        assert all(-q <= block < q for block in receives)
        for k in range(q):
            held = set(receives[:k]) | {block - q for block in receives}
            assert sends[k] in held or (vrank + skips[k]) % nranks == 0
