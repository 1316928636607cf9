"""The agreement of ranks on arguments: where one refuses its own, or they differ, all ranks raise the same error."""

from collections.abc import Callable, Mapping
from typing import Any

from hpcoll.base.errors import ArgumentError


def agreed(
    allgather: Callable[[Any], list[Any]], problem: str, facts: Mapping[str, Any], more: Any = None
) -> list[Any]:
    """Return every rank's ``more``; collective.

    Args:
        allgather: Gives the objects of all ranks to each, in rank order.
        problem: Text of the error that this rank has found by itself, or the empty string.
        facts: What must be equal on all ranks, by the names that texts have for it.
        more: What the others are to know besides.

    Raises:
        ArgumentError: On all ranks: one has a problem, or a fact is another than on rank 0.
    """
    everyone = allgather((problem, dict(facts), more))
    for text, _, _ in everyone:
        if text:
            raise ArgumentError(text)
    first = everyone[0][1]
    for rank, (_, theirs, _) in enumerate(everyone):
        for name in [*first, *theirs]:
            expected, got = (repr(given[name]) if name in given else "none" for given in (first, theirs))
            if expected != got and first.get(name) != theirs.get(name):
                raise ArgumentError(
                    f"rank {rank}: {name} must be equal on all ranks, expected {expected} as on rank 0, got {got}"
                )
    return [others for _, _, others in everyone]
