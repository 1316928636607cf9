"""The last calls of a communicator, which no next one shows to have differed: ranks compare them as it is freed, and as the program ends.

Two ranks that both believe to be the root of a broadcast wait for nobody, nor does a root that broadcasts once more than others receive.
A rank first says that it makes no more calls, and then looks at the others' last ones; of two ranks the later sees those of both.
"""

import sys
import time
from typing import NoReturn

from mpi4py import MPI

from hpcoll.base.errors import TransportError
from hpcoll.base.machine import GONE, ends_by_exception
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.diagnosis.watchdog import Watchdog
from hpcoll.comm.plans.plan import MessageContext
from hpcoll.comm.team.resources import CommunicatorCalls, Resources, live_contexts
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog

_OTHERS_S, _NAP_S = 2.0, 0.01  # in which others hear of an error before the job ends


def compare(calls: CommunicatorCalls, what: str) -> None:
    """Compare the last calls of the ranks that share memory with this one, which makes no more; none where a call has failed.

    Args:
        calls: Calls of a communicator.
        what: What comes in place of a next call, for texts.

    Raises:
        MismatchError: They differ, or one rank has ended more of them.
    """
    on = calls.resources
    if calls.closed or on.aborted_by is not None or on.lock[0]:
        return
    for one in on.message_contexts:
        one.log.end(on.life)
    for one in on.message_contexts:
        number = _difference(on, one, one.log.unlike(on.life, idle=one.idle)) if len(one.log.histories) > 1 else 0
        if number:
            _raise(calls, one.log, what if number > one.log.ncalls else "", number)


def _raise(calls: CommunicatorCalls, log: CallLog, what: str, number: int) -> NoReturn:
    with calls.failure_scope(what or "the last call"):
        Watchdog(calls.resources, None, what, log, number).explain(TransportError("", code=f.MISMATCH))
    raise AssertionError


def _difference(on: Resources, one: MessageContext, places: list[int]) -> int:
    """Return the number of a call in which ranks differ of which it was seen that they may, by their places on the node; 0: they do not."""
    known, (mine, ended) = PeerState(on, one.log), one.log.begun_and_ended
    for rank in [rank for rank, place in on.near.items() if place in places]:
        theirs = known.progress(rank)
        assert theirs is not None
        number = min(mine, theirs.begun)
        ours, its = known.past_call(on.rank, number), known.past_call(rank, number)
        if ours is not None and its is not None and not ours.alike(its):
            return number
        over = int(one.log.histories[on.near[rank], 0, f.LAST]) == on.life
        if one.idle and (theirs.ended > mine or (over and ended > theirs.begun)):
            return number + 1
    return 0


def compare_all(*, in_mpi: bool) -> None:
    """Compare the last calls of all communicators as the program ends, unless by an exception; where they differ, end the job with an error.

    Args:
        in_mpi: MPI_Finalize has begun; else Python ends, and MPI after it.
    """
    found = list(live_contexts)
    if not found or ends_by_exception() or MPI.Is_finalized():
        return
    try:
        for calls in found:
            compare(calls, "MPI_Finalize" if in_mpi else "the end of the program")
    except TransportError as error:
        sys.excepthook(type(error), error, error.__traceback__)
        _let_others_hear(calls.resources)
        _end_job(at_once=in_mpi)


def _let_others_hear(on: Resources) -> None:
    """Give the other ranks time to raise the error in their next call, or to end: the job's end ends them, too."""
    known, end = PeerState(on, on.log), time.monotonic() + _OTHERS_S
    while time.monotonic() < end and not all(known.status(rank).left or known.process_state(rank) == GONE for rank in on.near if rank != on.rank):
        time.sleep(_NAP_S)


def _end_job(*, at_once: bool) -> None:
    """Let MPI_Abort end it, where MPI would be finalised: a function that is called at the end cannot set the status."""
    from mpi4py.run import set_abort_status

    if not at_once:
        set_abort_status(1)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
