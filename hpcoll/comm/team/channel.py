"""The channel between the ranks of a team besides the messages of calls; silent in a team whose ranks all share memory."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from hpcoll.comm.status.blocked_call import BlockedCall

Answer: TypeAlias = dict[str, Any]  # about a rank (`hpcoll.comm.diagnosis.peer_state.PeerState.answer`)


class Channel:
    """A channel by which nobody hears anything; `hpcoll.comm.diagnosis.control_plane` has the one of ranks that share no memory.

    Attributes:
        failed: First call that failed on a rank of another node, as far as this one has heard, by key of the communicator.
    """

    def __init__(self) -> None:
        self.failed: dict[str, BlockedCall] = {}

    @property
    def answers_always(self) -> bool:
        """Ranks answer while they compute, too."""
        return True

    def heard_of(self, key: str, lane: int) -> list[int]:
        """Return the ranks of which anything was heard, on a message context of a communicator."""
        return []

    def latest(self, key: str, lane: int | None, rank: int) -> Answer:
        """Return the latest answer about a rank, on a message context or on any; empty where nothing was heard."""
        return {}

    def ask(self, key: str, lane: int, ranks: Sequence[int], since: float = 0.0) -> None:
        """Ask ranks how far they are on a message context.

        Args:
            key: Key of the communicator.
            lane: Index of the message context.
            ranks: Ranks, each of which is asked at growing intervals.
            since: The intervals begin again where a rank was not asked since this time, on the clock `time.monotonic`.
        """

    def is_silent(self, rank: int) -> bool:
        """Say whether a rank was asked and nobody has answered for longer than one that runs would take."""
        return False

    def serve(self) -> None:
        """Read what has come, and answer questions."""

    def broadcast_failure(self, call: BlockedCall) -> None:
        """Let all ranks hear of a call that has failed."""

    def remove(self, key: str) -> None:
        """Forget a communicator of the team by its key: it is freed."""

    def end(self) -> None:
        """Send no more: the team's communicator is about to be freed. All ranks call this, and nobody waits."""

    def has_ended(self) -> bool:
        """Say whether all ranks have called `end` and nothing is under way any more."""
        return True
