"""Futures of collectives whose callbacks may call collectives: all ranks call those in the same order.

Callbacks of one future run one after another, but those of several, such as the buckets of a model, would run in whichever order their
operations end, which differs from rank to rank. So they are told apart by depth, 1 for what is given to `then` of an operation's future, 2
for what is given to `then` of that: each depth has a thread, which runs callbacks in the order in which the program gave them, and a
communicator of its own for what they call.
"""

import atexit
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from hpcoll.comm.communicator import Communicator
from hpcoll.comm.requests.operation import drain

_Given = tuple["torch.futures.Future[Any]", Callable[..., Any], "torch.futures.Future[Any]"]
_thread = threading.local()
END_S = 1.0  # for a thread to end


def in_callback() -> bool:
    """Say whether this thread runs callbacks, and therefore waits for what it starts."""
    return hasattr(_thread, "depth")


def run_callbacks(depth: "Depth | None" = None) -> None:
    """Say that this thread runs callbacks, at some depth of a group."""
    _thread.depth = depth


class Depth:
    """The communicator that calls of one depth use, and the thread that makes them; depth 0 is the program's own threads.

    The communicator is freed with the group.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.inside = threading.RLock()  # a communicator serves one thread at a time
        self._given: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hpcoll-torch-callbacks", daemon=True)

    def put(self, *given: Any) -> None:
        """Have a callback run behind those given before: a future, its callback, and the future of what that returns."""
        if self._thread.ident is None:
            atexit.register(self.end)  # a thread that the interpreter ends inside of torch ends the process
            self._thread.start()
        self._given.put(given)

    def end(self) -> None:
        """End the thread, unless it waits for what does not come."""
        if self._thread.is_alive():
            self._given.put(None)
            self._thread.join(END_S)
        atexit.unregister(self.end)

    def free(self) -> None:
        """End the thread and free the communicator, collectively; what does not end in time keeps what it needs."""
        self.end()
        context = self.comm._context
        if not context.closed and not drain(context, context.limit_s):
            context.close("it was freed before a collective ended")
        self.comm.Free()

    def _run(self) -> None:
        run_callbacks(self)
        while (given := self._given.get()) is not None:
            answer(*given)
            del given  # else it would live until there is another


class Depths:
    """The depths of a process group; depth 0 has its communicator. All ranks alike make a further one when its first callback is given."""

    def __init__(self, comm: Communicator) -> None:
        self.all = [Depth(comm)]

    @property
    def here(self) -> Depth:
        """The depth that this thread's calls use; callbacks of other groups call like the program."""
        depth = getattr(_thread, "depth", None)
        return depth if depth in self.all else self.all[0]

    def put(self, depth: int, *given: Any) -> None:
        """Have a callback run at some depth."""
        if depth == len(self.all):
            first = self.all[0].comm
            with self.all[0].inside:
                comm = first.Dup()
            comm._context.limit_s = first._context.limit_s
            self.all.append(Depth(comm))
        self.all[depth].put(*given)


class Future(torch.futures.Future[Any]):
    """The future of a collective, or of a result that comes after ``depth`` callbacks; ``devices`` hold tensors of the result."""

    def __init__(self, depths: Depths, depth: int = 0, devices: list[torch.device] | None = None) -> None:
        super().__init__(devices=devices)
        self._depths = depths
        self._depth = depth
        self._devices = devices

    def then(self, callback: Callable[..., Any]) -> "Future":
        """Return the future of a callback's result; the callback is called with this future when it is done."""
        result = Future(self._depths, self._depth + 1, self._devices)
        if in_callback():
            answer(self, callback, result)
        else:
            self._depths.put(self._depth + 1, self, callback, result)
        return result

    def add_done_callback(self, callback: Callable[..., Any]) -> None:
        """Call back as `then` does, and drop the result."""
        self.then(callback)


def answer(
    future: "torch.futures.Future[Any]", callback: Callable[..., Any], result: "torch.futures.Future[Any]"
) -> None:
    """Call back when a future is done, well or badly, and complete the future of the result."""
    with suppress(Exception):  # the callback sees it
        future.wait()
    try:
        value = callback(future)
    except Exception as error:
        result.set_exception(error)
    else:
        result.set_result(value)
