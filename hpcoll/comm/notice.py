"""What this process tells the others of its node: in which calls it waits, which have failed, and that it leaves.

The same for all communicators, so that ranks of one see that this one waits in another.
"""

import atexit
import sys
import threading
import time
import weakref
from typing import Any, TypeAlias

from hpcoll.runtime.transports.notices import Notices

# A call: ``key`` of its communicator, ``lane``, the index of its message context, and ``number`` on that; ``what`` it is and where it was
# called; for which ranks it ``awaits``, at which ``step``, ``since`` when, in seconds, monotonic.
Call: TypeAlias = dict[str, Any]


class Notice:
    """The notice of this process, on every page that it has."""

    def __init__(self) -> None:
        self._pages: weakref.WeakSet[Notices] = weakref.WeakSet()
        self._waits: dict[int, Call] = {}  # by id of the watch
        self._failed: dict[str, Call] = {}  # by communicator, the first failure
        self._left = ""
        self._changing = threading.Lock()

    def add_page(self, page: Notices | None) -> None:
        """Write on one more page."""
        if page is not None:
            self._pages.add(page)

    @property
    def doing(self) -> str:
        """In which call this process waits, or has failed, the latest one."""
        waits = [one["what"] for one in [*self._failed.values(), *self._waits.values()] if one["what"]]
        return f"waits in {waits[-1]}" if waits else ""

    def waits_of(self, key: str, lane: int) -> list[Call]:
        """Calls that wait, or failed while they waited, on a message context."""
        return [one for one in [*self._waits.values(), *self._failed.values()] if (one["key"], one["lane"]) == (key, lane)]

    def wait(self, watch: object, call: Call) -> None:
        """Say that a call waits; ``watch`` stands for it."""
        with self._changing:
            if self._waits.get(id(watch)) != call:
                self._waits[id(watch)] = call
                self._write()

    def end(self, watch: object) -> None:
        """A call waits no more."""
        with self._changing:
            if self._waits.pop(id(watch), None):
                self._write()

    def fail(self, kind: str, text: str, call: Call) -> None:
        """Say that a call has failed, the first on its communicator, with an error of a kind."""
        with self._changing:
            if call["key"] not in self._failed:
                self._failed[call["key"]] = {"kind": kind, "text": text, "at": time.monotonic()} | call
                self._write()

    def leave(self, how: str) -> None:
        """Say that this process ends."""
        with self._changing:
            self._left = how
            self._write()

    def forget(self) -> None:
        """Write nowhere: this process is a fork."""
        self.__init__()  # type: ignore[misc]

    def _write(self) -> None:
        notice = {"waits": list(self._waits.values()), "failed": list(self._failed.values()), "left": self._left}
        for page in list(self._pages):
            page.write(notice)


NOTICE = Notice()


@atexit.register  # before MPI_Finalize, which waits for the others
def _leaving() -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    NOTICE.leave("has ended its program" if error is None else f"was ended by {type(error).__name__}: {error}"[:1000])
