"""What this process tells the others of its node: in which calls it waits, which have failed, and that it leaves.

The same for all communicators, so that ranks of one see that this one waits in another.
"""

import atexit
import sys
import threading
import time
import weakref
from typing import Any

from hpcoll.runtime.transports.notices import Notices


class Notice:
    """The notice of this process, on every page that it has."""

    def __init__(self) -> None:
        self._pages: weakref.WeakSet[Notices] = weakref.WeakSet()
        self._waits: dict[int, dict[str, Any]] = {}  # by id of the watch
        self._failed: dict[str, dict[str, Any]] = {}  # by communicator, the first failure
        self._left = ""
        self._changing = threading.Lock()

    def add_page(self, page: Notices | None) -> None:
        """Write on one more page."""
        if page is not None:
            self._pages.add(page)

    def wait(self, watch: object, key: str, lane: int, number: int, what: str, awaits: list[int], since: float) -> None:
        """Say that a call waits.

        Args:
            watch: Stands for the call.
            key: Of its communicator.
            lane, number: Index of its message context, and its number there.
            what: The call and where it was called.
            awaits: Ranks for which it waits.
            since: Seconds, monotonic.
        """
        found = {"key": key, "lane": lane, "number": number, "what": what, "awaits": awaits, "since": since}
        with self._changing:
            if self._waits.get(id(watch)) != found:
                self._waits[id(watch)] = found
                self._write()

    def end(self, watch: object) -> None:
        """A call waits no more."""
        with self._changing:
            if self._waits.pop(id(watch), None):
                self._write()

    def fail(self, key: str, kind: str, text: str, lane: int, number: int, what: str) -> None:
        """Say that a call has failed, the first on its communicator."""
        with self._changing:
            if key not in self._failed:
                self._failed[key] = {"key": key, "kind": kind, "text": text, "lane": lane, "number": number, "what": what, "at": time.monotonic()}
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
