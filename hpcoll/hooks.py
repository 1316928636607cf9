"""Hooks of the program: functions that are called when a collective begins, stalls, ends or fails.

>>> def note(event: hpcoll.hooks.CallEvent) -> None: ...
>>> handle = hpcoll.hooks.register(note)   # doctest: +SKIP
>>> handle.remove()                        # doctest: +SKIP

While no function is registered, calls do not come by here at all: the first one puts methods that tell before those of `Communicator`.
"""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from inspect import signature
from typing import Any, Literal

from mpi4py import MPI

from hpcoll.base.errors import HpcollError
from hpcoll.base.hooks import Hook, HookHandle
from hpcoll.base.text import error_text
from hpcoll.comm.arguments.methods import METHODS, OBJECT_METHODS
from hpcoll.comm.communicator import CartCommunicator, Communicator, DistGraphCommunicator, GraphCommunicator
from hpcoll.comm.plans.segmentation import ledger_nbytes
from hpcoll.comm.requests.call_hooks import HOOKS, StalledCall
from hpcoll.comm.requests.operation import Operation
from hpcoll.comm.requests.persistent_request import PersistentRequest
from hpcoll.comm.status.call_site import Place, in_words, place_of_caller
from hpcoll.comm.status.names import region_text
from hpcoll.comm.team.resources import live_contexts
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import PROCESS
from hpcoll.selection.config import log

STALLS_S = 1.0  # after which a call that has not ended stalls
_NAMES = {name: name for name in METHODS} | dict.fromkeys(OBJECT_METHODS, "")
_NAMES |= {f"I{name.lower()}": name for name in METHODS} | {f"{name}_init": name for name in METHODS}
_WATCHED: list[tuple[type, str]] = [
    (kind, name)
    for kind in (Communicator, CartCommunicator, GraphCommunicator, DistGraphCommunicator)
    for name in _NAMES
    if hasattr(kind, name) and (kind is Communicator or not hasattr(Communicator, name))
]
_numbers = itertools.count(1)


@dataclass(frozen=True)
class CallEvent:
    """What happens to a collective of the program.

    Attributes:
        what: What happens to it.
        method: Its name, such as ``Allreduce``, ``Iallreduce`` or ``allreduce``; ``Allreduce_init`` also of each start.
        comm: The communicator.
        number: The same in all events of one call, and in no other call of this process.
        region: Names of the regions around it, such as ``step/halo``; empty outside of them.
        seconds: Seconds since it began.
        error: What it raises, where it fails.
    """

    what: Literal["begins", "stalls", "ends", "fails"]
    method: str
    comm: Communicator
    number: int
    region: str
    seconds: float
    error: BaseException | None
    _arguments: tuple[Any, ...]
    _place: Place
    _begun: float

    @property
    def place(self) -> str:
        """File and line of the program's call, such as ``train.py:88``."""
        return in_words(self._place)

    @cached_property
    def nbytes(self) -> int | None:
        """Bytes of this rank's message, as the ledger counts them; None: not known, of objects, GPU arrays and wrong arguments.

        It is read from the arguments when it is first asked for, which takes some microseconds.
        """
        name, context = _NAMES[self.method], vars(self.comm).get("_context")
        if not name or context is None:
            return None
        row = METHODS[name]
        with suppress(HpcollError, MPI.Exception, TypeError):
            if not row.gpu_arrays(self._arguments, context.rank):
                given = row.meant(self._arguments, context.rank)
                if name != "Reduce_scatter" or given[2] is not None:  # else all ranks would have to be asked
                    return ledger_nbytes(row.describe(context.caller, *given), context.nranks)
        return None

    def then(self, what: Any, error: BaseException | None = None) -> "CallEvent":
        """Return what happens to the same call now."""
        return replace(self, what=what, seconds=time.monotonic() - self._begun, error=error)


class _Inside(threading.local):
    call: CallEvent | None = None  # a call of this thread
    telling = False  # a function is called, of whose own collectives nobody is told


_inside = _Inside()
_in_flight: dict[Operation, CallEvent] = {}
_stalled = set[int]()  # numbers of calls that were told of


def register(function: Callable[[CallEvent], object]) -> HookHandle:
    """Call a function with each `CallEvent` of this process from now on; not collective.

    The function runs in the thread that calls, or for a call in flight that stalls in hpcoll's watchdog thread. An exception in it is
    logged as a warning and removes the function; the collective goes on, as other ranks are in it. What is no ``Exception``, such as
    KeyboardInterrupt, is raised.

    Args:
        function: Is given the event. Its own collectives are not told of.

    Returns:
        A handle, whose ``remove`` ends that; also a context manager.
    """

    def tell(event: CallEvent) -> None:
        try:
            function(event)
        except Exception as error:
            handle.remove()
            name = getattr(function, "__qualname__", function)
            log.warning("rank %d: hook %s is removed: %s", event.comm.rank, name, error_text(error))

    handle = HookHandle((_told, tell))
    return handle


def _tell(event: CallEvent) -> None:
    if not _inside.telling:
        _inside.telling = True
        try:
            _told(event)
        finally:
            _inside.telling = False


def _begin(method: str, comm: Any, arguments: tuple[Any, ...], tag: str | None = None) -> CallEvent:
    region = "/".join(filter(None, (region_text(int(PROCESS[f.REGION])), tag)))
    begun, place = time.monotonic(), place_of_caller()
    event = CallEvent("begins", method, comm, next(_numbers), region, 0.0, None, arguments, place, begun)
    _tell(event)
    return event


def _run(event: CallEvent, call: Callable[[], Any]) -> Any:
    """Run a call, and tell how it ends; of one that is in flight then its operation does."""
    before, _inside.call = _inside.call, event
    try:
        return call()
    except BaseException as error:
        _end(event, error)
        raise
    finally:
        _inside.call = before


def _end(event: CallEvent, error: BaseException | None) -> None:
    _stalled.discard(event.number)
    _tell(event.then("ends" if error is None else "fails", error))


def _follow(event: CallEvent, request: Any) -> None:
    """Tell of the end of a call when its request is waited for; now, where it has ended or the MPI library serves it."""
    operation = getattr(request, "_operation", None)
    if operation is None:
        _end(event, None)
    else:
        _in_flight[operation] = event


def _telling(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of communicators that tells of its calls."""
    bind, positions = signature(method).bind, METHODS[_NAMES[name]].arguments if _NAMES[name] else ()

    @wraps(method)
    def tells(self: Any, *arguments: Any, **named: Any) -> Any:
        context = vars(self).get("_context")
        if _inside.telling or (context is not None and context not in live_contexts):
            return method(self, *arguments, **named)
        bound = bind(self, *arguments, **named)
        bound.apply_defaults()
        given = bound.arguments
        event = _begin(name, self, tuple(given[one] for one in positions), given.get("tag"))
        made = _run(event, lambda: method(self, *arguments, **named))
        if name.endswith("_init"):
            made._event = event
        _follow(event, made if name.startswith("I") else None)
        return made

    return tells


def _start(self: PersistentRequest) -> None:
    if made := vars(self).get("_event"):
        event = _begin(made.method, made.comm, made._arguments)
        _run(event, lambda: _START(self))
        _follow(event, self)
    else:
        _START(self)


_START = PersistentRequest.Start


class _Watch:
    """The observer by which calls that stall, and those in flight that end, are told of."""

    def stalls(self, call: StalledCall, held: bool) -> None:
        event = _inside.call if call.form == "blocking" else None
        for operation, one in list(_in_flight.items()):
            if operation._stalled is call:
                event = one
        if event and event.number not in _stalled and time.monotonic() - event._begun > STALLS_S:
            _stalled.add(event.number)
            _tell(event.then("stalls"))

    def finished(self, operation: Operation) -> None:
        if event := _in_flight.pop(operation, None):
            _end(event, operation._error)


_watching: list[HookHandle] = []


def _changed() -> None:
    """Let methods tell while there is anybody to be told."""
    if _told.functions and not _watching:
        _watching.append(HOOKS.observe(_Watch()))
        for kind, name in _WATCHED:
            setattr(kind, name, _telling(name, getattr(kind, name)))
        setattr(PersistentRequest, "Start", _start)  # noqa: B010
    elif not _told.functions and _watching:
        _watching.pop().remove()
        for kind, name in _WATCHED:
            delattr(kind, name)
        setattr(PersistentRequest, "Start", _START)  # noqa: B010


_told = Hook[[CallEvent]](_changed)
