"""The progress thread that moves collectives in flight, and the table of these.

The thread runs compiled code without the GIL; it needs an MPI library that lets several threads call it (``MPI_THREAD_MULTIPLE``, which
mpi4py asks for). With less, the MPI library's own collectives serve; what it does not have moves when its request is tested or
waited for.
"""

import atexit
import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.program import progress_fields as progress
from hpcoll.runtime.program.fields import HOLD, LET_GO, SERVE
from hpcoll.runtime.transports.mpi import function_address, library
from hpcoll.selection.config import log

MAX_SLOTS = 1024
CONTROL_LOCK = threading.RLock()  # of the thread that sends or receives control messages
_SEMAPHORE_NBYTES = 64


class Board:
    """The table of this process's operations (`hpcoll.runtime.engine.compiled.progress`)."""

    def __init__(self) -> None:
        self.words = np.zeros(progress.SLOTS + progress.SLOT * MAX_SLOTS, np.int64)
        self.slots = self.words[progress.SLOTS :].reshape(MAX_SLOTS, progress.SLOT)
        self.numbers = memoryview(self.words)  # type: ignore[arg-type]  # the same, at a third of the price
        self.address = self.words.ctypes.data
        self._semaphore = np.zeros(_SEMAPHORE_NBYTES, np.uint8)
        self.words[progress.SEMAPHORE] = self._semaphore.ctypes.data
        self.words[progress.COMPLETE] = library().grequest_complete
        for name in ("sem_wait", "sem_post", "sched_yield", "usleep", "clock_gettime"):
            self.words[getattr(progress, name.upper())] = function_address(name)
        self.free = list(range(MAX_SLOTS - 1, -1, -1))
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def help(self) -> None:
        """Start the progress thread, once."""
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None and can_be_helped():
                thread = threading.Thread(
                    target=call_compiled,
                    args=(SERVE, self.address, 0, 0, 0),
                    name="hpcoll-progress",
                    daemon=True,
                )
                thread.start()
                atexit.register(self.stop)
                self._thread = thread

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other threads of hpcoll's out of the MPI library: none moves operations, and none reads or sends control messages."""
        with CONTROL_LOCK:
            held = call_compiled(HOLD, self.address, 0, 0, 0)
            try:
                yield
            finally:
                call_compiled(LET_GO, self.address, held, 0, 0)

    def stop(self, seconds: float | None = None) -> None:
        """End the progress thread; wait for that, for so long at most."""
        self.words[progress.STOP] = 1
        _post(self.words)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(seconds)


def _post(words: np.ndarray) -> None:
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(int(words[progress.SEM_POST]))(
        int(words[progress.SEMAPHORE])
    )


@functools.lru_cache(maxsize=1)
def can_be_helped() -> bool:
    """Say whether the MPI library lets a progress thread call it; where not, log that once."""
    helped = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    if not helped:
        log.warning(
            "MPI was initialised without MPI_THREAD_MULTIPLE: collectives in flight are the MPI library's own, and those that it does not"
            " have move only in Wait and Test of their request"
        )
    return helped


boards: list[Board] = []


def board() -> Board:
    """Return the table, made when first asked for."""
    if not boards:
        boards.append(Board())
    return boards[0]
