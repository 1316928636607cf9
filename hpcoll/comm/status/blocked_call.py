"""The record of a blocked call, and what a rank says of itself: in which calls it waits, which have failed, and that it has left."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

IN_LIBRARY = -1  # in place of a lane: a blocking collective that the MPI library serves (`hpcoll.runtime.telemetry.call_log.InLibrary`)
_FAILURE = ("at", "text", "of", "kind")
_AT = ") at "
_IN_REGION = ", in region "


def call_text(call: str, place: str, region: str) -> str:
    """Return a call, as the program wrote it, with file and line, and the names of its region, which may be empty."""
    return f"{call} at {place}" + (f"{_IN_REGION}{region}" if region else "")


def call_parts(text: str) -> tuple[str, str, str]:
    """Return the parts of a `call_text`: call, file and line, names of the region.

    >>> call_parts("Bcast(float64[8], root=0) at step.py:7, in region step/halo"), call_parts("Barrier()")
    (('Bcast(float64[8], root=0)', 'step.py:7', 'step/halo'), ('Barrier()', '', ''))
    """
    call, ends, rest = text.partition(_AT)
    place, _, region = rest.partition(_IN_REGION)
    return f"{call}{ends[:1]}", place, region


@dataclass(frozen=True)
class BlockedCall:
    """A call in which a rank waits, or that has failed on it.

    Attributes:
        key: Key of the communicator, alike on all its ranks.
        lane: Index of the message context, or `IN_LIBRARY`.
        number: Number of the call on its message context.
        what: The call, its line in the program and its region (`call_text`); empty where the program has made none.
        on: Name of the communicator.
        awaits: Ranks of the communicator for which the rank waits.
        step: Step at which it waits.
        since: When it began to wait, in seconds: on the clock `time.monotonic` for the rank itself, since 1970 for others.
        holds: What the call holds up (`hpcoll.comm.status.call_site.holds`); empty where the program has not come to its end yet.
        over: Another call on the communicator has failed, so that nobody will wait for this one.
        kind: Name of the error class of a call that has failed; empty where it waits.
        text: Text of that error; empty: ranks do not call the same.
        at: When the failure was told first, by the clock of the rank that told it.
        of: Lane and number of the call that failed first.
    """

    key: str
    lane: int
    number: int
    what: str
    on: str
    awaits: tuple[int, ...] = ()
    step: str = ""
    since: float = 0.0
    holds: str = ""
    over: bool = False
    kind: str = ""
    text: str = ""
    at: float = 0.0
    of: tuple[int, int] = (0, 0)

    @property
    def place(self) -> tuple[str, int, int]:
        """Communicator, message context and number, which tell the call from all others of its rank."""
        return self.key, self.lane, self.number

    @property
    def order(self) -> tuple[Any, ...]:
        """Order of the failures of a communicator, the same on all ranks, whatever their clocks say."""
        return self.at, self.text, self.of, self.kind

    def as_json(self) -> dict[str, Any]:
        """Return what the JSON document has of it."""
        left_out = [] if self.over else ["over"]
        if not self.kind:
            left_out += _FAILURE
        return {name: value for name, value in vars(self).items() if name not in left_out}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "BlockedCall":
        """Return the call of a JSON document; members that it lacks are empty."""
        known = {field.name: told[field.name] for field in fields(cls) if field.name in told}
        return cls(**known | {name: tuple(known[name]) for name in ("awaits", "of") if name in known})


@dataclass(frozen=True)
class Status:
    """The status of a rank, as it tells it.

    Attributes:
        waits: Calls in which it waits.
        failed: Calls that have failed on it, the first of each communicator.
        left: How its program has ended; empty while it runs.
    """

    waits: tuple[BlockedCall, ...] = ()
    failed: tuple[BlockedCall, ...] = ()
    left: str = ""

    def __bool__(self) -> bool:
        return bool(self.waits or self.failed or self.left)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        waits = [wait.as_json() for wait in self.waits]
        return {"waits": waits, "failed": [call.as_json() for call in self.failed], "left": self.left}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "Status":
        """Return the status of a JSON document."""
        waits, failed = (
            tuple(map(BlockedCall.from_json, told.get(name, ()))) for name in ("waits", "failed")
        )
        return cls(waits, failed, told.get("left", ""))
