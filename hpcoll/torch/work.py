"""Operations in flight as torch.distributed sees them: `Work`, its future, and the thread that ends work for which only a future waits."""

import atexit
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcoll.base.errors import CollectiveTimeout, TransportError
from hpcoll.comm.requests.request import Request
from hpcoll.torch.futures import END_S, Depths, Future, in_callback, run_callbacks
from hpcoll.torch.tensors import Store

_SLICE_S = 500e-6  # how long one operation is waited for while others may end
_NAP_S = 50e-6
_kept: list[Any] = []
_AT_ONCE = 200  # looks at a request of the MPI library's before it naps between them


def ended_within(request: MPI.Request, limit_s: float, status: MPI.Status | None = None) -> bool:
    """Wait for a request, but no longer than a limit, and say whether it has ended; the MPI library has no such wait."""
    if isinstance(request, Request):
        return request.ended_within(limit_s)
    end = time.monotonic() + limit_s
    looks = 0
    while not request.Test(status):
        looks += 1
        if time.monotonic() > end:
            return False
        time.sleep(0 if looks < _AT_ONCE else _NAP_S)
    return True


class Work(dist.Work):
    """A collective or message in flight, or, without requests, done.

    ``what`` has rank and operation in words, and ``limit_s`` the seconds that it may take. ``stores`` are functions that store the result
    in the tensors, called once at the end. ``depths`` run callbacks of a collective; messages have none.
    """

    def __init__(
        self,
        what: str,
        limit_s: float,
        tensors: Sequence[torch.Tensor],
        requests: Sequence[MPI.Request] = (),
        stores: Sequence[Store] = (),
        depths: Depths | None = None,
    ) -> None:
        super().__init__()
        self._what = what
        self._end = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._tensors = tensors
        self._requests = list(requests)
        self._stores = stores
        self._depths = depths
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._done = not requests
        self._ending = threading.Lock()
        self._status = MPI.Status() if requests else None

    @classmethod
    def of_all(cls, what: str, limit_s: float, works: Sequence["Work"]) -> "Work":
        """Return the work of several, for which nobody waits by themselves."""
        tensors = [tensor for work in works for tensor in work._tensors]
        requests = [request for work in works for request in work._requests]
        stores = [store for work in works for store in work._stores]
        depths = next((work._depths for work in works if work._depths), None)
        return cls(what, limit_s, tensors, requests, stores, depths)

    def turn(self, limit_s: float) -> bool:
        """Wait for its end, but no longer than a limit, finish it where it has ended, and say whether it has."""
        if self._done or not self._ending.acquire(timeout=limit_s):
            return self._done
        try:
            if not self._done and all(
                ended_within(request, limit_s, self._status) for request in self._requests
            ):
                self._finish()
            elif not self._done and time.monotonic() > self._end:
                self._fail(self._given_up())
        except Exception as error:  # told to whoever waits
            self._fail(error)
        finally:
            self._ending.release()
        return self._done

    def _given_up(self) -> Exception:
        """Return the error of work that did not end in time; memory of a message that may still come is kept."""
        error = CollectiveTimeout(f"it did not end within the timeout of {self._limit_s:g} s")
        titles = []
        for request in self._requests:
            if isinstance(request, Request):
                titles.append(request.give_up(error))
            else:
                _kept.append((request, self._tensors))
        return CollectiveTimeout(f"{self._what}: {error}{f' ({titles[0]})' if titles else ''}")

    def _finish(self) -> None:
        for request in self._requests:
            # a status of the library's own was filled by its Test
            request.Wait(self._status if isinstance(request, Request) else None)
        for store in self._stores:
            store()
        self._end_with(None)

    def _fail(self, error: Exception) -> None:
        self._end_with(self._as_torch(error) if isinstance(error, TransportError | MPI.Exception) else error)

    def _as_torch(self, error: Exception) -> Exception:
        """Return an error as torch has it; hpcoll's own is its context, and what that says of ranks is in ``rows``, too."""
        text = str(error).removeprefix(f"{self._what}: ").removeprefix(f"{self._what.partition(': ')[0]}: ")
        named = dist.DistBackendError(f"{self._what}: {text}")
        named.__context__ = error
        named.__suppress_context__ = True
        named.rows = getattr(error, "rows", ())
        named.failure = getattr(error, "failure", "")
        return named

    def _end_with(self, error: Exception | None) -> None:
        self._error = error
        self._requests = []
        self._stores = ()
        self._done = True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is done; DistBackendError where that is not within ``timeout``, the group's if zero, or the MPI library failed."""
        end = self._end
        if timeout and timeout.total_seconds() > 0:
            end = time.monotonic() + timeout.total_seconds()
        while not self.turn(max(min(end - time.monotonic(), 1.0), 0)):
            if time.monotonic() > end:
                text = f"{self._what}: it did not end within the timeout of {timeout.total_seconds():g} s"
                raise self._as_torch(CollectiveTimeout(text))
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Say whether it is done, well or badly."""
        return self.turn(0)

    def is_success(self) -> bool:
        """Say whether it is done well."""
        return self.turn(0) and self._error is None

    def exception(self) -> BaseException | None:
        """Return its error; None where it is not done, or done well."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that it fills."""
        return list(self._tensors)

    def source_rank(self) -> int:
        """Return the sender of a message, once it is there."""
        return -1 if self._status is None else self._status.source

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Wait as `wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait as `wait` does, so that work put on a stream later finds it done."""
        self.wait()

    def get_future(self) -> "torch.futures.Future[Any]":
        """Return the future of its tensors, or its error; callbacks run in threads of hpcoll."""
        if self._future is None:
            devices = list({tensor.device for tensor in self._tensors if tensor.is_cuda}) or None
            self._future = (
                Future(self._depths, 0, devices) if self._depths else torch.futures.Future(devices=devices)
            )
            if in_callback():
                with suppress(Exception):  # the future has it
                    self.wait()
            if self.turn(0):
                self._tell()
            else:
                _waiter.add(self)
        return self._future

    def told_within(self, limit_s: float) -> bool:
        """Complete the future if the work ends within a limit, and say whether it has."""
        if self.turn(limit_s):
            self._tell()
            return True
        return False

    def _tell(self) -> None:
        assert self._future is not None
        if self._error is None:
            self._future.set_result(list(self._tensors))
        else:
            self._future.set_exception(self._error)


class _Waiter:
    """The thread that ends operations for which only a future waits; of several, the first that ends."""

    def __init__(self) -> None:
        self._added: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hpcoll-torch", daemon=True)
        self._starting = threading.Lock()

    def add(self, work: Work) -> None:
        """Let the thread end an operation."""
        with self._starting:
            if self._thread.ident is None:
                atexit.register(self._end)
                self._thread.start()
        self._added.put(work)

    def _end(self) -> None:
        """End the thread with the program: one that the interpreter ends inside of torch ends the process."""
        self._added.put(None)
        self._thread.join(END_S)

    def _run(self) -> None:
        run_callbacks()  # of messages
        works: list[Work | None] = []
        while None not in works:
            if not works:
                works.append(self._added.get())
            while not self._added.empty():
                works.append(self._added.get())
            works = [work for work in works if work is None or not work.told_within(_SLICE_S)]


_waiter = _Waiter()
