"""How calls of a communicator end that do not end well: watched while they wait, told to the other ranks, named, recorded."""

from typing import Protocol

from hpcoll.base.errors import CollectiveTimeout, DeviceError, PeerFailed, TransportError
from hpcoll.comm.recorder import write_record
from hpcoll.comm.resources import Resources
from hpcoll.comm.watch import Watch, tell
from hpcoll.runtime.engine.host_engine import HostEngine


def go_on(on: Resources, engine: HostEngine, status: int, limit_s: float | None) -> None:
    """Run to the end what has not ended at once, and see why where it does not end; arguments and errors as in `HostEngine.go_on`."""
    watch = Watch(on, engine)
    try:
        engine.go_on(status, watch.look, limit_s)
    except TransportError as error:
        watch.explain(error)
        raise
    finally:
        watch.end()


def check_others(on: Resources) -> None:
    """Raise what a call of another rank has failed with, before this rank calls."""
    if on.alarmed:
        Watch(on, None).hear()


class Interrupted(Protocol):
    """What `end_badly` needs of a context."""

    rank: int
    nranks: int
    resources: Resources

    def close(self, why: str) -> None:
        """Refuse further use."""

    def interrupted(self, what: str, error: BaseException) -> None:
        """`end_badly`."""


def end_badly(context: Interrupted, what: str, error: BaseException) -> None:
    """A collective that stopped half-way leaves messages under way: say where, tell the others, and refuse further use."""
    on, where = context.resources, f"rank {context.rank}: {what}, {context.nranks} ranks"
    kind = CollectiveTimeout if isinstance(error, CollectiveTimeout) else PeerFailed
    tell(on, kind, f"rank {context.rank} gave up: {type(error).__name__}: {error}")
    context.close(f"an earlier collective did not end ({where})")
    if on.config.record is not None:
        write_record(on.config.record, f"{type(error).__name__}: {error}")
    if isinstance(error, DeviceError):
        raise DeviceError(f"{where}: {error}", code=error.code) from None
    if isinstance(error, TransportError):
        raise type(error)(f"{where}: {error}", code=error.code) from None


class Closing:
    """Where the GPU may fail on this rank alone, before its part of a collective begins: the communicator then refuses further use.

    Entered at each call, and `contextlib.contextmanager` costs four times as much.
    """

    __slots__ = ("_context", "_what")

    def __init__(self, context: Interrupted, what: str) -> None:
        self._context, self._what = context, what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DeviceError):
            self._context.interrupted(self._what, error)
