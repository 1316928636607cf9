"""The hooks of diagnosis: failures of other ranks are raised before a call, a watchdog looks while it stalls, its failure is told.

A program in which no call waits long imports no more of diagnosis than this.
"""

import time
from collections.abc import Sequence
from typing import Any

from hpcoll.base.errors import CollectiveTimeout, HpcollError, PeerFailed
from hpcoll.base.machine import GONE, HOW_GONE
from hpcoll.base.text import in_a_line
from hpcoll.comm.arguments.call import written
from hpcoll.comm.arguments.methods import described
from hpcoll.comm.diagnosis.last_calls import compare, compare_all
from hpcoll.comm.diagnosis.status_page import STATUS_PAGE
from hpcoll.comm.plans.signature import Signature
from hpcoll.comm.requests.call_hooks import BeginningCall, CallOwner, StalledCall
from hpcoll.comm.team.bootstrap import failure_detectors
from hpcoll.comm.team.resources import CommunicatorCalls, Resources, live_contexts
from hpcoll.runtime.engine.wait_policy import crowd
from hpcoll.runtime.transports.mpi import Revoked, end_without_barrier, knows_failures
from hpcoll.selection.config import EVERY_CALL

_EARLY_S = 0.03  # in which a call of ranks that have a core each is not looked at


class Diagnosis:
    """The observer of calls that diagnoses those that do not end."""

    def begins(self, owner: CallOwner | None, call: BeginningCall) -> None:
        """Raise the failure of another rank; compare calls where that is asked for."""
        if not isinstance(owner, CommunicatorCalls):  # the communicator has no context yet
            STATUS_PAGE.begin()
            return
        resources = owner.resources
        if not resources.met:
            resources.met = True
            _meet(resources)
            return
        if call.planned:
            from hpcoll.comm.diagnosis.call_check import check_persistent

            check_persistent(owner, call)
            return
        if resources.aborted_by is not None:
            from hpcoll.comm.diagnosis.watchdog import Watchdog

            place = 1 + call.turn if call.form == "in flight" else 0
            Watchdog(
                resources, None, what=in_words(owner, call), calls=resources.message_contexts[place].log
            ).raise_remote_failure()
        if resources.config.check == EVERY_CALL and call.method and call.form == "blocking":
            from hpcoll.comm.diagnosis.call_check import check_call

            check_call(owner, call)

    def stalls(self, call: StalledCall, held: bool) -> None:
        """Let the watchdog look at the call."""
        if not isinstance(call.owner, CommunicatorCalls):
            return
        early_s = _EARLY_S * crowd(len(call.owner.resources.near))
        if call.watchdog is not None or time.monotonic() > call.since + early_s:
            _watchdog_over(call, call.owner).look(held=held)

    def ends(self, call: StalledCall) -> None:
        """End the watch."""
        if call.watchdog is not None:
            call.watchdog.end()

    def last(self, owner: CallOwner, what: str) -> None:
        """Compare the last calls of all ranks."""
        if isinstance(owner, CommunicatorCalls):
            compare(owner, what)

    def program_ends(self, in_mpi: bool) -> None:
        """Compare the last calls on all communicators."""
        compare_all(in_mpi=in_mpi)

    def fails(self, owner: CallOwner, error: BaseException, call: StalledCall | None = None) -> None:
        """Tell all ranks, and write the flight record; raise the error that all ranks raise, where a call of the program's stalled."""
        if not isinstance(owner, CommunicatorCalls):
            return
        if call is not None:
            if isinstance(error, HpcollError):
                _watchdog_over(call, owner).explain(error)
            return
        from hpcoll.comm.diagnosis.watchdog import broadcast_failure

        resources = owner.resources
        if isinstance(error, Revoked):
            resources.settled = resources.settled or (Revoked, str(error))
            broadcast_failure(resources, Revoked, str(error))
            return
        kind = CollectiveTimeout if isinstance(error, CollectiveTimeout) else PeerFailed
        text = f"{type(error).__name__}: {in_a_line(str(error)).removeprefix(f'rank {resources.rank}: ')}"
        broadcast_failure(resources, kind, f"rank {resources.rank} gave up: {text}")
        if resources.config.record is not None:
            from hpcoll.comm.diagnosis.flight_recorder import write_record

            write_record(resources.config.record, text)
        if isinstance(error, PeerFailed) and knows_failures():
            end_without_barrier()


def _watchdog_over(call: StalledCall, owner: CommunicatorCalls) -> Any:
    """Return the watchdog over a call, made when first asked for."""
    from hpcoll.comm.diagnosis.watchdog import Watchdog

    call.watchdog = call.watchdog or Watchdog(owner.resources, call)
    return call.watchdog


def _meet(resources: Resources) -> None:
    """Name the ranks of a communicator on the status page, and let them ask each other where they share no memory."""
    STATUS_PAGE.meet(resources)
    if len(resources.near) < resources.nranks:
        from hpcoll.comm.diagnosis.responder import attend  # what ranks of one node do not need

        attend(resources)
    if resources.config.record is not None:
        from hpcoll.comm.diagnosis.flight_recorder import record_on_signal

        record_on_signal(resources.config.record)


def in_words(owner: CommunicatorCalls, call: BeginningCall) -> str:
    """Return a call that has not begun, as the program wrote it, as far as that can be said without asking anybody."""
    known = described(call.method, call.arguments, owner.caller) if call.method else None
    if known is None:
        return call.method and written(f"{call.method}()", call.form)
    signature = Signature.of(known)._replace(ordered=int(call.order is not None))
    return written(signature.text(known.count), call.form)


def absent(ranks: Sequence[int]) -> tuple[int, str] | None:
    """Return one of some ranks of COMM_WORLD that is known to have ended, with its process and how; None where none is."""
    from hpcoll.comm.diagnosis.peer_state import PeerState

    sought = {rank for rank in ranks if rank >= 0}
    seen = set()
    # of each, what its oldest communicator knows
    teams = {context.resources.team: context.resources for context in reversed(list(live_contexts))}
    for resources in teams.values():
        places = [
            (rank, place)
            for rank, place in enumerate(resources.team.world_ranks)
            if place in sought and rank != resources.rank
        ]
        for message_context in resources.message_contexts[:1]:
            known = PeerState(resources, message_context.log)
            known.ask([rank for rank, _ in places])
            for rank, place in places:
                if place in seen:  # what it says in shared memory it says in all that it has
                    continue
                left = known.status(rank).left or (HOW_GONE if known.process_state(rank) == GONE else "")
                if left:
                    return place, f"({resources.process(rank)}) {left}"
                if rank in resources.near:
                    seen.add(place)
    return None


failure_detectors.append(absent)
