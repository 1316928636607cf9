"""Calls in flight on a communicator that was not used before: they begin when all its ranks have come to one, which nobody waits for.

Until then the request is ours and nothing runs. Whoever waits for it, or calls anything else on the communicator, comes to that first use;
where the program does neither, a thread does.
"""

import contextlib
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from mpi4py import MPI

from hpcoll.comm.requests.operation import Operation
from hpcoll.comm.requests.request import Request, failed, let_mpi_move, nothing, query
from hpcoll.comm.status.call_site import place_of_caller, standing_in

_SOON_S = 5e-4  # after which a thread begins what the program has not


class PendingStart:
    """A call that has yet to begin.

    Args:
        begin: Begins it on the context of its communicator; it is given `make`.

    Attributes:
        begun: It has, or cannot; ``error`` says why not.
    """

    def __init__(self, begin: Callable[[Any, Callable[[Operation], MPI.Grequest]], object]) -> None:
        self._begin, self.place, self._called = begin, place_of_caller(), time.monotonic()
        self.grequest = MPI.Grequest.Start(_query, nothing, nothing, (self,))
        self.operation: Operation | None = None
        self.begun, self.error = False, None  # type: bool, BaseException | None
        self.request: Callable[[], PendingRequest | None] = lambda: None

    def make(self, operation: Operation) -> MPI.Grequest:
        """The request of the operation that runs it."""
        request = self.request()
        self.operation, operation.begun, operation.called_at = operation, self._called, self.place
        operation.dropped = request is None
        if request is not None:
            request._operation = operation
        return self.grequest

    def run(self, context: Any) -> None:
        """Begin it."""
        with standing_in(self.place):
            try:
                self._begin(context, self.make)
            except Exception as error:
                self.fail(error)
        self.begun = True

    def fail(self, error: BaseException) -> None:
        """Leave an error for whoever waits."""
        self.error, self.begun = error, True
        if self.operation is None:
            self.grequest.Complete()


def _query(status: MPI.Status, start: PendingStart) -> None:
    """As `hpcoll.comm.requests.request.query`."""
    if start.operation is not None:
        query(status, start.operation)
    elif start.error is not None:
        error, start.error = start.error, None
        raise failed(error) from error


class PendingRequest(Request):
    """The request of a call that has yet to begin, or has begun since."""

    _start: PendingStart
    _comm: Any

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        self._refuse_at_the_end()
        if not self._start.begun:
            with contextlib.suppress(Exception):  # which is raised below
                self._comm._context  # noqa: B018
        return super().Wait(status)

    def ended_within(self, limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while not self._start.begun and time.monotonic() < end:
            time.sleep(_SOON_S)
        return self._start.begun and super().ended_within(max(0.0, end - time.monotonic()))

    def Test(self, status: MPI.Status | None = None) -> bool:
        if not self._start.begun:
            self._refuse_at_the_end()
            let_mpi_move()
            return False
        return super().Test(status)

    def __del__(self) -> None:
        if not self._start.begun and not Operation.over:
            warnings.warn(f"{self._what}: its request was dropped and never waited for", ResourceWarning, stacklevel=2)
        super().__del__()

    def _end(self, status: MPI.Status | None) -> Literal[True]:
        error, self._start.error = self._start.error, None
        super()._end(status)
        if error is not None:
            raise error
        return True


class PendingStarts:
    """The calls of one communicator that have yet to begin, in order."""

    def __init__(self) -> None:
        self._waiting, self._changing, self._over = deque[PendingStart](), threading.Lock(), False

    def add(self, start: PendingStart) -> bool:
        """One more; False where there is a context by now, on which it may begin at once."""
        with self._changing:
            if not self._over:
                self._waiting.append(start)
            return not self._over

    def begin(self, context: Any) -> None:
        """Begin all, now that there is a context."""
        while True:
            with self._changing:
                self._over = not self._waiting
                if self._over:
                    return
                start = self._waiting[0]
            start.run(context)
            self._waiting.popleft()

    def fail(self, error: BaseException) -> None:
        """There is no context."""
        with self._changing:
            for start in self._waiting:
                start.fail(error)
            self._waiting.clear()

    @property
    def place(self) -> Any:
        """Where the program called the first of them."""
        return next((start.place for start in list(self._waiting)), None)


class _Starter:
    """The thread that sees to calls which the program leaves alone."""

    def __init__(self) -> None:
        self._left: deque[Any] = deque()
        self._some, self._starting = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def leave(self, comm: Any) -> None:
        """Begin the calls of a communicator soon, if nobody else has."""
        self._left.append(comm)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="hpcoll-starter", daemon=True)
                    self._thread.start()
        self._some.set()

    def _run(self) -> None:
        while True:
            self._some.wait()
            self._some.clear()
            time.sleep(_SOON_S)
            while self._left:
                comm = self._left.popleft()
                if "_context" not in vars(comm):  # each by itself: ranks may come to them in another order
                    threading.Thread(target=_come, args=(comm,), name="hpcoll-first-use", daemon=True).start()


def _come(comm: Any) -> None:
    with contextlib.suppress(Exception), standing_in(vars(comm)["_starts"].place):  # who waits is told
        comm._context  # noqa: B018


_starter = _Starter()


def defer(comm: Any, what: str, begin: Callable[[Any, Callable[[Operation], MPI.Grequest]], object]) -> PendingRequest | None:
    """The request of a call on a communicator without a context, and what that is; None where it has one by now."""
    starts, start = vars(comm).setdefault("_starts", PendingStarts()), PendingStart(begin)
    request = PendingRequest(start.grequest)
    request._start, request._comm, request._what, start.request = start, comm, what, weakref.ref(request)
    if not starts.add(start):
        start.begun = True
        start.grequest.Complete()
        MPI.Grequest.Wait(request)
        return None
    _starter.leave(comm)
    return request
