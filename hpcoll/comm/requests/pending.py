"""Calls in flight on a communicator that was not used before: they begin when all its ranks have come to one, which nobody waits for.

Until then the request is ours and nothing runs. Whoever waits for it, or calls anything else on the communicator, comes to that first use;
where the program does neither, a thread does.
"""

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal

from mpi4py import MPI

from hpcoll.comm.requests.operation import Operation
from hpcoll.comm.requests.request import (
    Make,
    Request,
    failed,
    let_mpi_move,
    nothing,
    query,
    say_nothing,
    warn_of_dropped,
)
from hpcoll.comm.status.call_site import place_of_caller, standing_in

_SOON_S = 5e-4  # after which a thread begins what the program has not


class PendingStart:
    """A call that has yet to begin.

    Args:
        begin: Begins it once its communicator has a context; it is given `make`.

    Attributes:
        place: Where the program called.
        begun: It has begun, or cannot.
        error: Why it cannot.
    """

    def __init__(self, begin: Callable[[Make], object]) -> None:
        self._begin = begin
        self.place = place_of_caller()
        self._called = time.monotonic()
        self.grequest = MPI.Grequest.Start(_query, nothing, nothing, (self,))
        self.operation: Operation | None = None
        self.begun, self.error = False, None  # type: bool, BaseException | None
        self.request: Callable[[], PendingRequest | None] = lambda: None

    def make(self, operation: Operation) -> MPI.Grequest:
        """Return the request of the operation that runs it."""
        request = self.request()
        self.operation = operation
        operation.begun = self._called
        operation.called_at = self.place
        operation.dropped = request is None
        if request is not None:
            request._operation = operation
        return self.grequest

    def run(self) -> None:
        """Begin it."""
        with standing_in(self.place):
            try:
                self._begin(self.make)
                if self.operation is None:  # it has ended at once
                    self.grequest.Complete()
            except Exception as error:
                self.fail(error)
        self.begun = True

    def fail(self, error: BaseException) -> None:
        """Leave an error for whoever waits."""
        self.error = error
        self.begun = True
        if self.operation is None:
            self.grequest.Complete()


def _query(status: MPI.Status, start: PendingStart) -> None:
    """Answer the MPI library, as `hpcoll.comm.requests.request.query`."""
    if start.operation is not None:
        query(status, start.operation)
    elif start.error is not None:
        error = start.error
        start.error = None
        raise failed(error)
    else:
        say_nothing(status)


class PendingRequest(Request):
    """The request of a call that has yet to begin, or has begun since."""

    _start: PendingStart
    _come: Callable[[], object]

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Come to the first use of the communicator, and wait as `Request.Wait`."""
        self._refuse_at_the_end()
        if not self._start.begun:
            with contextlib.suppress(Exception):  # which is raised below
                self._come()
        return super().Wait(status)

    def ended_within(self, limit_s: float) -> bool:
        """Say whether it ends within so many seconds, the first use of the communicator among them."""
        end = time.monotonic() + limit_s
        while not self._start.begun and time.monotonic() < end:
            time.sleep(_SOON_S)
        return self._start.begun and super().ended_within(max(0.0, end - time.monotonic()))

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Say whether it has begun and is done."""
        if not self._start.begun:
            self._refuse_at_the_end()
            let_mpi_move()
            return False
        return super().Test(status)

    def __del__(self) -> None:
        if not self._start.begun and not Operation.over:
            warn_of_dropped(self._what)
        super().__del__()

    def _end(self, status: MPI.Status | None) -> Literal[True]:
        error = self._start.error
        self._start.error = None
        super()._end(status)
        if error is not None:
            raise error
        return True


class PendingStarts:
    """The calls of one communicator that have yet to begin, in order."""

    def __init__(self) -> None:
        self._waiting = deque[PendingStart]()
        self._changing = threading.Lock()
        self._over = False

    def add(self, start: PendingStart) -> bool:
        """Add a call; return False where there is a context by now, on which it may begin at once."""
        with self._changing:
            if not self._over:
                self._waiting.append(start)
            return not self._over

    def begin(self) -> None:
        """Begin all, now that there is a context."""
        while True:
            with self._changing:
                self._over = not self._waiting
                if self._over:
                    return
                start = self._waiting[0]
            start.run()
            self._waiting.popleft()

    def fail(self, error: BaseException) -> None:
        """Leave an error for all that wait: there is no context."""
        with self._changing:
            for start in self._waiting:
                start.fail(error)
            self._waiting.clear()

    @property
    def any_waits(self) -> bool:
        """Say whether some have yet to begin."""
        return bool(self._waiting)

    def come(self, come: Callable[[], object]) -> None:
        """Come to the first use in this thread, if nobody has; who waits is told of an error."""
        first = next(iter(list(self._waiting)), None)
        if first is not None:
            with contextlib.suppress(Exception), standing_in(first.place):
                come()


class _Starter:
    """The thread that sees to calls which the program leaves alone."""

    def __init__(self) -> None:
        self._left: SimpleQueue[tuple[PendingStarts, Callable[[], object]]] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def leave(self, starts: PendingStarts, come: Callable[[], object]) -> None:
        """Begin the calls of a communicator soon, if nobody else has; ``come`` comes to its first use."""
        self._left.put((starts, come))
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hpcoll-starter", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            starts, come = self._left.get()
            time.sleep(_SOON_S)
            if starts.any_waits:
                # each in a thread of its own: ranks may come to them in another order
                threading.Thread(
                    target=starts.come, args=(come,), name="hpcoll-first-use", daemon=True
                ).start()


_starter = _Starter()


def defer(
    starts: PendingStarts, come: Callable[[], object], what: str, begin: Callable[[Make], object]
) -> PendingRequest | None:
    """Return the request of a call on a communicator without a context; None where it has one by now.

    Args:
        starts: Calls of the communicator that have yet to begin.
        come: Comes to the first use of the communicator, which begins them.
        what: Name of the call, for texts.
        begin: Begins the call, as of `PendingStart`.
    """
    start = PendingStart(begin)
    request = PendingRequest(start.grequest)
    request._start = start
    request._come = come
    request._what = what
    start.request = weakref.ref(request)
    if not starts.add(start):
        start.begun = True
        start.grequest.Complete()
        MPI.Grequest.Wait(request)
        return None
    _starter.leave(starts, come)
    return request
