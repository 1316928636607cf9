"""What a rank that waits shows on its live page: on which communicator, for which ranks of COMM_WORLD, and what it sees these do."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcoll.comm.resources import Resources

_EVERY_S = 1.0  # between two looks at what others do
_MOST = 8  # ranks that are looked at


class Sight:
    """Of one call that waits.

    Args:
        on: Resources of its communicator.
    """

    def __init__(self, on: Resources) -> None:
        self._on, self._next, self._seen = on, 0.0, dict[int, str]()

    def of(self, awaits: Sequence[int], doing: Callable[[int], str]) -> dict[str, Any]:
        """For the live page.

        Args:
            awaits: For which ranks of the communicator the call waits now.
            doing: What a rank does, in words; the empty string where that is not known.
        """
        world = self._on.group.world_ranks
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            seen = ((world[rank], doing(rank)) for rank in awaits[:_MOST])
            self._seen = {rank: text for rank, text in seen if text}
        return {"on": self._on.title, "for": [world[rank] for rank in awaits], "sees": self._seen}
