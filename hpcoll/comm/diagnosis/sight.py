"""What a rank that waits shows on its live page besides its notice: for which ranks of COMM_WORLD it waits, and what it sees these do."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcoll.base.processes import RUNNING
from hpcoll.comm.diagnosis.peer_state import Knowledge
from hpcoll.comm.team.resources import Resources

_EVERY_S = 1.0  # between two looks at what others do
_MOST = 8  # ranks that are looked at


class Sight:
    """Of one call that waits.

    Args:
        on: Resources of its communicator.
    """

    def __init__(self, on: Resources) -> None:
        self._on, self._next, self._seen = on, 0.0, dict[int, tuple[float, str]]()

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
            seen = ((rank, doing(rank)) for rank in awaits[:_MOST] if not self._shows_itself(rank))
            self._seen = {world[rank]: (self._since(rank), text) for rank, text in seen if text}
        return {"for": [world[rank] for rank in awaits], "sees": self._seen}

    def _shows_itself(self, rank: int) -> bool:
        """Whether what a rank does is seen without this one: on its own page, or by what the system says of it."""
        known = Knowledge(self._on, self._on.message_contexts[0].log)
        notice = known.notice(rank)
        return bool(notice.get("waits") or notice.get("left")) or known.state(rank) not in (RUNNING, "")

    def _since(self, rank: int) -> float:
        """When a rank last ended a call on the communicator, in seconds since 1970; now, where it is in a blocking one."""
        blocking, *others = (Knowledge(self._on, one.log).begun(rank) for one in self._on.every_message_context())
        if blocking is not None and blocking.begun > blocking.ended:
            return time.time()
        return max((one.when for one in (blocking, *others) if one is not None), default=0.0)
