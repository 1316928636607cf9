"""Collectives in flight: each is a slot of the table that the progress thread goes through; whoever waits moves them, too."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hpcoll.base.errors import ArgumentError, TransportError
from hpcoll.comm.arguments.call import Call, Form
from hpcoll.comm.plans.plan import MessageContext, Plan
from hpcoll.comm.requests.call_hooks import HOOKS, CallOwner, StalledCall
from hpcoll.comm.requests.progress_thread import MAX_SLOTS, board, boards, can_be_helped
from hpcoll.comm.requests.watchdog_thread import WatchdogThread
from hpcoll.comm.status.call_site import in_words, place_of_caller
from hpcoll.comm.status.names import PLACES
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.engine.wait_policy import WaitPolicy
from hpcoll.runtime.program import progress_fields as progress
from hpcoll.runtime.program.fields import ACTIVATE, ERROR, GIVEN_UP, ISSUED, NUMBERED, WAIT

_TURNS = 3000  # rounds without movement after which a wait lets Python see a signal
_SHORT_WHILE = 300  # such rounds
_YIELDS_AFTER = 10  # where others may need this core
_SLEEPS = -1  # after a while
_FINALIZE_S, _STOP_S = 0.5, 0.05  # the second for messages that are about to end

_abandoned: list[tuple[HostEngine, Call | None, tuple[object, ...]]] = []


def abandon(engine: HostEngine, call: Call | None, *keep: object) -> None:
    """Stop the messages of a collective that ended half-way; keep memory on which the library, its GPU, or other ranks may work yet.

    No other thread of hpcoll's is in the MPI library meanwhile: where one is just matching a receive that another one cancels, Open MPI
    5.0.11 takes it out of its list of receives twice.

    Args:
        engine: Engine that ran the collective.
        call: The call, if it was described.
        keep: Whatever else owns the caller's memory.
    """
    _abandoned.append((engine, call, keep))
    if Operation.over:
        return
    with board().held():
        _abandoned[:] = [
            one
            for one in _abandoned
            if not one[0].stop(_STOP_S if one[0] is engine else 0) or _on_gpu(one[1])
        ]


def _on_gpu(call: Call | None) -> bool:
    return call is not None and call.exported is not None


class Operation:
    """A run of a collective that is in flight.

    Attributes:
        over: Why nothing in flight moves any more: MPI is finalised, or this process is a fork; empty before that.
        dropped: Nobody will wait for it.
        ended: It ended in its first turns.
        quiet: The program has not made it, and is told nothing where it does not end.
        called_at: Where the program called.

    Args:
        context: Owner of the call.
        plan: Plan by which it runs.
        message_context: Message context on which it runs.
        engine: Engine that runs it.
        call: Addresses, their owners, and the work that remains at the end.
        release: Called when the engine is free again.
        limit_s: Seconds that it may take from now on; None: see `hpcoll.comm.diagnosis.watchdog.Watchdog`.
        form: Form in which the program called.
    """

    over = ""

    def __init__(
        self,
        context: CallOwner,
        plan: Plan,
        message_context: MessageContext,
        engine: HostEngine,
        call: Call,
        release: Callable[[], None],
        limit_s: float | None = None,
        form: Form = "in flight",
    ) -> None:
        self.context = context
        self.plan = plan
        self.message_context = message_context
        self.engine = engine
        self.call = call
        self._release = release
        self._limit_s = limit_s
        self._form = form
        self.board = board()
        if not self.board.free:
            raise ArgumentError(
                f"rank {context.rank}: {MAX_SLOTS} collectives are in flight already: wait for some of them"
            )
        self._slot = self.board.free.pop()
        self._at = progress.SLOTS + progress.SLOT * self._slot  # of the slot among the board's numbers
        self._numbers = self.board.numbers
        self._numbers[self._at + progress.STATE] = progress.FREE
        self.dropped = self.ended = self.quiet = self._finished = self._held = False
        self._waited_ns = 0, 0  # when the program began to wait for it, and stopped
        self._error = self._given_up = None  # type: Exception | None
        self.begun = time.monotonic()
        self.called_at = place_of_caller()
        self._stalled: StalledCall | None = None
        self._looking = threading.Lock()

    def register(self) -> None:
        """Be among the operations that are looked after. A signal's handler may leave this; then it is to be broken off."""
        _in_flight[self._slot] = self
        if not _watchdog_thread.awake:
            _watchdog_thread.wake()

    def look(self, waited_for: Sequence[Any] = ()) -> None:
        """See whether it is to be given up; called by the watchdog thread, or by whoever waits where no thread can.

        Args:
            waited_for: Requests for which the program waits in the MPI library.
        """
        with self._looking:
            self._look(self._held or any(getattr(one, "_operation", None) is self for one in waited_for))
            if self.state == progress.ENDED_WELL:  # it waits no more, though nobody may have asked yet
                self._end_stall()

    def _end_stall(self) -> None:
        if self._stalled is not None:
            HOOKS.ends(self._stalled)

    def _look(self, held: bool) -> None:
        if self.over or (self.quiet and self._numbers[self._at + progress.STATE] != progress.ENDED_BADLY):
            return  # the library may not be called any more, or nobody is to hear of it
        state = self._numbers[self._at + progress.STATE]
        queued = state == progress.QUEUED
        in_time = self._limit_s is None or time.monotonic() - self.begun <= self._limit_s
        done = self._finished or self._given_up is not None or state in (progress.FREE, progress.ENDED_WELL)
        if done or (queued and in_time):  # what is before it in the queue looks why
            return
        try:
            if self._stalled is None:
                place = in_words(self.called_at)
                self._stalled = StalledCall(
                    self.context, self.engine, self.begun, self._form, place, self._limit_s
                )
            if state == progress.ENDED_BADLY:
                HOOKS.fails(self.context, self.engine.failure(), self._stalled)
            else:
                HOOKS.stalls(self._stalled, held)
        except TransportError as error:
            if not queued:  # it hears what all were told, once its turn comes
                self._given_up = error.with_traceback(None)
                self.engine.state[ERROR] = self.engine.state[ERROR] or GIVEN_UP

    def give_up(self, error: TransportError) -> None:
        """End it, if it has not ended."""
        if self.state < progress.ENDED_WELL:
            self._given_up = error
            self.engine.state[ERROR] = GIVEN_UP
            self.wait()
            self.end()

    def activate(self, handle: int, *, begun: bool) -> None:
        """Let it be given turns.

        Args:
            handle: Handle of the generalized request to complete at the end.
            begun: Its first turns were already given.
        """
        tickets = self.message_context.tickets
        # whose OWNER may still be the progress thread, on its way out of the last operation
        self.board.help()
        self.engine.state[ISSUED] = 0 if begun else time.monotonic_ns()
        numbers, at = self._numbers, self._at
        numbers[at + progress.STATE] = progress.FREE
        numbers[at + progress.ENGINE] = self.engine.address
        numbers[at + progress.TICKETS] = tickets.ctypes.data
        numbers[at + progress.TICKET] = tickets[1]
        numbers[at + progress.HANDLE] = handle
        numbers[at + progress.INPUT] = self.call.send
        numbers[at + progress.OUTPUT] = self.call.recv
        tickets[1] += 1
        self.message_context.last = self._slot
        if self._slot >= self.board.words[progress.HIGH]:
            self.board.words[progress.HIGH] = self._slot + 1
        call_compiled(
            ACTIVATE, self.board.address, self._slot, progress.RUNNING if begun else progress.QUEUED, 0
        )

    def break_off(self, error: BaseException) -> None:
        """Close the communicator after a signal's handler has raised before the operation was given turns: it never ends.

        Nobody will wait for one that has ended by then, or goes on.
        """
        self.dropped = True
        if self.state == progress.FREE:
            self._free_slot()
            try:
                self.context.interrupted(self.title, error)
            finally:
                abandon(self.engine, self.call)

    def _free_slot(self) -> None:
        self._finished = True
        _in_flight.pop(self._slot, None)
        self.board.free.append(self._slot)

    def end_at_once(self, *, failed: bool) -> None:
        """Note that it has ended in its first turns."""
        self.ended = True
        self._numbers[self._at + progress.STATE] = progress.ENDED_BADLY if failed else progress.ENDED_WELL

    @property
    def title(self) -> str:
        """Name of the collective, for texts."""
        return self.plan.named(self.call.count)

    @property
    def state(self) -> int:
        """State of its slot."""
        return progress.ENDED_WELL if self._finished else int(self._numbers[self._at + progress.STATE])

    def wait(self, move: Callable[[], object] = lambda: None, limit_s: float = math.inf) -> bool:
        """Give turns until it has ended, for so long at most; ``move`` is called now and then, where nothing else moves."""
        kept = self.engine.wait_policy.stays // _TURNS
        end = math.inf if limit_s == math.inf else time.monotonic() + limit_s
        begun = self._waited_ns[0] or time.monotonic_ns()
        try:
            while not self._finished:
                yields_after = _TURNS if kept > 0 else _YIELDS_AFTER if kept == 0 else _SLEEPS
                if (
                    call_compiled(WAIT, self.board.address, self._slot, _TURNS, yields_after)
                    >= progress.ENDED_WELL
                ):
                    return True
                kept -= 1
                self._held = end == math.inf
                move()
                if not can_be_helped():
                    self.look()
                if time.monotonic() > end:
                    return False
            return True
        finally:
            self._held = False
            self._waited_ns = (begun, time.monotonic_ns())

    def test(self) -> bool:
        """Give one turn, and say whether it has ended."""
        return (
            self._finished or call_compiled(WAIT, self.board.address, self._slot, 1, 1) >= progress.ENDED_WELL
        )

    def finish(self) -> None:
        """Bring the result home and give back what was taken, when it has ended.

        Raises:
            TransportError, DeviceError: the MPI library or the GPU failed; told once.
        """
        if not self._finished:
            self.end()
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def end(self) -> None:
        """Finish it for the first time, but leave an error for whoever waits."""
        failed = self.state == progress.ENDED_BADLY
        if failed:
            self.look()
        self._numbers[self._at + progress.STATE] = progress.FREE
        self._free_slot()
        try:
            if failed:
                raise self._given_up or self.engine.failure()
            if self.call.finish is not None:
                self.call.finish()
            if not self.ended:  # else compiled code has counted it
                self.plan.account.note(self.engine.ledger_nbytes, self.engine.elapsed_ns)
            if self.engine.log is not None:
                self.engine.log.note_wait(
                    int(self.engine.state[NUMBERED]), *self._waited_ns, place=PLACES.number(self.called_at)
                )
        except Exception as error:
            self._error = self.named(error)
            abandon(self.engine, self.call)
        finally:
            self._given_up = None  # whose traceback has frames of the program, with all its variables
            self._end_stall()
            self._release()
            if HOOKS.finished.functions:
                HOOKS.finished(self)

    def named(self, error: Exception) -> Exception:
        """Return the error with where it happened; its communicator cannot be used any more."""
        try:
            self.context.interrupted(self.title, error)
        except Exception as named:
            return named
        return error


_in_flight: dict[int, Operation] = {}  # by slot
_watchdog_thread = WatchdogThread(lambda: list(_in_flight.values()))


def first_unfinished(message_context: MessageContext) -> int | None:
    """Return the number of the first call on a message context that has begun, and that the program has not ended; None: there is none."""
    begun = [
        one
        for one in list(_in_flight.values())
        if one.message_context is message_context and one.state >= progress.RUNNING
    ]
    return min((int(one.engine.state[NUMBERED]) for one in begun), default=None)


def hurry(message_context: MessageContext, wait_policy: WaitPolicy) -> bool:
    """Give turns, for a short while, to what is in flight on a message context, and say whether it has ended."""
    yields_after = _SHORT_WHILE if wait_policy.stays > _SHORT_WHILE else _YIELDS_AFTER
    call_compiled(WAIT, board().address, message_context.last, _SHORT_WHILE, yields_after)
    return message_context.idle


def collect() -> None:
    """Finish operations that ended without anybody waiting for them."""
    for operation in list(_in_flight.values()):
        if operation.state >= progress.ENDED_WELL and operation.dropped:
            operation.end()


def stop_progress_thread() -> None:
    """End the progress thread before MPI ends; wait only a moment, because MPI_Finalize may hold it up."""
    Operation.over = "MPI is finalised"
    for one in boards:
        one.stop(_FINALIZE_S)


def _of(context: CallOwner) -> list[Operation]:
    return [one for one in _in_flight.values() if one.context is context]


def give_up_all(context: CallOwner, error: TransportError) -> None:
    """End all operations of a communicator; who waits for one of them gets the error."""
    for operation in _of(context):
        operation.give_up(error)


def drain(context: CallOwner, limit_s: float | None = None) -> bool:
    """Wait for all operations of a communicator that is about to be freed, and say whether they have ended within so long each."""
    for operation in _of(context):
        if not operation.wait(limit_s=math.inf if limit_s is None else limit_s):
            return False
        operation.end()
    return True
