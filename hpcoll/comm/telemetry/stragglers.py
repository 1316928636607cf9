"""The question who comes late, which all ranks of a communicator ask together, and its answer at the end of the program."""

import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcoll.analysis.waits import LEAST_SHARE, RankWaits, Stragglers, judge
from hpcoll.base.machine import ENDED_BY, GONE, HOW_GONE, ends_by_exception
from hpcoll.base.text import counted, error_text, ranks_in_words
from hpcoll.comm.context.attach import WithContext
from hpcoll.comm.context.context import Context
from hpcoll.comm.plans.signature import Purpose
from hpcoll.comm.status.rank_status import RANK_STATUS
from hpcoll.comm.team.resources import live_contexts
from hpcoll.comm.telemetry.account import forget, rank_waits
from hpcoll.comm.telemetry.exchange import exchange_of
from hpcoll.comm.telemetry.links import slow_links

_METHOD, _TRIED, _TIMES = "stragglers", 50, 10  # calls that are timed at once, and how often
# in which ranks come that need not; from one look at the others to the next; of a nap
_SOME_S, _LOOK_S, _NAP_S = (
    2.0,
    0.2,
    0.002,
)
_around_a_call: list[float] = []  # seconds of hpcoll's own Python, once they are measured
_pending: list[Any] = []  # a request that did not end, and its memory


class WithStragglers(WithContext):
    """An intracommunicator whose ranks can ask who comes late."""

    def stragglers(self, *, reset: bool = False) -> Stragglers:
        """Return which ranks came late in collectives, by how much, where and why; ``print`` shows it as a table. Collective.

        It is about the calls of this communicator, and of all others whose ranks belong to it, since the first of them was made.
        The calls that hpcoll runs are compared, not those of the MPI library's own. Meanwhile no other thread of any rank is in a call of
        these communicators.

        Args:
            reset: Begin anew with the next call; equal on all ranks.

        Returns:
            The same value on all ranks. Ranks in it are those of this communicator.

        Raises:
            ArgumentError: The communicator cannot be used any more.
            MismatchError, PeerFailed, CollectiveTimeout: as a collective.
        """
        context: Context = self._context
        context.check()
        gather = partial(
            context.resources.service_collectives.gather_objects, purpose=Purpose.WAITS, what=_METHOD
        )
        with context.failure_scope(_METHOD):
            if not _around_a_call:
                _around_a_call.append(_measured(self))
            answer = _asked(context, gather, _compare, _around_a_call[0])
        if reset:
            forget(context.resources.team.world_ranks)
        return answer


def _measured(comm: Any) -> float:
    """Return the seconds that hpcoll's own Python takes on this rank around a call like an earlier one."""
    alone = comm._keep(MPI.COMM_SELF.Dup())
    # the program does not make these calls: no trace, no metrics and no comparison have them
    live_contexts.pop(alone._context)
    log = alone._context.resources.log
    log.compare_at(sys.maxsize)
    alone.Barrier()
    times = []
    for _ in range(_TIMES):
        alone.ledger.clear()
        begun = time.perf_counter()
        for _ in range(_TRIED):
            alone.Barrier()
        times.append(time.perf_counter() - begun - sum(row.seconds for row in alone.ledger.rows()))
    log.compared = log.ncalls  # a later communicator may go on with this log
    alone.Free()
    return max(0.0, min(times) / _TRIED)


def _compare(context: Context) -> None:
    with context.failure_scope(_METHOD):
        exchange_of(context).now()


def _compare_at_end(context: Context) -> None:
    """Compare arrivals by the MPI library's own collective, which no rank minds that has said that it leaves."""
    exchange_of(context).now(context.resources.comm.Allgather)


def _asked(
    context: Context,
    gather: Callable[[Any], list[Any]],
    compare: Callable[[Context], None],
    around_s: float = 0.0,
) -> Stragglers:
    """Return the judgement of the waits in all communicators whose ranks belong to one; ``gather`` returns every rank's object."""
    place = {rank: i for i, rank in enumerate(context.resources.team.world_ranks)}
    inside = {
        _name(calls): calls
        for calls in list(live_contexts)
        if isinstance(calls, Context) and _is_usable(calls) and _lies_in(calls, place)
    }
    told: list[set[Any]] = gather(set(inside))
    for name in sorted(inside):  # in an order that is alike on all ranks
        if all(name in told[place[rank]] for rank in name[0]):
            compare(inside[name])
    nbytes = sum(row.nbytes for calls in inside.values() for row in calls.ledger.rows())
    mine = rank_waits(context.resources, nbytes)
    ranks: list[RankWaits] = gather(mine._replace(python_s=around_s * mine.calls))
    moves = sum(rank.moved_s for rank in ranks) >= LEAST_SHARE * sum(rank.run_s for rank in ranks)
    return judge(ranks, slow_links(context.resources, gather) if moves else None)


def _name(context: Context) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    """Return what is alike on all ranks of a communicator that have made the same calls on it."""
    resources = context.resources
    return (
        resources.team.world_ranks,
        resources.key,
        tuple(message_context.log.ncalls for message_context in resources.every_message_context()),
    )


def _is_usable(context: Context) -> bool:
    return not context.closed and context.resources.aborted_by is None and not context.resources.lock[0]


def _lies_in(context: Context, ranks: Any) -> bool:
    return all(rank in ranks for rank in context.resources.team.world_ranks)


def _summarise() -> None:
    """Print the answer at the end of the program, where ``HPCOLL_SUMMARY`` is set; or why there is none. The first rank does."""
    if _pending or MPI.Is_finalized():
        return
    contexts = [
        calls
        for calls in list(live_contexts)
        if isinstance(calls, Context) and calls.resources.config.summary
    ]
    if not contexts:
        return
    context = min(contexts, key=lambda calls: (-calls.nranks, _name(calls)))
    why = _who_does_not_come(context)
    text = f"no summary of who came late: {why}"
    if not why:
        try:
            resources = context.resources
            whole = resources.nranks == MPI.COMM_WORLD.size
            who = (
                counted(resources.nranks, "rank")
                if whole
                else f"{ranks_in_words(resources.team.world_ranks)} of MPI_COMM_WORLD"
            )
            text = f"{resources.title}, {who}\n{_asked(context, resources.comm.allgather, _compare_at_end)}"
        except Exception as error:
            text += error_text(error)
    if context.rank == 0 and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            print(
                "".join(f"hpcoll: {line}".rstrip() + "\n" for line in text.splitlines()),
                end="",
                file=sys.stderr,
                flush=True,
            )


def _who_does_not_come(context: Context) -> str:
    """Wait until all ranks are at their end, and return why one will not ask who came late, in words; empty where all do.

    Without that a rank would wait for one that has failed. Where not all of ``MPI.COMM_WORLD`` are asked, some may ask on another one.
    """
    from hpcoll.comm.diagnosis.peer_state import PeerState  # what few programs need

    resources = context.resources
    well = np.array(
        [
            _is_usable(context)
            and not ends_by_exception()
            and all(message_context.idle for message_context in resources.message_contexts)
        ],
        np.int64,
    )
    request = resources.comm.Iallreduce(MPI.IN_PLACE, well, MPI.MIN)
    _pending[:] = request, well
    known, look, whole = (
        PeerState(resources, resources.log),
        0.0,
        resources.nranks == MPI.COMM_WORLD.size and bool(well[0]),
    )
    end = time.monotonic() + _SOME_S
    while not request.Test():
        resources.team.channel.serve()
        if time.monotonic() >= look:
            look = time.monotonic() + _LOOK_S
            if failed := _who_failed(known, resources.nranks):
                return failed
        if not whole and time.monotonic() >= end:
            return f"not all ranks have come to their end within {_SOME_S:g} s"
        time.sleep(_NAP_S)
    return "" if well[0] else _who_failed(known, resources.nranks) or "a call has failed or has not ended"


def _who_failed(known: Any, nranks: int) -> str:
    """Return which rank was ended by an exception, or is gone, in words; empty where none is known to be."""
    for rank in range(nranks):
        left = known.status(rank).left
        if left.startswith(ENDED_BY) or known.process_state(rank) == GONE:
            return f"rank {rank} {left or HOW_GONE}"
    return ""


RANK_STATUS.at_end.append(_summarise)
