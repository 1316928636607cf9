"""A rank's place in a tree; what every tree pattern returns."""

from typing import NamedTuple


class TreeNode(NamedTuple):
    """Neighbours of one rank in a rooted tree.

    Attributes:
        parent: None at the root.
        children: Largest subtree first; where the last rank cuts a subtree short, it keeps its place.
    """

    parent: int | None
    children: tuple[int, ...]
