"""The status of this rank, told to the others of its node: in which calls it waits, which have failed, and that it leaves.

It is the same for all communicators, so that ranks of one see that this rank waits in another.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcoll.base.machine import how_it_ends
from hpcoll.comm.status.blocked_call import BlockedCall, Status
from hpcoll.runtime.telemetry.status_page import NOTICE_NBYTES, StatusPage, StatusSlots, fitting

_MOST_FAILED = 32  # communicators whose failures are kept, the latest ones
# bytes of one: ranks that read it and those that are sent it have the same text
_MOST_TOLD = NOTICE_NBYTES // 2


class RankStatus:
    """The status of this rank, written to the status slots of all its teams and to its status page.

    Attributes:
        at_end: Functions that are called when the process leaves.
    """

    def __init__(self) -> None:
        self._slots: weakref.WeakSet[StatusSlots] = weakref.WeakSet()
        self._page: StatusPage | None = None
        # by id of the watchdog: the call, and what the status page alone has of it
        self._waits: dict[int, tuple[BlockedCall, dict[str, Any]]] = {}
        self._failed: dict[str, BlockedCall] = {}  # by communicator, the first failure
        self._left = ""
        # the handler of a signal may call a collective while one that it interrupts is noted
        self._changing = threading.RLock()
        self._changes = self._written = 0
        self.at_end: list[Callable[[], None]] = []

    def add_slots(self, slots: StatusSlots | None) -> None:
        """Write to the status slots of one more team."""
        if slots is not None:
            with self._changing:
                self._slots = weakref.WeakSet([*self._slots, slots])

    def show(self, page: StatusPage | None) -> None:
        """Write to the status page of this process, too, for those who look from outside."""
        with self._changing:
            self._page = page

    @property
    def doing(self) -> str:
        """The call in which this process waits, or has failed, the latest one, in words."""
        waits = [call.what for call in [*self._failed.values(), *self._waiting()] if call.what]
        return f"waits in {waits[-1]}" if waits else ""

    def _waiting(self) -> list[BlockedCall]:
        return [call for call, _ in list(self._waits.values())]

    def waits_of(self, key: str, lane: int) -> list[BlockedCall]:
        """Return the calls that wait, or failed while they waited, on a message context."""
        calls = [*self._waiting(), *self._failed.values()]
        return [call for call in calls if call.place[:2] == (key, lane)]

    def wait(self, watchdog: object, call: BlockedCall, seen: dict[str, Any] | None = None) -> None:
        """Say that a call waits.

        Args:
            watchdog: Stands for the call.
            call: The call.
            seen: What the status page alone has of it.
        """
        with self._changing:
            before = self._waits.get(id(watchdog))
            self._waits[id(watchdog)] = now = (call, seen or {})
            if before != now:
                self._write(page_alone=before is not None and before[0] == call)

    def end(self, watchdog: object) -> None:
        """Say that a call waits no more."""
        with self._changing:
            if self._waits.pop(id(watchdog), None):
                self._write()

    def fail(
        self, kind: str, text: str, call: BlockedCall, first: BlockedCall | None = None
    ) -> BlockedCall | None:
        """Say that a call has failed, and return what is said; None where one of its communicator has failed before.

        Args:
            kind: Name of the error's class.
            text: Text of the error.
            call: Call of this rank.
            first: Call of another rank that failed first; what that rank says of the failure is passed on.
        """
        import json  # what no program needs that never waits

        if first is None:
            failed = replace(call, kind=kind, text=text, at=time.time(), of=(call.lane, call.number))
        else:
            failed = replace(call, kind=first.kind, text=first.text, at=first.at, of=first.of)
        with self._changing:
            if call.key in self._failed:
                return None
            while len(self._failed) >= _MOST_FAILED:
                self._failed.pop(next(iter(self._failed)))
            cut = json.loads(fitting({"failed": [failed.as_json()]}, _MOST_TOLD))["failed"][0]
            self._failed[call.key] = BlockedCall.from_json(cut)
            self._write()
            return self._failed[call.key]

    def say_left(self, how: str) -> None:
        """Say that this process ends, in the status slots and on the page alone."""
        with self._changing:
            self._left = how
            self._write()

    def leave(self, how: str) -> None:
        """Say that this process ends."""
        self.say_left(how)
        for tell in self.at_end:
            tell()

    def forget(self) -> None:
        """Write nowhere any more: this process is a fork."""
        if self._page is not None:
            self._page.close()
        self.__init__()  # type: ignore[misc]

    def status(self) -> Status:
        """Return what this rank says of itself."""
        waits = (replace(call, over=True) if call.key in self._failed else call for call in self._waiting())
        return Status(tuple(waits), tuple(self._failed.values()), self._left)

    def _write(self, *, page_alone: bool = False) -> None:
        """Write the status; once more where a signal's handler has changed something meanwhile."""
        self._changes += 1
        while self._written != self._changes:
            changes = self._changes
            slots = [] if page_alone else list(self._slots)
            text = fitting(self.status().as_json()) if slots else b""
            for slot in slots:
                slot.write(text)
            if self._page is not None:
                waits = [call.as_json() | seen for call, seen in list(self._waits.values())]
                self._page.write(self.status().as_json() | {"waits": waits})
            self._written = changes
            page_alone = False


RANK_STATUS = RankStatus()


@atexit.register  # before MPI_Finalize, which waits for the others
def _leaving() -> None:
    RANK_STATUS.leave(how_it_ends())
