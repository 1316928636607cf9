"""Reports in words: what each rank of a communicator calls, what it does, and who waits for whom."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hpcoll.analysis.wait_for_graph import shortened
from hpcoll.base.errors import ROW
from hpcoll.base.machine import RUNNING
from hpcoll.base.text import ranks_in_words
from hpcoll.comm.arguments.call import written
from hpcoll.comm.diagnosis.peer_state import PeerState, since_1970
from hpcoll.comm.plans.signature import differing
from hpcoll.comm.status.blocked_call import BlockedCall
from hpcoll.comm.team.resources import Resources
from hpcoll.runtime.program import fields as f

_MOST = 64  # ranks that are followed
_OBSERVED_S = 1.0  # between two observations
_MOST_OBSERVED = 8  # ranks that are observed
_UNHEARD = "it is stopped, or in code that lets no thread of Python run"
_THEN = {"is": "was", "has": "had"}


def activity_text(known: PeerState, rank: int, number: int) -> str:
    """Return what a rank does that is not known to wait in a call."""
    if not known.is_known(rank, anywhere=True):
        always = known.resources.team.channel.answers_always
        why = _UNHEARD if always else "without MPI_THREAD_MULTIPLE it does so only while it waits"
        return f"does not answer: {why}"
    last = _activity(known, rank, number)
    if not known.is_silent(rank):
        return last
    word, _, others = last.partition(" ")
    return f"does not answer since {_clock(since_1970(known.heard_at(rank)))}, when it {_THEN.get(word, word)} {others}: {_UNHEARD}"


def _activity(known: PeerState, rank: int, number: int) -> str:
    """Return what a rank does as far as that is known, or did when it was last heard."""
    state = known.process_state(rank)
    status = known.status(rank)
    if state not in (RUNNING, ""):
        return f"is {state}"
    if status.left:
        return status.left
    call = other_call(known, rank, number)
    if call is not None:
        where = "" if call.key == known.key else f" on {call.on}"
        return f"waits in {call.what}{where} since {_clock(call.since)}"
    latest = known.latest(rank)
    if latest is not None and latest.inside:
        return f"is in {known.resources.numbered(latest.lane, latest.begun) or 'a collective'}"
    if library := known.library_call(rank):
        return f"is in {library}"
    if latest is None or not latest.ended:
        return "has called no collective yet"
    last = known.resources.numbered(latest.lane, latest.ended, after=True)
    return f"is in no collective since {_clock(latest.when)}{last and f', after {last}'}"


def other_call(known: PeerState, rank: int, number: int) -> BlockedCall | None:
    """Return another call in which a rank waits, the latest one, if there is one for which its program waits; None where none is known."""
    status = known.status(rank)
    if status.left or not _runs(known, rank):
        return None
    here = (known.key, known.lane, number)
    calls = [wait for wait in reversed(status.waits) if wait.place != here and not wait.over]
    return max(calls, key=lambda call: call.holds != "", default=None)


def _runs(known: PeerState, rank: int) -> bool:
    """Say whether nothing says that a rank does not run."""
    return known.process_state(rank) in (RUNNING, "") and not known.is_silent(rank)


def wait_chain(known: PeerState, rank: int, number: int) -> list[str]:
    """Return who waits for whom in a call, from a rank down to one that waits neither in it nor in another one, and what that does."""
    return shortened(list(_links(known, rank, number)))


def tabled(sentence: str, rows: Iterable[str]) -> str:
    """Return the text of an error: a sentence, and a table below it."""
    return ROW.join([f"{sentence}:", *rows])


def call_rows(calls: Sequence[str]) -> list[str]:
    """Return the rows of a table of what each rank calls; ranks that call the same share one."""
    alike: dict[str, list[int]] = {}
    for rank, text in enumerate(calls):
        alike.setdefault(text, []).append(rank)
    return [f"{ranks_in_words(ranks)}: {text}" for text, ranks in alike.items()]


def _links(known: PeerState, rank: int, number: int) -> Iterator[str]:
    """Yield what each rank on the way does, and for which others it waits."""
    seen = set[tuple[str, int, int, int]]()
    ranks = known.resources.team.world_ranks
    while (place := (known.key, known.lane, number, rank)) not in seen:
        seen.add(place)
        here = _of(known, ranks)
        how = "waits"
        waits = awaited_ranks(known, rank, number)
        if not waits:
            how = activity_text(known, rank, number)
            call = other_call(known, rank, number)
            there = known.of(call) if call is not None else None
            if call is not None and there is not None:
                known = there
                number = call.number
                waits = call.awaits
        yield f"rank {rank}{here} {how}" + (
            f" for {ranks_in_words(waits)}{_of(known, ranks)}" if waits else ""
        )
        if not waits:
            return
        rank = next((wait for wait in waits if (known.key, known.lane, number, wait) not in seen), waits[0])
        # nobody has asked it about that communicator
        if known.key != place[0] and not known.is_known(rank, anywhere=True):
            return


def _of(known: PeerState, ranks: Sequence[int]) -> str:
    """Return the communicator whose ranks are named, where its ranks are not the same ones of COMM_WORLD."""
    return "" if known.resources.team.world_ranks == ranks else f" of {known.resources.title}"


def awaited_ranks(known: PeerState, rank: int, number: int) -> tuple[int, ...]:
    """Return the ranks for which a rank waits in a call; none where it is not in it, waits for nobody, or that is not known."""
    call = known.blocked_call(rank, number)
    return call.awaits if call is not None and _runs(known, rank) else ()


def ranks_behind(known: PeerState, ranks: Sequence[int], number: int) -> list[int]:
    """Return some ranks, and those for which they wait, and so on, as far as that is known and there are few."""
    behind = list(ranks)
    for rank in behind:
        if len(behind) >= _MOST:
            break
        call = other_call(known, rank, number)
        waits = (
            call.awaits if call is not None and call.key == known.key else awaited_ranks(known, rank, number)
        )
        behind += [wait for wait in waits if wait not in behind][: _MOST - len(behind)]
    return behind


def first_difference(known: PeerState, number: int) -> int:
    """Return the first call, of those that are remembered and before a number, that was not the same everywhere; else the number."""
    for earlier in range(max(1, number - f.REMEMBERED), number):
        past = (known.past_call(rank, earlier) for rank in range(known.resources.nranks))
        calls = [call for call in past if call is not None]
        if any(not call.alike(calls[0]) for call in calls):
            return earlier
    return number


def difference_text(known: PeerState, number: int) -> str:
    """Return what each rank called as the call with a number, and where those are now that have ended it."""
    nranks = known.resources.nranks
    past = [known.past_call(rank, number) for rank in range(nranks)]
    only_how = (
        len({(call.signature._replace(algorithm=0, segment=0), call.ncounted) for call in past if call}) == 1
    )
    told = differing([call.signature.how(call.counted) if call and only_how else None for call in past])
    rows = call_rows([", ".join([_as_made(known, rank, number), *told[rank]]) for rank in range(nranks)])
    which = known.resources.numbered(known.lane, number)
    return tabled(f"ranks do not call the same{which and f', in {which}'} on {known.resources.title}", rows)


def _as_made(known: PeerState, rank: int, number: int) -> str:
    """Return the call of a rank with a number, as the program wrote it; of a rank that has ended it, in which one it waits now."""
    call = known.past_call(rank, number)
    waits = known.blocked_call(rank, number)
    if waits is not None and waits.what:
        return waits.what
    if call is None:
        return activity_text(known, rank, number)
    status = known.status(rank)
    text = written(call.signature.text(call.ncounted), known.resources.form(known.lane))
    later = [wait.what for wait in (*status.waits, *status.failed) if wait.key == known.key and wait.what]
    return f"{text}, has ended it and is in {later[-1]}" if later and known.has_ended(rank, number) else text


def _clock(seconds: float) -> str:
    """Time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


class Observations:
    """The observations of a call that waits, for the status page: for which ranks it waits, and what these do.

    Args:
        resources: Resources of its communicator.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._next = 0.0
        self._seen = dict[int, tuple[float, str]]()

    def of(self, awaits: Sequence[int], doing: Callable[[int], str]) -> dict[str, Any]:
        """Return the observations.

        Args:
            awaits: Ranks of the communicator for which the call waits now.
            doing: Returns what a rank does, in words; empty where that is not known.
        """
        world = self._resources.team.world_ranks
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _OBSERVED_S
            seen = ((rank, doing(rank)) for rank in awaits[:_MOST_OBSERVED] if not self._shows_itself(rank))
            self._seen = {world[rank]: (self._since(rank), text) for rank, text in seen if text}
        return {"for": [world[rank] for rank in awaits], "sees": self._seen}

    def _shows_itself(self, rank: int) -> bool:
        """Say whether a rank's own page, or the state of its process, shows what it does."""
        known = PeerState(self._resources, self._resources.message_contexts[0].log)
        status = known.status(rank)
        return bool(status.waits or status.left) or known.process_state(rank) not in (RUNNING, "")

    def _since(self, rank: int) -> float:
        """Return when a rank last ended a call on the communicator, in seconds since 1970; now, where it is in a blocking one."""
        blocking, *others = (
            PeerState(self._resources, message_context.log).progress(rank)
            for message_context in self._resources.every_message_context()
        )
        if blocking is not None and blocking.begun > blocking.ended:
            return time.time()
        return max((other.when for other in (blocking, *others) if other is not None), default=0.0)
