"""Deadlocks: ranks of which each waits for the next one, which cannot come before its own wait has ended, in another call.

Such calls differ in what messages cannot tell, because they have no messages for each other: one blocking and one in flight, arrays on
the host and on the GPU, one that the MPI library serves, what ranks agree on before a call, calls on two communicators in another order.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from hpcoll.base.units import ranks_in_words
from hpcoll.comm.diagnosis.peer_state import PeerState
from hpcoll.comm.diagnosis.report import doing
from hpcoll.comm.status.call_site import COMMUNICATOR, PROCESS
from hpcoll.comm.status.live_contexts import live_contexts
from hpcoll.comm.status.rank_status import IN_LIBRARY, Call
from hpcoll.comm.team.resources import Resources

_MOST = 256  # waits that are looked at


class BlockedRank(NamedTuple):
    """A rank of a communicator, and the call in which it waits."""

    on: Resources
    rank: int
    call: Call

    @property
    def world_rank(self) -> int:
        """Of the rank, in COMM_WORLD."""
        return self.on.team.world_ranks[self.rank]

    @property
    def place(self) -> tuple[Any, ...]:
        """What tells it from others."""
        return self.world_rank, self.call["key"], self.call["lane"], self.call["number"]


def find_deadlock(on: Resources, call: Call) -> list[BlockedRank]:
    """Ranks that wait for each other, this one first; none where nothing is known of such.

    Who waits so goes on doing so, so that it does not matter when what is known of others was true.

    Args:
        on: Resources of a communicator.
        call: In which this rank waits there, and holds up something.
    """
    start = BlockedRank(on, on.rank, call)
    paths, seen = [[start]], {start.place}
    for path in paths:  # which get longer
        for wait in _next(path):
            if _closes(start, wait):
                return [*path, wait]
            if wait.place not in seen and len(seen) < _MOST:
                seen.add(wait.place)
                paths.append([*path, wait])
    return []


def text_of(waits: list[BlockedRank]) -> str:
    """What each rank of the communicator calls, or where there are several, each that waits."""
    on = waits[0].on
    if any(one.on is not on for one in waits):
        each = "; ".join(f"rank {one.world_rank} of MPI_COMM_WORLD in {one.call['what']} on {one.on.title}" for one in waits)
        return f"ranks wait for each other, each in a call to which the next one has yet to come: {each}"
    calls, known = dict[str, list[int]](), PeerState(on, on.team.logs.get(waits[0].call["lane"], on.log))
    for rank in range(on.nranks):
        theirs = [one.call for one in waits if one.rank == rank] + known.notice(rank).get("waits", [])
        what = next((one["what"] for one in theirs if one["key"] == on.key), "") or doing(known, rank, 0)
        calls.setdefault(what, []).append(rank)
    each = "; ".join(f"{ranks_in_words(ranks)}: {what}" for what, ranks in calls.items())
    return f"ranks do not call the same on {on.title}: {each}"


def _next(path: list[BlockedRank]) -> Iterator[BlockedRank]:
    """On what the last wait hangs: waits of ranks that it awaits, in calls that keep these from coming to its own, or in its own.

    In the same call a rank may just have sent what another still waits for. No circle comes of that where ranks make their calls on one
    communicator in one order: then whatever keeps a rank from coming to a call comes before that.
    """
    on, _, call = path[-1]
    known, alone = PeerState(on, on.team.logs.get(call["lane"], on.log)), all(one.on is on for one in path)
    if call["lane"] != IN_LIBRARY:
        known.ask(call["awaits"])
    for rank in call["awaits"]:
        if _absent(on, rank, call):
            yield from _held_from(on, rank, call, known)
        elif alone and (theirs := known.waiting(rank, call["number"])) is not None:
            yield BlockedRank(on, rank, theirs)


def _closes(start: BlockedRank, wait: BlockedRank) -> bool:
    """Whether a wait hangs on the first one: this process has yet to come to its call, and is held up."""
    here, held = wait.on.rank, start.call["holds"] == PROCESS or start.call["key"] == wait.call["key"]
    return held and (_awaits_all(wait.call) or here in wait.call["awaits"]) and _absent(wait.on, here, wait.call)


def _awaits_all(call: Call) -> bool:
    """Whether nobody says for which ranks it waits: on one communicator, its calls come in one order on all of them."""
    return bool(call["lane"] == IN_LIBRARY)


def _absent(on: Resources, rank: int, call: Call) -> bool:
    """Whether a rank has not come to a call, and nothing before it on the same message context holds up that alone."""
    if call["lane"] == IN_LIBRARY:
        library = PeerState(on, on.log).in_library(rank)
        return library is not None and library.begun < call["number"]
    log = on.team.logs.get(call["lane"])
    if log is None:  # it has none of the message contexts that such calls need
        return rank == on.rank
    begun = PeerState(on, log).begun(rank)
    return begun is not None and begun.begun == begun.ended < call["number"]


def _held_from(on: Resources, rank: int, call: Call, known: PeerState) -> Iterator[BlockedRank]:
    """In what a rank waits that has yet to come to a call, so that it cannot."""
    for theirs in known.notice(rank).get("waits", ()):
        if theirs["key"] == call["key"]:
            if theirs["holds"] in (PROCESS, COMMUNICATOR):
                yield BlockedRank(on, rank, theirs)
        elif theirs["holds"] == PROCESS and (world := on.team.world_ranks[rank]) >= 0:
            for where in [one.resources for one in list(live_contexts) if one.resources.key == theirs["key"]]:
                yield BlockedRank(where, where.team.world_ranks.index(world), theirs)
    library = known.in_library(rank)
    if library is not None and library.begun > library.ended:
        yield BlockedRank(on, rank, {"key": on.key, "lane": IN_LIBRARY, "number": library.begun, "what": known.served(rank), "awaits": []})
