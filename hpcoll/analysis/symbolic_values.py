"""The verifier's values: interned expressions over the ranks' contributions."""

from collections.abc import Hashable, Sequence

NOTHING = 0  # the value of an unwritten cell


class Values:
    """Interned expressions: value number -> (item, mask of contributing ranks, whether in rank order, its two operands)."""

    def __init__(self, idempotent: bool) -> None:
        self.idempotent = idempotent
        self.facts: list[tuple[Hashable, int, bool, int, int]] = [(None, 0, True, NOTHING, NOTHING)]
        self._pairs: dict[tuple[int, int], int] = {}

    def leaves(self, items: Sequence[Hashable], rank: int) -> range:
        """Return the values of a rank's own contributions to items."""
        self.facts += [(item, 1 << rank, True, NOTHING, NOTHING) for item in items]
        return range(len(self.facts) - len(items), len(self.facts))

    def combine(self, lefts: list[int], rights: list[int]) -> list[int]:
        """Return the values of ``left op right``, pair by pair; ValueError for a pair that must not be combined."""
        new = []
        for pair in zip(lefts, rights):
            value = self._pairs.get(pair)
            if value is None:
                self.facts.append(self._combine(*pair))
                value = self._pairs[pair] = len(self.facts) - 1
            new.append(value)
        return new

    def _combine(self, left: int, right: int) -> tuple[Hashable, int, bool, int, int]:
        item, mask_l, in_order_l, _, _ = self.facts[left]
        item_r, mask_r, in_order_r, _, _ = self.facts[right]
        if item != item_r:
            raise ValueError(f"combines data of different places: {item} and {item_r}")
        if mask_l & mask_r and not self.idempotent:
            raise ValueError(f"counts the contribution of rank {(mask_l & mask_r).bit_length() - 1} twice")
        # in rank order: both are intervals of ranks, and the right one begins where the left one ends
        in_order = in_order_l and in_order_r and mask_l.bit_length() == (mask_r & -mask_r).bit_length() - 1
        return item, mask_l | mask_r, in_order, left, right

    def shapes(self) -> list[int]:
        """Return the number of each value's shape; expressions that differ only in the order of operands have one shape."""
        known: dict[tuple[Hashable, ...], int] = {}
        shapes = [0]
        for item, mask, _, left, right in self.facts[1:]:
            pair = (item, mask) if left == NOTHING else tuple(sorted((shapes[left], shapes[right])))
            shapes.append(known.setdefault((left == NOTHING, *pair), len(known) + 1))
        return shapes
