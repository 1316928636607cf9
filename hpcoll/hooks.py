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
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from inspect import signature
from typing import Any, Literal
from weakref import WeakSet

from hpcoll.base.hooks import Hook, HookHandle
from hpcoll.base.text import error_text
from hpcoll.comm.arguments.methods import METHODS, OBJECT_METHODS, described
from hpcoll.comm.communicator import CartCommunicator, Communicator, DistGraphCommunicator, GraphCommunicator
from hpcoll.comm.plans.segmentation import ledger_nbytes
from hpcoll.comm.requests.call_hooks import HOOKS, StalledCall
from hpcoll.comm.requests.operation import Operation
from hpcoll.comm.requests.persistent_request import PersistentRequest
from hpcoll.comm.requests.request import CollectiveRequest
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


@dataclass(eq=False)
class CallEvent:
    """Something that happens to a collective of the program.

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

        It is read from the arguments when it is first asked for, which takes some 100 us.
        """
        name, context = _NAMES[self.method], vars(self.comm).get("_context")
        call = described(name, self._arguments, context.caller) if name and context else None
        return None if call is None else ledger_nbytes(call, self.comm.size)


class _Inside(threading.local):
    call: CallEvent | None = None  # a call of this thread
    telling = False  # a function is called, of whose own collectives nobody is told


_inside = _Inside()
_in_flight: dict[Operation, CallEvent] = {}
_stalled: WeakSet[StalledCall] = WeakSet()  # of which was told


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


def _run(method: str, comm: Any, arguments: tuple[Any, ...], tag: str | None, call: Callable[[], Any]) -> Any:
    """Run a call, and tell of it; of one that is in flight its operation ends, unless the MPI library serves it."""
    region = "/".join(filter(None, (region_text(int(PROCESS[f.REGION])), tag)))
    begun, place = time.monotonic(), place_of_caller()
    event = CallEvent("begins", method, comm, next(_numbers), region, 0.0, None, arguments, place, begun)
    _tell(event)
    before, _inside.call = _inside.call, event
    try:
        made = call()
    except BaseException as error:
        _tell_more(event, "fails", error)
        raise
    finally:
        _inside.call = before
    if isinstance(made, CollectiveRequest) and made._operation is not None:
        _in_flight[made._operation] = event
    else:
        _tell_more(event, "ends")
    if isinstance(made, PersistentRequest):
        vars(made)["_told"] = method, comm, arguments
    return made


def _tell_more(event: CallEvent, what: Any, error: BaseException | None = None) -> None:
    _tell(replace(event, what=what, seconds=time.monotonic() - event._begun, error=error))


def _telling(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of communicators that tells of its calls."""
    defaults = {key: parameter.default for key, parameter in list(signature(method).parameters.items())[1:]}
    positions = METHODS[_NAMES[name]].arguments if _NAMES[name] else ()

    @wraps(method)
    def tells(self: Any, *arguments: Any, **named: Any) -> Any:
        call, context = partial(method, self, *arguments, **named), vars(self).get("_context")
        if _inside.telling or (context is not None and context not in live_contexts):
            return call()
        given = {**defaults, **dict(zip(defaults, arguments, strict=False)), **named}
        return _run(name, self, tuple(given[position] for position in positions), given.get("tag"), call)

    return tells


_START = PersistentRequest.Start


def _start(self: PersistentRequest) -> None:
    def call() -> PersistentRequest:
        _START(self)
        return self

    told: tuple[str, Any, tuple[Any, ...]] | None = vars(self).get("_told")
    if told:
        _run(*told, None, call)
    else:
        _START(self)


class _Watch:
    """The observer by which calls that stall, and those in flight that end, are told of."""

    def stalls(self, call: StalledCall, held: bool) -> None:
        """Tell once of a call that has not ended after a second."""
        event = _inside.call if call.form == "blocking" else None
        for operation, its_event in list(_in_flight.items()):
            if operation._stalled is call:
                event = its_event
        if event and call not in _stalled and time.monotonic() - event._begun > STALLS_S:
            _stalled.add(call)
            _tell_more(event, "stalls")

    def finished(self, operation: Operation) -> None:
        """Tell of the end of a call in flight."""
        if event := _in_flight.pop(operation, None):
            _tell_more(event, "fails" if operation._error else "ends", operation._error)


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
