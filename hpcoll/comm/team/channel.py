"""A channel between the ranks of a team besides the messages of calls, as the team sees it."""


class Channel:
    """A channel on the communicator of a team, which must be closed before that is freed.

    `hpcoll.comm.diagnosis.control_plane` has the one there is.
    """

    def remove(self, key: str) -> None:
        """Forget a communicator of the team by its key: it is freed."""

    def end(self) -> None:
        """Send no more. All ranks call this, and nobody waits."""

    def has_ended(self) -> bool:
        """Say whether all ranks have called `end` and nothing is under way any more."""
        return True
