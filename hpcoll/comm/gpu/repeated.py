"""Calls on GPU arrays like an earlier one, which need no description.

Short ones are copied to page-locked memory, where the call cache finds them, whatever their sizes: compiled code does all that in one
crossing. Longer ones are known by the addresses and sizes of their arrays. A call that is not found here, or that must wait for another,
takes the usual way from its start: nothing has left this rank by then.
"""

from collections.abc import Hashable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import ArgumentError
from hpcoll.comm.arguments.call import Call
from hpcoll.comm.arguments.methods import FOUND_BY, METHODS, Caller
from hpcoll.comm.plans.plan import Plan, Prepared
from hpcoll.runtime.engine.call_cache import CallTable, Key
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.gpu_engine import GpuEngine
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.gpu.arrays import LEGACY_STREAM, enter, stream_handle, torch_stream
from hpcoll.runtime.gpu.cuda import Driver, driver
from hpcoll.runtime.gpu.device import gpu_of, pinned
from hpcoll.runtime.program import copy_fields as g
from hpcoll.runtime.program.call_fields import MANY, TYPED
from hpcoll.runtime.program.fields import COPIED

SHORT_NBYTES = 64 << 10  # of a message; longer ones run by a program for GPU memory
_MOST_KNOWN = 64  # longer calls that are known, and forms of short ones
_MOST_NBYTES = 256 << 20  # of copies that no call uses
# methods whose calls ranks know to be short
_MAY_BE_SHORT = frozenset(name for name, row in METHODS.items() if not {MANY, TYPED} & {*row.holds})


class SeenCall(NamedTuple):
    """A call on arrays in GPU memory without gaps, as their interfaces describe them.

    Attributes:
        form: Shape and element type of each array, with the rest of its spec; other arguments, such as an operator, by their identity.
        sent: Position of the array that is sent, or None.
        received: Position of the array that is received into, or None.
        addresses: Of these two arrays, 0 where there is none.
        sizes: Their bytes.
        stream: Handle of the stream that orders the call.
        is_copied: Copies can stand for them: they are all that it says of its buffers, and ranks know how long messages are.
    """

    method: str
    arguments: tuple[Any, ...]
    form: tuple[Hashable, ...]
    sent: int | None
    received: int | None
    addresses: tuple[int, int]
    sizes: tuple[int, int]
    stream: int
    is_copied: bool

    @property
    def known_by(self) -> Hashable:
        """Form, memory and stream, which tell it from all other calls of its method."""
        return self.form, self.addresses, self.stream

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The addresses of the first byte and after the last one of each array."""
        pairs = zip(self.addresses, self.sizes, strict=True)
        return [(first, first + nbytes) for first, nbytes in pairs if first]


@lru_cache(4096)
def _nbytes(described: Any) -> int:
    """Return the bytes of an array of a shape and an element type."""
    return prod(described[0]) * np.dtype(described[1]).itemsize


def look(caller: Caller, method: str, arguments: tuple[Any, ...], stream: Any) -> SeenCall | None:
    """Return a call of a rank; None where its arguments need a closer look. They are those of `hpcoll.comm.context.context.Context.run`."""
    try:
        asked = 0 if stream is None else stream_handle(stream, caller.rank)
        sent, received = METHODS[method].buffers(arguments, caller.rank)
        form: list[Hashable] = []
        addresses, sizes, order, bare = [0, 0], [0, 0], asked, True
        for at, argument in enumerate(arguments):
            if at != sent and at != received:
                form.append(argument if isinstance(argument, int) else id(argument))
            elif argument is MPI.IN_PLACE:
                form.append(None)
            else:
                more: Hashable = None
                if type(argument) in (list, tuple):
                    argument, *rest = argument
                    more, bare = _told(rest), False
                interface = argument.__cuda_array_interface__
                (pointer, readonly), typestr = interface["data"], interface["typestr"]
                if (
                    interface.get("strides") is not None
                    or interface.get("mask") is not None
                    or typestr[1] == "V"
                    or not pointer
                    or (readonly and at == received)
                ):
                    return None
                own = asked or interface.get("stream") or torch_stream(argument) or LEGACY_STREAM
                order = order or own
                if order != own:
                    return None
                described = interface["shape"], typestr, more
                form.append(described)
                addresses[at == received], sizes[at == received] = pointer, _nbytes(described)
        ends = (addresses[0], addresses[1]), (sizes[0], sizes[1])
        copied = bare and method in _MAY_BE_SHORT
        return (
            SeenCall(method, arguments, tuple(form), sent, received, *ends, order, copied) if order else None
        )
    except (
        ArgumentError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ):  # the usual way says what is wrong
        return None


def _told(item: Any) -> Hashable:
    """Return what tells an item of a spec from others; raise TypeError for an item that may change unseen."""
    if type(item) in (list, tuple):
        return tuple(map(_told, item))
    if isinstance(item, MPI.Datatype):
        return id(item), MPI._handleof(item)
    if type(item) is np.ndarray:
        return item.tobytes(), item.dtype.str, item.shape
    if item is None or isinstance(item, int | str | np.integer):
        return item
    raise TypeError


class Copies:
    """Page-locked copies of a call's arrays, and what compiled code needs to run it on them.

    Attributes:
        arguments: Arguments of the method, on the copies.
        nbytes: Bytes of the copies.

    Args:
        seen: The call, or another one of its form.
        arguments: As above.
        runs: Fields of `hpcoll.runtime.program.copy_fields` that say what is run.
        apart: The result goes to the GPU on a stream of its own, behind no work that the program begins meanwhile.
    """

    def __init__(
        self, seen: SeenCall, arguments: tuple[Any, ...], runs: dict[int, int], *, apart: bool
    ) -> None:
        cuda = driver()
        assert cuda is not None
        self.arguments, self._cuda, self._ordinal = arguments, cuda, cuda.current_ordinal() or 0
        self.nbytes = sum(seen.sizes)
        self._run: tuple[int, ...] = ()  # as `started` gives it
        in_place = seen.sent is not None and not seen.addresses[0]
        read = in_place or not METHODS[seen.method].fills
        fields = runs | {g.HOME: gpu_of(self._ordinal).stream if apart else 0}
        sides = (g.SENT, seen.sent, 1, 0), (g.RECEIVED, seen.received, int(read), 1)
        for (side, at, fetched, stored), nbytes in zip(sides, seen.sizes, strict=True):
            if at is not None and nbytes:
                words = arguments[at].ctypes.data, nbytes, fetched, stored
                fields |= {side + i: word for i, word in enumerate(words)}
        self._words = _words(cuda, fields)
        self._address = self._words.ctypes.data

    def started(self, seen: SeenCall) -> tuple[int, ...]:
        """Return what `hpcoll.runtime.engine.entry.call_compiled` takes to run a call of their form."""
        self._run = COPIED, self._address, *seen.addresses, seen.stream
        return self._run

    def run(self, seen: SeenCall) -> int:
        """Run a call of their form; the answer is one of `hpcoll.runtime.engine.compiled.copied_calls.run_copied`."""
        return call_compiled(*self.started(seen))

    def store(self) -> None:
        """Copy the result of a call that did not end in `run` to the GPU, and wait for that; raise DeviceError when the driver fails."""
        *_, received, stream = self._run
        host, nbytes, _, stored = map(int, self._words[g.RECEIVED :])
        if received and stored:
            enter(self._cuda, self._ordinal)
            stream = int(self._words[g.HOME]) or stream
            self._cuda.copy(received, host, nbytes, stream)
            self._cuda("cuStreamSynchronize", stream)


class OneShotCall:
    """The words by which compiled code runs a call by its one-shot kernel, on any arrays of its form.

    Args:
        seen: The call, or another one of its form.
        engine: Engine that has run it.
        plan: Its plan.
        keep: Whatever else the form names by its identity.
    """

    def __init__(self, seen: SeenCall, engine: GpuEngine, plan: Plan, keep: object) -> None:
        self.engine, self.plan, self._keep = engine, plan, keep
        fields = {g.EVENT: engine.first_event, g.ENGINE: engine.address}
        fields |= {g.SENT + g.NBYTES: seen.sizes[0], g.RECEIVED + g.NBYTES: seen.sizes[1]}
        self._words = _words(engine.gpu.driver, fields)
        self._address = self._words.ctypes.data

    def started(self, seen: SeenCall) -> tuple[int, ...]:
        """Return what `hpcoll.runtime.engine.entry.call_compiled` takes to run a call of the form."""
        return COPIED, self._address, *seen.addresses, seen.stream


def _words(cuda: Driver, fields: dict[int, int]) -> np.ndarray:
    """Return words of `hpcoll.runtime.program.copy_fields`."""
    words = np.zeros(g.NFIELDS, np.int64)
    for field, value in (fields | {field: cuda.address(name) for field, name in _FUNCTIONS.items()}).items():
        words[field] = value
    return words


_FUNCTIONS = {
    g.IS_CAPTURING: "cuStreamIsCapturing",
    g.ADDRESS_RANGE: "cuMemGetAddressRange_v2",
    g.COPY_ASYNC: "cuMemcpyAsync",
    g.SYNCHRONIZE: "cuStreamSynchronize",
    g.RECORD_EVENT: "cuEventRecord",
}


class ShortCalls:
    """Copies for calls of one communicator by the host's way, by the table that finds them and their form."""

    def __init__(self) -> None:
        self._idle: dict[Hashable, list[Copies]] = {}
        self._nbytes = 0  # of all that were given back

    def take(self, caller: Caller, seen: SeenCall, table: CallTable) -> Copies:
        """Return copies that no call uses, until they are given back."""
        idle = self._idle.get((table.address, seen.form))
        if not idle:
            return _made(caller, seen, table)
        copies = idle.pop()
        self._nbytes -= copies.nbytes
        return copies

    def give(self, seen: SeenCall, table: CallTable, copies: Copies) -> None:
        """Take back the copies of a call that has ended."""
        self._nbytes += copies.nbytes
        if len(self._idle) >= _MOST_KNOWN or self._nbytes > _MOST_NBYTES:
            self.forget()
        self._idle.setdefault((table.address, seen.form), []).append(copies)

    def forget(self) -> None:
        """Forget all copies."""
        self._idle.clear()
        self._nbytes = 0


def _made(caller: Caller, seen: SeenCall, table: CallTable) -> Copies:
    cuda, theirs = driver(), list(seen.arguments)
    assert cuda is not None
    for at in (seen.sent, seen.received):
        if at is not None and (described := seen.form[at]) is not None:
            theirs[at] = pinned(cuda, _nbytes(described)).view(described[1])  # type: ignore[index]
    arguments = tuple(theirs)
    send, recv, op, _ = FOUND_BY[seen.method](arguments, caller)
    runs = {g.TABLE: table.address, g.SEND: id(send), g.RECV: id(recv), g.OP: id(op)}
    return Copies(seen, arguments, runs, apart=table.starts)


class KnownCalls:
    """Longer calls of one communicator that a program for GPU memory serves, by the addresses and sizes of their arrays."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, tuple[Prepared, tuple[bool, bool] | None, object]] = {}
        self.one_shot: dict[Hashable, OneShotCall] = {}  # by key and form

    def find(self, key: Key, seen: SeenCall) -> tuple[Prepared, tuple[bool, bool] | None] | None:
        """Return a call that is known, not launched yet, and what of its memory peers could map; None where there is none."""
        known = self._calls.get((key, seen.known_by))
        return None if known is None else known[:2]

    def add(self, key: Key, seen: SeenCall, prepared: Prepared, engine: HostEngine) -> None:
        """Let a call that an engine has run be found, if nothing of how it was described is this one's alone. No array is kept."""
        call, launched = prepared.described, prepared.call
        if (
            call is None
            or launched is None
            or call.finish is not None
            or call.before
            or not prepared.plan.kept
        ):
            return
        if max(len(self._calls), len(self.one_shot)) >= _MOST_KNOWN:
            self.forget()
        rest = [one[1:] if type(one) in (list, tuple) else one for one in seen.arguments]
        others = [
            one for one, form in zip(rest, seen.form, strict=True) if type(form) is not tuple or form[2]
        ]
        if call.one_shot and isinstance(engine, GpuEngine):
            self.one_shot[key, seen.form] = OneShotCall(seen, engine, prepared.plan, _held(others))
        self._calls[key, seen.known_by] = (
            prepared._replace(call=None, arguments=(), describe=_anew, described=call._replace(keep=())),
            launched.exported,
            _held(others),  # whose addresses are not to be used again
        )

    def forget(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        self.one_shot.clear()


def _held(item: Any) -> Any:
    """Return what holds an item, however a list in it changes."""
    return tuple(map(_held, item)) if type(item) in (list, tuple) else item


def _anew() -> Call | None:
    raise AssertionError("a blocking call is described once")
