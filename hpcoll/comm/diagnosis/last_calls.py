"""The last calls of a communicator, which no next one shows to have differed: ranks compare them as it is freed, and as the program ends.

Two ranks that both believe to be the root of a broadcast wait for nobody, nor does a root that broadcasts once more than others receive.
A rank first says that it makes no more calls, and then looks at the others' last ones; of two ranks the later sees those of both.
"""

import sys
import time
import zlib
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from mpi4py import MPI

from hpcoll.base.errors import MismatchError, TransportError
from hpcoll.base.machine import GONE, ends_by_exception, how_it_ends
from hpcoll.comm.plans.plan import MessageContext
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import CommunicatorCalls, Resources, live_contexts
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.telemetry.call_log import CallLog
from hpcoll.runtime.transports.mpi import knows_failures

_OTHERS_S = 2.0  # in which others come, or hear of an error before the job ends
_ASK_S = 1.0  # in which they answer
_NAP_S = 0.01
_END = "the end of the program"


def compare(calls: CommunicatorCalls, what: str) -> None:
    """Compare the last calls of the ranks that share memory with this one, which makes no more; none where a call has failed.

    Args:
        calls: Calls of a communicator.
        what: What comes in place of a next call, for texts.

    Raises:
        MismatchError: They differ, or one rank has ended more of them.
    """
    resources = calls.resources
    if calls.closed or resources.aborted_by is not None or resources.lock[0]:
        return
    idle = all(message_context.idle for message_context in resources.message_contexts)
    over = resources.log.end(resources.life, idle=idle) if resources.shares_memory else []
    for message_context in resources.message_contexts if over else ():
        places = message_context.log.unlike(over, idle=message_context.idle)
        number = _difference(resources, message_context, places, over) if places else 0
        if number:
            _raise(calls, message_context.log, what if number > message_context.log.ncalls else "", number)


def _raise(calls: CommunicatorCalls, log: CallLog, what: str, number: int) -> NoReturn:
    from hpcoll.comm.diagnosis.watchdog import Watchdog  # what no program needs whose ranks call the same

    with calls.failure_scope(what or "the last call"):
        Watchdog(calls.resources, None, what, log, number).explain(TransportError("", code=f.MISMATCH))
    raise AssertionError


def _difference(
    resources: Resources, message_context: MessageContext, places: list[int], over: list[bool]
) -> int:
    """Return the number of a call in which ranks differ; 0: they do not. ``places`` on the node and ``over`` are as of `CallLog.unlike`."""
    from hpcoll.comm.diagnosis.peer_state import PeerState

    idle = (
        message_context.idle
    )  # before it is read how many have begun: the progress thread may begin the next
    known, (mine, ended) = PeerState(resources, message_context.log), message_context.log.begun_and_ended
    for rank in [rank for rank, place in resources.near.items() if place in places]:
        theirs = known.progress(rank)
        assert theirs is not None
        number = min(mine, theirs.begun)
        ours = known.past_call(resources.rank, number)
        its = known.past_call(rank, number)
        if ours is not None and its is not None and not ours.alike(its):
            return number
        if idle and (theirs.ended > mine or (over[resources.near[rank]] and ended > theirs.begun)):
            return number + 1
    return 0


class _Farewell:
    """The last calls of a team's communicators, where some ranks share no memory, as sums over its ranks that are 0 where all agree.

    Each rank adds its digest, the first one takes the others' share away. Ranks that have freed other communicators, that end by an
    exception, or whose calls are in flight or have failed, are not compared.
    """

    def __init__(self, every: Sequence[CommunicatorCalls], *, well: bool) -> None:
        self.every = sorted(every, key=lambda context: context.resources.key)
        resources = every[0].resources
        contexts = [
            (context.resources.key, it) for context in self.every for it in context.resources.message_contexts
        ]
        ends = well and not any(context.closed or context.resources.aborted_by for context in every)
        keys = zlib.crc32(" ".join(context.resources.key for context in self.every).encode())
        numbers = [(key, it.log.ncalls, int(it.log.fields[f.CHAIN])) for key, it in contexts]
        calls = zlib.crc32(repr(numbers).encode())
        share = 1 if resources.rank else 1 - resources.nranks
        well = ends and all(it.idle for _, it in contexts)
        self._mine = np.array([not well, share * keys, share * calls], np.int64)
        self._sums = np.zeros(3, np.int64)
        self.resources = resources
        self.request = resources.comm.Iallreduce(self._mine, self._sums)

    @property
    def differs(self) -> bool:
        """Say whether ranks have not called the same, once the request has ended."""
        return self._sums[:2].tolist() == [0, 0] and bool(self._sums[2])

    def tell(self) -> NoReturn:
        """Raise MismatchError: ask the others on which communicator, and what each called."""
        from hpcoll.comm.diagnosis.peer_state import PeerState

        for calls in self.every:
            for message_context in calls.resources.message_contexts:
                known, (mine, _) = (
                    PeerState(calls.resources, message_context.log),
                    message_context.log.begun_and_ended,
                )
                end = time.monotonic() + _ASK_S
                while not known.holds_for_all(known.is_known) and time.monotonic() < end:
                    calls.resources.team.channel.serve()
                    time.sleep(_NAP_S)
                ranks = range(self.resources.nranks)
                begun = [progress.begun for progress in map(known.progress, ranks) if progress is not None]
                fewest = min(begun)
                past = [known.past_call(rank, fewest) for rank in ranks]
                more = max(begun) > fewest
                if more or any(it and past[0] and not it.alike(past[0]) for it in past):
                    _raise(calls, message_context.log, "" if mine > fewest else _END, fewest + more)
        raise MismatchError(
            f"rank {self.resources.rank}: ranks have not called the same before the end of the program"
        )


def compare_far() -> None:
    """Compare the last calls of teams some of whose ranks share no memory, where all ranks have come to their end, or do so soon."""
    if MPI.Is_finalized() or (knows_failures() and MPI.COMM_WORLD.Get_failed().size):
        return
    teams: dict[int, list[CommunicatorCalls]] = {}
    for calls in list(live_contexts):
        if not calls.resources.one_node and calls.nranks > 1:
            teams.setdefault(id(calls.resources.team), []).append(calls)
    well = ends_by_exception() is None
    end = time.monotonic() + _OTHERS_S
    farewells = [_Farewell(every, well=well) for every in teams.values()]
    try:
        while not all(farewell.request.Test() for farewell in farewells) and time.monotonic() < end:
            time.sleep(_NAP_S / 100)
        for farewell in farewells:
            if farewell.differs:
                farewell.tell()
    except TransportError as error:
        # but has called MPI_Finalize
        _end_job(error, farewells[0].resources, at_once=RANK_STATUS.status().left != how_it_ends())
    except MPI.Exception:  # a rank has failed
        return


def compare_all(*, in_mpi: bool) -> None:
    """Compare the last calls of all communicators as the program ends, unless by an exception; a difference ends the job with an error.

    Args:
        in_mpi: MPI_Finalize has begun; else Python ends, and MPI after it.
    """
    contexts = list(live_contexts)
    if not contexts or ends_by_exception() or MPI.Is_finalized():
        return
    try:
        for calls in contexts:
            compare(calls, "MPI_Finalize" if in_mpi else _END)
    except TransportError as error:
        _end_job(error, calls.resources, at_once=in_mpi)


def _end_job(error: TransportError, resources: Resources, *, at_once: bool) -> None:
    """Print an error, give the other ranks time to raise it in their next call, or to end, and end the job.

    MPI_Abort ends it, where MPI would be finalised: a function that is called at the end cannot set the status.
    """
    from mpi4py.run import set_abort_status

    from hpcoll.comm.diagnosis.peer_state import PeerState

    sys.excepthook(type(error), error, error.__traceback__)
    known = PeerState(resources, resources.log)
    end = time.monotonic() + _OTHERS_S
    others = (
        [rank for rank in resources.near if rank != resources.rank]
        if resources.one_node
        else list(range(resources.nranks))
    )
    while time.monotonic() < end and not all(
        known.status(rank).left or known.process_state(rank) == GONE for rank in others
    ):
        resources.team.channel.serve()
        time.sleep(_NAP_S)
    if not at_once:
        set_abort_status(1)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)
