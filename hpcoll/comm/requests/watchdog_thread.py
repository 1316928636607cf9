"""The watchdog thread looks after collectives in flight that do not end, also while the program waits in the MPI library's own waits.

It wakes only while something is in flight that has been so for a while.
"""

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcoll.comm.requests.replaced import waited_for
from hpcoll.selection.config import log

_FIRST_S, _EVERY_S = 0.2, 0.05  # until the first look at what is new, and between looks
_END_S = 0.5


class WatchdogThread:
    """The thread that looks after operations in flight.

    Args:
        operations: Returns the operations that are in flight: `hpcoll.comm.requests.operation.Operation`.
    """

    def __init__(self, operations: Callable[[], Sequence[Any]]) -> None:
        self._operations = operations
        self._something = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="hpcoll-watch", daemon=True)
        self.awake = False
        self._starting = threading.Lock()

    def wake(self) -> None:
        """Begin to look: something is in flight. Called while `awake` is not set."""
        self.awake = True
        try:
            with self._starting:
                if self._thread.ident is None:
                    self._thread.start()
                    atexit.register(self._end)
            self._something.set()
        except BaseException:
            # of a signal's handler, or no more threads: the next call in flight tries again
            self.awake = False
            raise

    def _end(self) -> None:
        self._ends = True
        self._something.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ends:
            self._something.wait()
            time.sleep(self._until_first())
            while not self._ends and self._looks():
                time.sleep(_EVERY_S)
            if not self._operations():
                self._something.clear()
                self.awake = False
                if self._operations():  # begun just before, when it was still awake
                    self.wake()

    def _until_first(self) -> float:
        """Return the seconds until what has been in flight for longest is to be looked at."""
        now = time.monotonic()
        return max(_EVERY_S, _FIRST_S - max((now - one.begun for one in self._operations()), default=0.0))

    def _looks(self) -> bool:
        """Look at what has been in flight for long; return whether there is any."""
        old = [one for one in self._operations() if time.monotonic() - one.begun > _FIRST_S]
        requests = waited_for() if old else []
        for one in old:
            try:
                one.look(requests)
            except Exception:
                log.exception("a collective in flight cannot be watched")
        return bool(old)
