"""Service collectives: the ranks of a communicator find out of each other what a call needs before it can run.

They travel on the message context of blocking calls. So they are checked, watched and given up as calls are. Their signatures say what they
are for, so that they meet no call of the program's. The ledger does not count them.
"""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import TransportError
from hpcoll.base.ops import BOR
from hpcoll.comm.arguments.call import Call, written
from hpcoll.comm.plans.ledger import Account
from hpcoll.comm.plans.plan import MessageContext, Plan
from hpcoll.comm.plans.signature import Purpose, Signature
from hpcoll.comm.requests.call_hooks import CallOwner, other_thread
from hpcoll.comm.requests.operation import abandon
from hpcoll.comm.requests.request import Make, start
from hpcoll.runtime.engine.entry import call_compiled
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program.fields import AS_BEFORE, BUSY, DONE, GO_ON, LINGERS, PENDING, RUN, START, STARTED
from hpcoll.selection.choice import Choice

# sizes of blocks
BuildEngine: TypeAlias = Callable[[Choice, tuple[int, ...], Account, Call, MessageContext], HostEngine]

_BYTE = np.dtype(np.uint8)
# few rounds, on any number of nodes
_ALGORITHMS = {"allreduce": "recursive_doubling", "allgather": "circulant"}
_WHOLE = 1 << 30  # bytes of a segment
# ranks that compare their persistent requests by messages to all others, for which nobody has to wait
_FEW = 64


class ServiceCollectives:
    """The service collectives of one communicator. All its ranks make the same, in the same order.

    Each raises MismatchError, PeerFailed and CollectiveTimeout as a call does.

    Args:
        nranks: Ranks of the communicator.
        message_context: Message context on which they travel.
        build: Builds engines for arrays in host memory.
    """

    _owner: CallOwner

    def __init__(self, nranks: int, message_context: MessageContext, build: BuildEngine) -> None:
        self._nranks = nranks
        self._message_context = message_context
        self._build = build
        self._plans: dict[tuple[str, Purpose], Plan] = {}
        self._kept: dict[Purpose, tuple[Call, HostEngine]] = {}
        self._numbers: dict[Purpose, tuple[np.ndarray, np.ndarray]] = {}
        # by index of the message context of a persistent request
        self._comparers: dict[int, tuple[HostEngine, Call]] = {}
        self._comparing: dict[int, int] = {}  # how far those are that have begun

    def serve(self, owner: CallOwner) -> None:
        """Belong to a communicator."""
        self._owner = owner

    def everywhere(self, flags: np.ndarray, purpose: Purpose, what: str = "") -> np.ndarray:
        """Return which of some flags are set on all ranks.

        Args:
            flags: Flags of this rank, equally many everywhere.
            purpose: Purpose of the collective.
            what: The call that all ranks are to make now, for texts.
        """
        missing = np.logical_not(flags).view(np.uint8)
        self.combine(missing, purpose, what)
        return missing == 0

    def combine(self, words: np.ndarray, purpose: Purpose, what: str = "") -> None:
        """Set the bits of an array, equally long everywhere, that are set on any rank; arguments as of `everywhere`."""
        at = words.ctypes.data
        self._run(
            Call("allreduce", at, at, words.nbytes, _BYTE, BOR, in_place=True, keep=(words,)), purpose, what
        )

    def gather(
        self,
        mine: np.ndarray,
        every: np.ndarray,
        purpose: Purpose,
        what: str = "",
        limit_s: float | None = None,
    ) -> None:
        """Gather every rank's array, one after another.

        Args:
            mine: Array of this rank, equally long everywhere.
            every: Room for the arrays of all ranks.
            purpose: Purpose of the collective.
            what: The call that all ranks are to make now, for texts.
            limit_s: Seconds that it may take; None: those of the communicator's calls.
        """
        self._run(_allgather(mine, every), purpose, what, limit_s)

    def gather_in_flight(
        self,
        mine: np.ndarray,
        every: np.ndarray,
        purpose: Purpose,
        message_context: MessageContext,
        make: Make,
    ) -> MPI.Grequest:
        """Begin to gather every rank's array, as a call in flight on a message context; ``make`` makes the request."""
        call = _allgather(mine, every)._replace(purpose=purpose)
        return start(self._owner, message_context, self._plan(call.collective, purpose), call, make)[0]

    def gather_objects(self, mine: object, purpose: Purpose, what: str) -> list[Any]:
        """Return every rank's object; arguments as of `everywhere`."""
        pickled = MPI.pickle.dumps(mine)
        length = np.array([len(pickled)], np.int64)
        lengths = np.empty(self._nranks, np.int64)
        self.gather(length, lengths, purpose, what)
        room = int(lengths.max())
        every = np.empty((self._nranks, room), np.uint8)
        self.gather(np.frombuffer(pickled.ljust(room, b"\0"), np.uint8), every, purpose, what)
        return [MPI.pickle.loads(row[:n]) for row, n in zip(every, lengths.tolist())]

    def gather_again(
        self, mine: np.ndarray, every: np.ndarray, purpose: Purpose, what: Callable[[], str]
    ) -> None:
        """Gather as `gather`, from and to the same arrays as the last time, as a rule: their engine is kept.

        Args:
            mine: Array of this rank, equally long everywhere.
            every: Room for the arrays of all ranks.
            purpose: Purpose, which has no other gathers.
            what: Returns the call that all ranks are to make now, for texts; called where it takes long.
        """
        kept = self._kept.pop(purpose, None)  # not while another thread has it
        if kept is None or kept[0].keep[0] is not mine:
            call = _allgather(mine, every)
            kept = call, self._run(call, purpose, what())
        else:
            call, engine = kept
            self._message_context.log.note_service()
            status = call_compiled(RUN, engine.address, call.send, call.recv, AS_BEFORE)
            if status != DONE:
                self._end(call, engine, status, purpose, what())
        self._kept[purpose] = kept

    def gather_number(self, mine: int, purpose: Purpose, what: Callable[[], str]) -> list[int]:
        """Return every rank's number; arguments as of `gather_again`."""
        if purpose in self._numbers:
            one, every = self._numbers.pop(purpose)
        else:
            one = np.empty(1, np.int64)
            every = np.empty(self._nranks, np.int64)
        one[0] = mine
        self.gather_again(one, every, purpose, what)
        numbers: list[int] = every.tolist()
        self._numbers[purpose] = one, every
        return numbers

    def begin_comparison(
        self, message_context: MessageContext, planned: HostEngine, *, at_once: bool
    ) -> None:
        """Send all ranks a message with the check of a persistent request's calls, on its own message context.

        Args:
            message_context: Message context of the request.
            planned: Engine that is to run it.
            at_once: The message context goes with the request. Theirs are awaited now, as they are where there are very many ranks.
        """
        if self._nranks == 1:
            return
        engine, call = self._comparers.get(message_context.index) or self._comparer(message_context)
        engine.sign_as(planned)
        self._comparing[message_context.index] = call_compiled(START, engine.address, call.send, call.recv, 0)
        if at_once or self._nranks > _FEW:
            self.end_comparison(message_context.index)
            if at_once:  # no other request gets the message context
                del self._comparers[message_context.index]
        else:
            message_context.log.end_early()

    def end_comparison(self, index: int) -> None:
        """End the comparison on the message context of that index, if one has begun: see that all ranks have made the same request."""
        status = self._comparing.pop(index, DONE)
        if status == DONE:
            return
        engine, call = self._comparers[index]
        engine.state[STARTED] = time.monotonic_ns()  # it waits from now on
        if status == PENDING:
            status = call_compiled(RUN, engine.address, 0, 0, GO_ON)
        if status != DONE:
            what = written(Signature.unpacked(engine.signed[0]).text(engine.elements), "persistent")
            try:
                self._end(call, engine, status, Purpose.PERSISTENT, what)
            except BaseException:
                del self._comparers[index]
                raise

    def end_comparisons(self) -> None:
        """End all comparisons, in the order in which they began."""
        for index in list(self._comparing):
            self.end_comparison(index)

    def abandon_comparisons(self) -> None:
        """Give up the comparisons that have begun."""
        while self._comparing:
            abandon(*self._comparers.pop(self._comparing.popitem()[0]))

    def _comparer(self, message_context: MessageContext) -> tuple[HostEngine, Call]:
        """Return an engine that sends all ranks of a message context a byte, and receives theirs."""
        one = np.zeros(1, np.uint8)
        every = np.empty(self._nranks, np.uint8)
        call = _allgather(one, every)
        algorithm = "direct" if self._nranks <= _FEW else _ALGORITHMS["allgather"]
        engine = self._build(Choice(algorithm, _WHOLE, ""), (), Account(), call, message_context)
        message_context.bind_scratch(engine, engine.scratch_nbytes)
        engine.bind_lock(np.zeros(1, np.int64))
        wait_policy = engine.wait_policy
        # nobody needs its end before the first start: no yields
        engine.state[LINGERS] = min(wait_policy.lingers, wait_policy.stays)
        self._comparers[message_context.index] = engine, call
        return engine, call

    def made(self) -> list[HostEngine]:
        """Return the engines there are."""
        return [engine for plan in self._plans.values() for engine in plan.engines()]

    def _run(self, call: Call, purpose: Purpose, what: str, limit_s: float | None = None) -> HostEngine:
        plan = self._plan(call.collective, purpose)
        call = call._replace(purpose=purpose)
        self._message_context.log.note_service()
        engine, status = plan.run(self._message_context, call)
        self._end(call, engine, status, purpose, what, limit_s)
        return engine

    def _end(
        self,
        call: Call,
        engine: HostEngine,
        status: int,
        purpose: Purpose,
        what: str,
        limit_s: float | None = None,
    ) -> None:
        """Run to the end what has begun."""
        if status == DONE:
            return
        owner = self._owner
        if status == BUSY:
            raise other_thread(owner.rank)
        what = what or purpose.text
        try:
            owner.run_to_end(engine, status, limit_s, what)
        except BaseException as error:
            try:
                if not isinstance(error, TransportError):  # what a signal's handler raised
                    owner.interrupted(what, error)
            finally:
                abandon(engine, call)
            raise

    def _plan(self, collective: str, purpose: Purpose) -> Plan:
        key = collective, purpose
        if key not in self._plans:
            choice = Choice(_ALGORITHMS[collective], _WHOLE, "")
            account = Account()
            build = lambda call, message_context: self._build(choice, (), account, call, message_context)  # noqa: E731
            self._plans[key] = Plan(purpose.text, choice.algorithm, account, build)
            self._plans[key].kept = True
        return self._plans[key]


def _allgather(mine: np.ndarray, every: np.ndarray) -> Call:
    return Call("allgather", mine.ctypes.data, every.ctypes.data, mine.nbytes, _BYTE, keep=(mine, every))
