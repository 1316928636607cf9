"""Stores of a rank that others do not see yet, and which of them may become visible next: for the model of shared memory."""

from typing import Any, NamedTuple

PLAIN, RELEASE, UNCACHED = range(3)  # kinds of stores


class Store(NamedTuple):
    """A store that others do not see yet; ``number``: of the message in whose ring slot it is."""

    address: int
    value: Any
    kind: int = PLAIN
    number: int = -1


def may_leave(stores: tuple[Store, ...], i: int, *, arm: bool) -> bool:
    """Say whether a store may become visible before those that the rank did earlier: never if these are to the same address.

    On ARM a release store stays behind all earlier ones, but later ones may pass it. On x86 only those past the caches pass, or are passed.
    """
    one, before = stores[i], stores[:i]
    if any(other.address == one.address for other in before):
        return False
    if arm:
        return one.kind != RELEASE or not before
    return one.kind == UNCACHED or all(other.kind == UNCACHED for other in before)
