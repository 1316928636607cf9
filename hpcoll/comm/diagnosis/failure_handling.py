"""How calls of a communicator end that do not end well: watched while they wait, told to the other ranks, named, recorded."""

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from hpcoll.base.errors import CollectiveTimeout, DeviceError, PeerFailed, TransportError
from hpcoll.base.processes import GONE, HOW_GONE
from hpcoll.comm.diagnosis.flight_recorder import write_record
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.diagnosis.watchdog import Watchdog, broadcast_failure
from hpcoll.comm.status.live_contexts import failure_detectors, live_contexts
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.engine.host_engine import HostEngine
from hpcoll.runtime.program import fields as f
from hpcoll.runtime.transports.mpi import end_without_barrier, knows_failures

_METHODS = "hpcoll.comm.blocking"  # how modules begin whose methods programs call; their variable ``context`` tells the communicator


def run_to_end(on: Resources, engine: HostEngine, status: int, limit_s: float | None, what: str = "") -> None:
    """Run to the end what has not ended at once, and see why where it does not end; arguments as in `HostEngine.go_on` and `Watchdog`."""
    watch = Watchdog(on, engine, limit_s=limit_s, since=1e-9 * float(engine.state[f.STARTED]), what=what)
    try:
        engine.go_on(status, watch.look)
    except TransportError as error:
        watch.explain(error)
        raise
    finally:
        watch.end()


def absent(ranks: Sequence[int]) -> tuple[int, str] | None:
    """Which of some ranks of COMM_WORLD is known to have ended, and its process and how, as text; None where none is."""
    sought, seen = {rank for rank in ranks if rank >= 0}, set[int]()
    groups = {one.resources.team: one.resources for one in reversed(list(live_contexts))}  # of each, what its oldest communicator knows
    for on in groups.values():
        places = [(rank, place) for rank, place in enumerate(on.team.world_ranks) if place in sought and rank != on.rank]
        for one in on.message_contexts[:1]:
            known = PeerState(on, one.log)
            known.ask([rank for rank, _ in places])
            for rank, place in places:
                if place in seen:  # what it says in shared memory it says in all that it has
                    continue
                left = known.notice(rank).get("left", "") or (HOW_GONE if known.state(rank) == GONE else "")
                if left:
                    return place, f"({on.process(rank)}) {left}"
                if rank in on.near:
                    seen.add(place)
    return None


failure_detectors.append(absent)


def raise_remote_failure(on: Resources, place: int = 0, what: Callable[[], str] = str) -> None:
    """Raise what a call of another rank has failed with, before this rank calls.

    Args:
        on: Resources of the communicator.
        place: Of the message context on which it would call, among those of the resources.
        what: It would call, which the others quote.
    """
    if on.aborted_by is not None:
        Watchdog(on, None, what=what(), calls=on.message_contexts[place].log).raise_remote_failure()


class Interrupted(Protocol):
    """What `fail_call` needs of a context."""

    rank: int
    nranks: int
    resources: Resources

    def close(self, why: str) -> None:
        """Refuse further use."""

    def interrupted(self, what: str, error: BaseException) -> None:
        """`fail_call`."""


def fail_call(context: Interrupted, what: str, error: BaseException) -> None:
    """A collective that stopped half-way leaves messages under way: say where, tell the others, and refuse further use."""
    on, where = context.resources, f"rank {context.rank}: {what}, {context.nranks} ranks"
    kind = CollectiveTimeout if isinstance(error, CollectiveTimeout) else PeerFailed
    text = str(error).removeprefix(f"rank {context.rank}: ")
    broadcast_failure(on, kind, f"rank {context.rank} gave up: {type(error).__name__}: {text}")
    context.close(f"an earlier collective did not end ({where})")
    if on.config.record is not None:
        write_record(on.config.record, f"{type(error).__name__}: {text}")
    if isinstance(error, PeerFailed) and knows_failures():
        end_without_barrier()
    if isinstance(error, DeviceError):
        raise DeviceError(f"{where}: {text}", code=error.code) from None
    if isinstance(error, MemoryError):
        raise MemoryError(f"{where}: {text}") from None
    if isinstance(error, TransportError):
        raise type(error)(f"{where}: {text}", code=error.code) from None


def left_alone(context: object) -> bool:
    """Whether nobody is inside a blocking collective of a context but who calls this: no other thread, and no call further up."""
    frames = [frame for top in sys._current_frames().values() for frame, _ in traceback.walk_stack(top)]
    inside = [frame for frame in frames if frame.f_globals.get("__name__", "").startswith(_METHODS)]
    return sum(frame.f_locals.get("context") is context for frame in inside) == 1


class FailureScope:
    """Where the GPU or memory may fail on this rank alone, or an agreement, before its part of a collective begins: all ranks give it up.

    Entered at each call, and `contextlib.contextmanager` costs four times as much.
    """

    __slots__ = ("_context", "_what")

    def __init__(self, context: Interrupted, what: str) -> None:
        self._context, self._what = context, what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DeviceError | MemoryError | TransportError):
            self._context.interrupted(self._what, error)
