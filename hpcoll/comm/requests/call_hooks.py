"""The hooks of calls, and what owns calls: whoever wants to hear of calls observes them here, and calls run the same without anybody.

Diagnosis does (`hpcoll.comm.context.attach`), telemetry (`hpcoll.comm.communicator`), and functions of programs (`hpcoll.hooks`).
"""

import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, DeviceError, TransportError
from hpcoll.base.hooks import Hook, HookHandle
from hpcoll.base.text import text_of
from hpcoll.comm.arguments.call import Form
from hpcoll.comm.status.regions import region_left
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.schedules.row import Algorithm

_WHOLE = 1 << 20  # characters of an error, which may tell of many ranks


class CallOwner:
    """The communicator of a call, as the call's operation sees it. This one is of messages: one that fails leaves collectives alone.

    Attributes:
        rank: Rank of this process.
        limit_s: Seconds that a blocking call without ``timeout=`` may take, alike on all ranks; None: what ``HPCOLL_TIMEOUT`` says.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.limit_s: float | None = None

    def run_to_end(self, engine: HostEngine, status: int, limit_s: float | None, what: str = "") -> None:
        """Run a blocking call to its end; arguments as of `HostEngine.go_on` and `StalledCall`.

        Raises:
            TransportError: The call failed.
        """
        since = 1e-9 * float(engine.state[f.STARTED])
        limit_s = self.limit_s if limit_s is None else limit_s
        call = StalledCall(self, engine, since, limit_s=limit_s, what=what)
        try:
            engine.go_on(status, lambda: HOOKS.stalls(call, True))
        except TransportError as error:
            HOOKS.fails(self, error, call)
            raise
        finally:
            HOOKS.ends(call)

    def interrupted(self, what: str, error: BaseException) -> None:
        """Say which call has failed; it stopped half-way.

        Raises:
            TransportError: ``error``, with rank and call, where it is one.
        """
        if isinstance(error, TransportError):
            raise TransportError(
                f"rank {self.rank}: {what}: {text_of(error, _WHOLE)}", code=error.code
            ) from None


class CollectiveOwner(CallOwner):
    """The communicator of collectives: each is refused once one has failed, which closes the communicator.

    Attributes:
        nranks: Ranks of the communicator.
        persistent: Living persistent requests by index of their message context.
        closed: Why the communicator cannot be used any more; empty while it can.
    """

    def __init__(self, rank: int, nranks: int) -> None:
        super().__init__(rank)
        self.nranks = nranks
        self.closed = ""
        self.persistent: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def check(self, call: "BeginningCall | None" = None) -> None:
        """Refuse a communicator that cannot be used any more, before a call begins.

        Raises:
            ArgumentError: The communicator is closed; says why.
            Revoked: It is revoked.
            MismatchError, PeerFailed, CollectiveTimeout: A call of another rank has failed.
        """
        if self.closed or MPI.Is_finalized():
            raise self.refusal()
        try:
            HOOKS.begins(self, call or BeginningCall())
        except TransportError as error:
            if not self.closed:
                self.interrupted("a call that did not begin", error)
            raise

    def refusal(self) -> Exception:
        """Return the error of a call on a communicator that is closed."""
        why = "MPI is finalised" if MPI.Is_finalized() else self.closed
        return ArgumentError(f"rank {self.rank}: this communicator cannot be used: {why}")

    def close(self, why: str) -> None:
        """Refuse further use."""
        self.closed = why

    def interrupted(self, what: str, error: BaseException) -> None:
        """Close the communicator after a collective that stopped half-way, which leaves messages under way.

        Raises:
            TransportError, DeviceError, MemoryError: ``error``, with rank and call, where it is one of these; as it is where it has them.
        """
        where = f"rank {self.rank}: {what}, {self.nranks} ranks"
        text = text_of(error, _WHOLE).removeprefix(f"rank {self.rank}: ")
        self.close(f"an earlier collective did not end ({where})")
        HOOKS.fails(self, error, None)
        if isinstance(error, MemoryError):
            raise MemoryError(f"{where}: {text}") from None
        if isinstance(error, TransportError) and error.rank >= 0:
            try:
                raise error from None
            finally:
                del error  # whose traceback has this frame
        if isinstance(error, DeviceError | TransportError):
            raise type(error)(f"{where}: {text}", code=error.code) from None

    def failure_scope(self, what: str, elements: int = 0) -> "FailureScope":
        """Return a context manager for what may fail on this rank alone: then all ranks give up; ``what`` may have a gap for elements."""
        return FailureScope(self, what, elements)


class FailureScope:
    """A context manager for what may fail on this rank alone before its part of a collective begins: the GPU, memory, a service collective.

    Entering it at each call costs a quarter of what `contextlib.contextmanager` does.
    """

    __slots__ = ("_calls", "_elements", "_what")

    def __init__(self, calls: CollectiveOwner, what: str, elements: int) -> None:
        self._calls = calls
        self._what = what
        self._elements = elements

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, DeviceError | MemoryError | TransportError):
            self._calls.interrupted(self._what.format(self._elements), error)


def other_thread(rank: int) -> ArgumentError:
    """Return the error of a thread that calls while another one is inside the communicator."""
    return ArgumentError(
        f"rank {rank}: another thread is inside a collective on this communicator: give each thread its own Dup()"
    )


class BeginningCall(NamedTuple):
    """A call that is about to begin, as the program made it.

    Attributes:
        method: mpi4py's name of the blocking method; empty where no call begins.
        arguments: Positional arguments of the program.
        form: Form in which the program calls.
        turn: Which message context of calls in flight it takes.
        root: Root, where it is known.
        limit_s: Seconds that the call may take.
        order: The caller's ``order=``; ``algorithm``, ``segment`` and ``stream`` are its keywords, too.
        planned: The call is a persistent request that the MPI library is to serve, and is compared on all ranks.
    """

    method: str = ""
    arguments: tuple[Any, ...] = ()
    form: Form = "blocking"
    turn: int = 0
    root: Any = None
    limit_s: float | None = None
    order: str | None = None
    algorithm: str | Algorithm | None = None
    segment: Any = None
    stream: Any = None
    planned: bool = False

    @property
    def in_flight(self) -> bool:
        """Say whether it is to return before it has ended."""
        return self.form != "blocking"


@dataclass(eq=False)
class StalledCall:
    """A call that has begun and does not end at once.

    Args:
        owner: Communicator of the call.
        engine: Engine that runs it.
        since: Its begin, on the clock `time.monotonic`.
        form: Form in which the program called.
        called_at: File and line of the call; None where the program waits in a frame above this one.
        limit_s: Seconds that it may take, alike on all ranks; None: as ``HPCOLL_TIMEOUT`` says.
        what: Its name in words, where it is no call of the program's.

    Attributes:
        watchdog: Belongs to whoever watches the call.
    """

    owner: CallOwner
    engine: HostEngine
    since: float
    form: Form = "blocking"
    called_at: str | None = None
    limit_s: float | None = None
    what: str = ""
    watchdog: Any = None


class CallHooks:
    """The hooks of all calls of this process: events that observers are told of.

    Attributes:
        begins: A call is about to begin that no cache knows; its owner is None before the communicator has a context. An observer raises
            MismatchError, PeerFailed or CollectiveTimeout where a call of another rank has failed, or calls another thing.
        stalls: A call has not ended yet; True: the program waits for its end just now. An observer raises such an error where the call
            is to be given up, on all ranks.
        finished: An operation in flight is over (`hpcoll.comm.requests.operation`).
        ends: A call that stalled is over, however it has ended.
        fails: The engine of a call has failed, or this rank gives up what it was about to do, without a call. An observer raises the
            error that all ranks raise in place of this one.
        last: No more calls follow, because of a call such as ``Free``. An observer raises MismatchError where ranks have not called the
            same, though none has waited for another.
        program_ends: No more follow on any communicator; True: MPI_Finalize has begun.
        made: A communicator has its context.
        goes: A communicator is about to go.
        noted: A blocking call has ended that no cache knew, that took long, or with which it is time to compare calls; False: parts of
            it follow.
        issued: Some calls in flight were issued, as many on all ranks; an observer may issue one of that turn, which is left out.
        compared: Ranks have told each other when each began its calls on a communicator, whose resources are given.
        region_left: As of `hpcoll.comm.status.regions`.
    """

    def __init__(self) -> None:
        self.begins = Hook[CallOwner | None, BeginningCall]()
        self.stalls = Hook[StalledCall, bool]()
        self.finished = Hook[[Any]]()
        self.ends = Hook[[StalledCall]]()
        self.fails = Hook[CallOwner, BaseException, StalledCall | None]()
        self.last = Hook[CallOwner, str]()
        self.program_ends = Hook[[bool]]()
        self.made = Hook[[Any]]()
        self.goes = Hook[[Any]]()
        self.noted = Hook[Any, bool]()
        self.issued = Hook[Any, int]()
        self.compared = Hook[[Any]]()
        self.region_left = region_left

    def observe(self, observer: object) -> HookHandle:
        """Call an observer's methods at the events that have their names, until the handle is removed."""
        events: dict[str, Hook[Any]] = vars(self)
        return HookHandle(
            *((event, getattr(observer, name)) for name, event in events.items() if hasattr(observer, name))
        )


HOOKS = CallHooks()
