"""Contexts on MPI communicators: found or made, closed when the process forks or MPI ends."""

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

from hpcoll.base.errors import ArgumentError, HpcollError, TransportError
from hpcoll.base.text import counted
from hpcoll.comm.context.context import Context, free
from hpcoll.comm.context.early_calls import EarlyCalls
from hpcoll.comm.context.team_cache import TeamCache
from hpcoll.comm.diagnosis.failure_handling import Diagnosis
from hpcoll.comm.plans.ledger import Ledger
from hpcoll.comm.requests.call_hooks import HOOKS, BeginningCall
from hpcoll.comm.requests.operation import Operation, drain, give_up_all, stop_progress_thread
from hpcoll.comm.requests.pending import PendingStarts
from hpcoll.comm.status import uncaught
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.status.regions import Region, regions
from hpcoll.comm.team import hard_exit
from hpcoll.comm.team.resources import live_contexts
from hpcoll.runtime.transports.mpi import FORK, Revoked, handle, name_of, why_unusable

_registry = TeamCache()
# locks by handle: two objects may be one communicator
_making: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _after_fork() -> None:
    _registry.forget()
    RANK_STATUS.forget()
    Operation.over = FORK
    for context in list(live_contexts):
        context.close(FORK)
    live_contexts.clear()


os.register_at_fork(after_in_child=_after_fork)
hard_exit.install()
uncaught.install()
HOOKS.observe(Diagnosis())  # without this line calls run all the same, and nobody says why one does not end


def _deleted(comm: MPI.Comm, keyval: int, context: Context) -> None:
    context.resources.forget_name()
    if context in live_contexts:
        HOOKS.goes(context)
    if context.resources.lock[0] and not context.closed:
        context.break_off("a call before the communicator was freed")
    if not context.closed:
        drain(context)  # in which a call may fail
    if not context.closed and context.resources.aborted_by is None:
        with contextlib.suppress(HpcollError), context.failure_scope("the end of persistent requests"):
            context.resources.service_collectives.end_comparisons()
    if not context.closed and context.resources.aborted_by is None:
        _registry.leave(context.resources, context.free())
    elif context in live_contexts:  # a call has failed
        context.close(context.closed or "the communicator was freed")
        give_up_all(context, TransportError(f"rank {context.rank}: given up: the communicator was freed"))
        free(context.parts)
        _registry.lose(context.resources)
    live_contexts.pop(context, None)


@atexit.register  # before what is registered by modules imported above: that tells the others that this rank leaves
def _ending() -> None:
    HOOKS.program_ends(False)


def _finalizing(comm: MPI.Comm, keyval: int, nothing: object) -> None:
    HOOKS.program_ends(True)
    RANK_STATUS.leave("has called MPI_Finalize")
    stop_progress_thread()
    _registry.free()
    for context in list(live_contexts):
        context.close("MPI is finalised")
    live_contexts.clear()


_KEYVALS: list[int] = []


def existing_context(comm: MPI.Intracomm) -> Context | None:
    """The context of a communicator, if there is one already."""
    found: Any = comm.Get_attr(_KEYVALS[0]) if _KEYVALS and comm != MPI.COMM_NULL else None
    return found


def context_of(comm: MPI.Intracomm, mixed: bool | None = None, ledger: Ledger | None = None) -> Context:
    """The context of a communicator; the first call for it is collective.

    Args:
        comm: The communicator.
        mixed: Whether ranks may pass different kinds of memory in one call; None: as it was, or no.
        ledger: Of a new context; None: a new one.

    Raises:
        ArgumentError: ``mixed`` is another than before, MPI is not initialised or already finalised, the communicator was freed, or the
            settings differ between ranks.
    """
    if why := why_unusable():
        raise ArgumentError(f"this communicator cannot be used: {why}")
    if comm == MPI.COMM_NULL:
        raise ArgumentError(
            f"rank {MPI.COMM_WORLD.rank}: this communicator cannot be used: the communicator was freed"
        )
    if not _KEYVALS:
        _KEYVALS.append(MPI.Comm.Create_keyval(delete_fn=_deleted))
        # MPI_Finalize deletes it first of all
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_finalizing), None)
    with _making.setdefault(handle(comm), threading.Lock()):
        context = existing_context(comm) or _new_context(comm, bool(mixed), ledger)
    asked = context.resources.asked_mixed
    if mixed is not None and mixed != asked:
        raise ArgumentError(
            f"rank {context.rank}: the communicator was made with mixed={asked}, got mixed={mixed}"
        )
    return context


def _new_context(comm: MPI.Intracomm, mixed: bool, ledger: Ledger | None) -> Context:
    """A context for a communicator that has none."""
    HOOKS.begins(None, BeginningCall())
    resources, parts = _registry.join(comm, mixed)
    resources.serve(comm)
    context = Context(resources, ledger or Ledger(), parts)
    live_contexts[context] = None
    HOOKS.begins(context, BeginningCall())
    comm.Set_attr(_KEYVALS[0], context)
    HOOKS.made(context)
    return context


def renewed(comm: MPI.Intracomm, old: Context) -> Context:
    """A new context for a communicator whose calls have failed, with the old one's ledger; collective.

    Messages that are still under way are left behind: no later call has their tags.
    """
    if MPI.Is_finalized() or comm == MPI.COMM_NULL or not old.resources.message_contexts:
        why = "MPI is finalised" if MPI.Is_finalized() else old.closed
        raise ArgumentError(f"rank {old.rank}: this communicator cannot be recovered: {why}")
    resources = old.resources
    if resources.lock[0] and not old.closed:
        old.break_off("a call before the communicator was recovered")
    give_up_all(old, TransportError(f"rank {old.rank}: given up: the communicator was recovered"))
    old.close("it was recovered: this is another object over the same communicator")
    HOOKS.goes(old)
    live_contexts.pop(old, None)
    MPI.Intracomm(comm).Delete_attr(_KEYVALS[0])
    made = context_of(comm, resources.asked_mixed, old.ledger)
    _registry.lose(resources)
    return made


class _MadeOnce:
    """The context as an attribute, made when first asked for; threads that ask for the same one wait for each other.

    Not `functools.cached_property`, which until Python 3.12 lets only one thread of the process make any.
    """

    def __get__(self, comm: "WithContext | None", kind: type) -> Any:
        if comm is None:  # the class is looked at
            return self
        attributes = vars(comm)
        with attributes.setdefault("_making", threading.Lock()):
            if "_context" not in attributes:
                starts: PendingStarts = attributes.get("_starts") or PendingStarts()
                try:
                    context = context_of(comm, comm._mixed, attributes.get("_ledger"))
                except BaseException as error:
                    starts.fail(error)
                    raise
                starts.begin()
                comm._attach(context)
        return attributes["_context"]


class _Calls:
    """The context as the methods of blocking calls use it: before there is one, early calls where these may be made."""

    def __get__(self, comm: "WithContext | None", kind: type) -> Any:
        if comm is None:
            return self
        # calls in flight that wait for the first use come before
        if comm._early is None or "_starts" in vars(comm) or existing_context(comm) is not None:
            return comm._context
        return EarlyCalls(comm, _registry.agree)


class WithContext(MPI.Intracomm):
    """An intracommunicator with a context, which is made by the first collective where nobody has made it before."""

    _mixed: bool | None = None  # of a communicator that was made of another
    _early: int | None = None  # early calls so far, where there may be some
    _context = _MadeOnce()
    _calls = _Calls()

    def _attach(self, context: Context) -> None:
        """Have a context from now on."""
        self._context = context
        self._calls = context

    def Free(self) -> None:
        """Free it, once what was in flight on it has ended.

        Raises:
            MismatchError: Ranks have not called the same on it; it is free then, too.
        """
        with self._freeing():
            super().Free()

    @contextlib.contextmanager
    def _freeing(self) -> Iterator[None]:
        """Let calls in flight that have not begun do so, and compare the last calls of all ranks, before it is freed."""
        self._begin_all()
        context = vars(self).get("_context") or existing_context(self)
        try:
            if context is not None:
                HOOKS.last(context, "Free")
        finally:
            yield

    def Revoke(self) -> None:
        """Revoke it: calls on it that have not ended, and later ones, raise ``MPI.Exception`` of class ``ERR_REVOKED`` on all ranks.

        One rank may call this alone. Ranks that wait in a call of the MPI library's own, or at the first use, hear of it where the
        library tells them, which Open MPI 5 does under ``mpirun --with-ft ulfm``.
        """
        super().Revoke()
        context = vars(self).get("_context") or existing_context(self)
        if context is not None and not context.closed:
            with contextlib.suppress(Revoked):
                context.interrupted(
                    "Revoke", Revoked(f"rank {self.rank} has revoked {context.resources.title}")
                )

    def _begin_all(self) -> None:
        """Begin calls in flight that have not."""
        if "_starts" in vars(self) and "_context" not in vars(self):
            with contextlib.suppress(HpcollError):  # who waits is told
                self._context  # noqa: B018

    def region(self, name: str) -> Region:
        """Return a region of the program: ``with comm.region("halo"):`` names the calls inside in the ledger, errors, records and traces.

        Regions may be entered inside of others: ``step/halo``. They are the process's: calls on other communicators are named, too, and
        those of other threads meanwhile. Names are kept for good, so there should be few. A region that is kept, as ``halo =
        comm.region("halo")``, is entered in half the time.

        Args:
            name: Its name; ranks may have different ones.

        Raises:
            ArgumentError: The name is no text, or empty.
        """
        return regions[name]

    def __repr__(self) -> str:
        name = f"hpcoll.{type(self).__name__}"
        if not MPI.Is_initialized() or MPI.Is_finalized() or self == MPI.COMM_NULL:
            return f"<{name}: null>" if self == MPI.COMM_NULL else f"<{name}: MPI is not running>"
        context = vars(self).get("_context") or existing_context(self)
        nodes = (
            f" on {counted(max(context.resources.team.topology.nodes) + 1, 'node')}"
            if context is not None
            else ""
        )
        vendor, version = MPI.get_vendor()
        title = " ".join(filter(None, (name, name_of(self))))
        return f"<{title}: rank {self.rank} of {self.size}{nodes}, {vendor} {'.'.join(map(str, version))}>"

    @property
    def ledger(self) -> Ledger:
        """The ledger: which operation ran by which algorithm, how often, with how many bytes and how long."""
        context = vars(self).get("_context") or existing_context(self)
        if context is not None:
            return context.ledger
        return vars(self).setdefault("_ledger", Ledger())
