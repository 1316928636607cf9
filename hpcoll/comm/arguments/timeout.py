"""How long one call may take: the keyword ``timeout=`` of every collective."""

from functools import lru_cache
from numbers import Real
from typing import Protocol, TypeAlias

from hpcoll.base.errors import ArgumentError
from hpcoll.base.text import parse_seconds

Time: TypeAlias = float | str | None  # seconds, or text such as "10s" or "5m"


class HasRank(Protocol):
    """A communicator, or its context."""

    @property
    def rank(self) -> int:
        """Of this process."""


def limit_of(timeout: object, caller: HasRank) -> float:
    """Seconds that a call may take.

    Args:
        timeout: The keyword, > 0; text as in ``HPCOLL_TIMEOUT``.
        caller: Whose rank is told where it is wrong.

    Raises:
        ArgumentError: not a time, or none at all.

    >>> limit_of("5m", None), limit_of(0.25, None)
    (300.0, 0.25)
    """
    try:
        return _seconds(timeout)
    except (ArgumentError, TypeError):  # not even hashable
        expected = "a number of seconds above 0, or text such as '500ms', '10s' or '5m'"
        raise ArgumentError(f"rank {caller.rank}: timeout must be {expected}, got {timeout!r}") from None


@lru_cache(typed=True)
def _seconds(timeout: object) -> float:
    seconds = parse_seconds(str(timeout)) if isinstance(timeout, str | Real) else 0.0
    if seconds <= 0:
        raise ArgumentError("no time")
    return seconds
