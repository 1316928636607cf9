"""What this process tells the others of its node: in which calls it waits, which have failed, and that it leaves.

The same for all communicators, so that ranks of one see that this one waits in another.
"""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from hpcoll.base.processes import how_it_ends
from hpcoll.runtime.telemetry.status_page import StatusPage
from hpcoll.runtime.telemetry.status_slots import NOTICE_NBYTES, StatusSlots, fitting

# A call: ``key`` of its communicator, which it is ``on``, by name, ``lane``, the index of its message context, and ``number`` on that;
# ``what`` it is and where it was called; for which ranks it ``awaits``, at which ``step``, ``since`` when, in seconds, monotonic; what it
# ``holds`` up meanwhile (`hpcoll.comm.status.call_site.holds`), the empty string where the program has not come to its end yet. One that
# has failed has what belongs to a `FAILURE`, too; others on its communicator, which may be in flight yet, are ``over``: nobody will wait.
Call: TypeAlias = dict[str, Any]
IN_LIBRARY = -1  # in place of a lane, of a blocking collective of the MPI library's own (`hpcoll.runtime.telemetry.call_log.InLibrary`)
# Of a failure, alike on all ranks that pass it on with calls of their own: its ``kind`` of error and ``text``, ``at`` what time it was told
# first, by that rank's clock, and of which ``lane`` and ``number``.
FAILURE = ("at", "text", "of", "kind")
_MOST_FAILED = 32  # communicators whose failures are kept, the latest ones
_MOST_TOLD = NOTICE_NBYTES // 2  # bytes of one: ranks that read it and those that are sent it have the same text


class RankStatus:
    """The notice of this process, on every page that it has.

    Attributes:
        at_end: Called when the process leaves.
    """

    def __init__(self) -> None:
        self._pages: weakref.WeakSet[StatusSlots] = weakref.WeakSet()
        self._live: StatusPage | None = None
        self._waits: dict[int, Call] = {}  # by id of the watch
        self._seen: dict[int, dict[str, Any]] = {}  # by id of the watch, what only the live page has
        self._failed: dict[str, Call] = {}  # by communicator, the first failure
        self._left = ""
        self._changing = threading.RLock()  # the handler of a signal may call a collective while one that it interrupts is noted
        self._changes = self._written = 0
        self.at_end: list[Callable[[], None]] = []

    def add_page(self, page: StatusSlots | None) -> None:
        """Write on one more page."""
        if page is not None:
            with self._changing:
                self._pages = weakref.WeakSet([*self._pages, page])

    def show(self, page: StatusPage | None) -> None:
        """Write on the live page of this process, too, for those who look from outside."""
        with self._changing:
            self._live = page

    @property
    def doing(self) -> str:
        """In which call this process waits, or has failed, the latest one."""
        waits = [one["what"] for one in [*self._failed.values(), *self._waits.values()] if one["what"]]
        return f"waits in {waits[-1]}" if waits else ""

    def waits_of(self, key: str, lane: int) -> list[Call]:
        """Calls that wait, or failed while they waited, on a message context."""
        return [one for one in [*self._waits.values(), *self._failed.values()] if (one["key"], one["lane"]) == (key, lane)]

    def wait(self, watch: object, call: Call, seen: dict[str, Any] | None = None) -> None:
        """Say that a call waits; ``watch`` stands for it, and ``seen`` is what it says on the live page alone."""
        with self._changing:
            told, shown = self._waits.get(id(watch)) == call, self._seen.get(id(watch)) == seen
            self._waits[id(watch)], self._seen[id(watch)] = call, seen or {}
            if not told:
                self._write()
            elif not shown:
                self._write(live=True)

    def end(self, watch: object) -> None:
        """A call waits no more."""
        with self._changing:
            self._seen.pop(id(watch), None)
            if self._waits.pop(id(watch), None):
                self._write()

    def fail(self, kind: str, text: str, call: Call, first: Call | None = None) -> Call | None:
        """Say that a call has failed, the first on its communicator; returns what is said, if it is.

        Args:
            kind, text: The error.
            call: What this rank calls there.
            first: Of another rank, with which it failed: what it says of that is passed on as it is.
        """
        import json  # what no program needs that never waits

        mine = {"kind": kind, "text": text, "at": time.time(), "of": [call["lane"], call["number"]]}
        said = call | (mine if first is None else {name: first[name] for name in FAILURE})
        with self._changing:
            if call["key"] in self._failed:
                return None
            while len(self._failed) >= _MOST_FAILED:
                self._failed.pop(next(iter(self._failed)))
            self._failed[call["key"]] = json.loads(fitting({"failed": [said]}, _MOST_TOLD))["failed"][0]
            self._write()
            return self._failed[call["key"]]

    def say_left(self, how: str) -> None:
        """Say that this process ends, on the pages alone."""
        with self._changing:
            self._left = how
            self._write()

    def leave(self, how: str) -> None:
        """Say that this process ends."""
        self.say_left(how)
        for tell in self.at_end:
            tell()

    def forget(self) -> None:
        """Write nowhere: this process is a fork."""
        if self._live is not None:
            self._live.close()
        self.__init__()  # type: ignore[misc]

    def text(self) -> dict[str, Any]:
        """What it says."""
        waits = [one | {"over": True} if one["key"] in self._failed else one for one in list(self._waits.values())]
        return {"waits": waits, "failed": list(self._failed.values()), "left": self._left}

    def _write(self, *, live: bool = False) -> None:
        """Write on the pages, the live one alone where so asked; once more where a signal's handler has changed something meanwhile."""
        self._changes += 1
        while self._written != self._changes:
            changes, pages = self._changes, [] if live else list(self._pages)
            text = fitting(self.text()) if pages else b""
            for page in pages:
                page.write(text)
            if self._live is not None:
                waits = [call | self._seen.get(watch, {}) for watch, call in list(self._waits.items())]
                self._live.write(self.text() | {"waits": waits})
            self._written = changes
            live = False


def failure_order(failure: Call) -> list[Any]:
    """By which the first of several failures of a communicator is the same on all ranks, whatever their clocks say."""
    return [failure[name] for name in FAILURE]


RANK_STATUS = RankStatus()


@atexit.register  # before MPI_Finalize, which waits for the others
def _leaving() -> None:
    RANK_STATUS.leave(how_it_ends())
