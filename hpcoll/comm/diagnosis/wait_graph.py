"""Deadlocks: circles in the wait-for graph, whose edges are looked up in what is known of peers.

Such calls differ in what messages cannot tell, because they have no messages for each other: one blocking and one in flight, arrays on
the host and on the GPU, one that the MPI library serves, a service collective, calls on two communicators in another order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hpcoll.analysis.wait_for_graph import shortest_path
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.diagnosis.report import activity_text, call_rows, tabled
from hpcoll.comm.status.blocked_call import IN_LIBRARY, BlockedCall
from hpcoll.comm.status.call_site import COMMUNICATOR, PROCESS
from hpcoll.comm.team.resources import Resources, live_contexts

_MOST = 256  # blocked ranks that are looked at


@dataclass(frozen=True)
class BlockedRank:
    """A node of the graph: a rank of a communicator, and the call in which it waits. Nodes are equal whose `place` is.

    Attributes:
        resources: Resources of the communicator.
        rank: Rank in the communicator.
        call: Call in which the rank waits.
        alone: The path to this node has nodes of this communicator only.
        place: Rank in COMM_WORLD, and key, lane and number of the call.
    """

    resources: Resources = field(compare=False)
    rank: int = field(compare=False)
    call: BlockedCall = field(compare=False)
    alone: bool = field(compare=False)
    place: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "place",
            (self.resources.team.world_ranks[self.rank], self.call.key, self.call.lane, self.call.number),
        )


def find_deadlock(resources: Resources, call: BlockedCall) -> list[BlockedRank]:
    """Return ranks that wait for each other, this one first; none where nothing is known of such.

    A rank that waits so goes on doing so. So it does not matter when what is known of others was true.

    Args:
        resources: Resources of a communicator.
        call: Call in which this rank waits there, and holds up something.
    """
    start = BlockedRank(resources, resources.rank, call, True)
    return shortest_path(start, _following, lambda blocked: _closes(start, blocked), _MOST)


def deadlock_text(circle: list[BlockedRank]) -> str:
    """Return what each rank of the communicator calls, or where there are several, each that waits."""
    resources = circle[0].resources
    if any(blocked.resources is not resources for blocked in circle):
        each = (
            f"rank {blocked.place[0]} of MPI_COMM_WORLD in {blocked.call.what} on {blocked.resources.title}"
            for blocked in circle
        )
        return tabled("ranks wait for each other, each in a call to which the next one has yet to come", each)
    calls = []
    known = PeerState(resources, resources.team.logs.get(circle[0].call.lane, resources.log))
    for rank in range(resources.nranks):
        theirs = [*(blocked.call for blocked in circle if blocked.rank == rank), *known.status(rank).waits]
        calls.append(
            next((call.what for call in theirs if call.key == resources.key), "")
            or activity_text(known, rank, 0)
        )
    return tabled(f"ranks do not call the same on {resources.title}", call_rows(calls))


def _following(blocked: BlockedRank) -> Iterator[BlockedRank]:
    """Yield the nodes to which edges lead: ranks that are awaited, in calls that keep these from the node's own, or in its own.

    In the same call a rank may just have sent what another still waits for. No circle comes of that where ranks make their calls on one
    communicator in one order: then whatever keeps a rank from coming to a call comes before that.
    """
    resources = blocked.resources
    call = blocked.call
    known = PeerState(resources, resources.team.logs.get(call.lane, resources.log))
    if call.lane != IN_LIBRARY:
        known.ask(list(call.awaits))
    for rank in call.awaits:
        if _is_absent(resources, rank, call):
            yield from _held_from(blocked, rank, known)
        elif blocked.alone and (theirs := known.blocked_call(rank, call.number)) is not None:
            yield BlockedRank(resources, rank, theirs, True)


def _closes(start: BlockedRank, blocked: BlockedRank) -> bool:
    """Say whether an edge leads back to the first node: this process has yet to come to that call, and is held up."""
    here = blocked.resources.rank
    held = start.call.holds == PROCESS or start.call.key == blocked.call.key
    # nobody says for whom it waits; its calls come in one order on all ranks
    awaits_all = blocked.call.lane == IN_LIBRARY
    return (
        held
        and (awaits_all or here in blocked.call.awaits)
        and _is_absent(blocked.resources, here, blocked.call)
    )


def _is_absent(resources: Resources, rank: int, call: BlockedCall) -> bool:
    """Say whether a rank has not come to a call, and nothing before it on the same message context holds up that alone."""
    if call.lane == IN_LIBRARY:
        library = PeerState(resources, resources.log).in_library(rank)
        return library is not None and library.begun < call.number
    log = resources.team.logs.get(call.lane)
    if log is None:  # it has none of the message contexts that such calls need
        return rank == resources.rank
    progress = PeerState(resources, log).progress(rank)
    return progress is not None and progress.begun == progress.ended < call.number


def _held_from(blocked: BlockedRank, rank: int, known: PeerState) -> Iterator[BlockedRank]:
    """Yield the calls in which an awaited rank waits that keep it from coming to the call of ``blocked``."""
    resources = blocked.resources
    for theirs in known.status(rank).waits:
        if theirs.key == resources.key:
            if theirs.holds in (PROCESS, COMMUNICATOR):
                yield BlockedRank(resources, rank, theirs, blocked.alone)
        elif theirs.holds == PROCESS and (world := resources.team.world_ranks[rank]) >= 0:
            for where in [
                context.resources for context in list(live_contexts) if context.resources.key == theirs.key
            ]:
                yield BlockedRank(where, where.team.world_ranks.index(world), theirs, False)
    library = known.in_library(rank)
    if library is not None and library.begun > library.ended:
        in_library = BlockedCall(
            resources.key, IN_LIBRARY, library.begun, known.library_call(rank), resources.title
        )
        yield BlockedRank(resources, rank, in_library, blocked.alone)
