"""Who waits for whom: from every rank that waits along what it awaits to ranks that wait for nobody, and circles on the way."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise

from hpcoll.base.units import gaps, runs_in_words, runs_of
from hpcoll.base.units import ranks_in_words as ranges
from hpcoll.cli.inspect.differences import DIFFERS, doing
from hpcoll.cli.inspect.flight_records import BLOCKING, ELSEWHERE, ENDED, Flight, RecordedCall
from hpcoll.cli.inspect.wording import MAX_ROWS, MOST_FINDINGS, FlightFinding, first_rows, names, numbered, spelled, verb

WAITS, CIRCLE, CROSSING, DEAD, LOST = "who waits for whom", "wait for each other", "wait in one call", "left no record", "record missing"

Key = tuple[str, str, int]  # of a call: label of its communicator, lane, number


@dataclass(frozen=True)
class RecordedWait:
    """A call in which a rank waits, or failed while it waited."""

    rank: int
    label: str
    call: RecordedCall

    @property
    def key(self) -> Key:
        """What this call and those of other ranks that belong to it have in common."""
        return self.label, self.call.lane, self.call.seq

    @property
    def text(self) -> str:
        """The call and which it is."""
        return f"{spelled(self.call)}, the {numbered(self.call.lane, self.call.seq, self.label)}"


Waits = dict[int, list[RecordedWait]]  # of ranks that wait


def who_waits(flight: Flight, earlier: Iterable[FlightFinding]) -> Iterator[FlightFinding]:
    """Waiting ranks and whom it all hangs on, circles, and ranks without a record.

    Args:
        flight: The records.
        earlier: What was found before; a circle inside a call that differs is no news.
    """
    waits = waiting(flight)
    explained = {(one.communicator, one.lane, one.seq) for one in earlier if one.kind == DIFFERS}
    if waits:
        yield _chains(flight, waits)
    for circle in _circles(waits):
        if any(wait.key not in explained for wait in circle):
            yield _circle(circle)
    awaited = sorted(_awaiting(waits).items(), key=lambda one: one[1][0])
    dead = (_dead([rank for rank in ranks if rank not in flight.records], waiters, waits) for waiters, ranks in awaited)
    yield from islice(chain.from_iterable(dead), MOST_FINDINGS)
    unneeded = gaps(sorted({*flight.records, *(rank for _, ranks in awaited for rank in ranks)}), flight.nranks)
    if unneeded:
        text, it = f"{runs_in_words(unneeded)} left no record", "it" if sum(map(len, unneeded)) == 1 else "them"
        yield FlightFinding(LOST, f"{text}, and nobody is known to wait for {it}", text, unneeded)


def waiting(flight: Flight) -> Waits:
    """Every rank's waits: those of blocking calls, and where it is in none but is waiting, those of calls in flight."""
    found: Waits = {}
    for rank, record in flight.records.items():
        every = [
            RecordedWait(rank, communicator.label, call)
            for communicator in flight.communicators
            for call in (record.parts[communicator.id].calls if communicator.id in record.parts else ())
            if call.state != ENDED and set(call.awaits) - {rank}
        ]
        blocking = [wait for wait in every if wait.call.lane == BLOCKING]
        if blocking or (every and record.doing):
            found[rank] = blocking or every
    return found


def roots(waits: Waits) -> list[tuple[list[int], set[int]]]:
    """Ranks that others wait for and that wait for nobody, with those that do so directly or through others; alike ones together."""
    backward: dict[int, set[int]] = {rank: set() for rank in waits}
    at_end: dict[tuple[int, ...], list[int]] = {}
    for waiters, ranks in _awaiting(waits).items():
        for rank in ranks:
            if rank in waits:
                backward[rank] = set(waiters)
            else:
                at_end.setdefault(waiters, []).append(rank)
    return [(ranks, _reached(waiters, backward)) for waiters, ranks in sorted(at_end.items(), key=lambda one: one[1][0])]


def _awaiting(waits: Waits) -> dict[tuple[int, ...], list[int]]:
    """Ranks that others wait for, by who does; both ascend."""
    waiters: dict[int, list[int]] = {}
    for rank in sorted(waits):
        for peer in _awaited(waits[rank]):
            waiters.setdefault(peer, []).append(rank)
    found: dict[tuple[int, ...], list[int]] = {}
    for peer in sorted(waiters):
        found.setdefault(tuple(waiters[peer]), []).append(peer)
    return found


def _awaited(found: Iterable[RecordedWait]) -> set[int]:
    return {peer for wait in found for peer in wait.call.awaits if peer not in (wait.rank, ELSEWHERE)}


def _reached(start: Iterable[int], edges: Mapping[int, set[int]]) -> set[int]:
    """Where edges lead to from some ranks, these among them."""
    reached, left = set(start), list(start)
    while left:
        new = edges.get(left.pop(), set()) - reached
        reached |= new
        left += new
    return reached


def _chains(flight: Flight, waits: Waits) -> FlightFinding:
    groups: dict[tuple[str, str, str], list[int]] = {}
    for rank, found in waits.items():
        for wait in found:
            which = numbered(wait.call.lane, wait.call.seq, wait.label)
            row = f"{spelled(wait.call)}, {which}", wait.call.step, names(wait.call.awaits)
            groups.setdefault(row, []).append(rank)
    rows = first_rows([["", "waits in", "step", "for"], *([ranges(ranks), *row] for row, ranks in groups.items())])
    found_roots = roots(waits)
    remarks = []
    for root, waiters in sorted((root, waiters) for ranks, waiters in found_roots for root in ranks if root in flight.records):
        now, why = doing(flight, root), f"; record written for {flight.records[root].why}"
        remarks.append(f"rank {root} waits for nobody known, and {ranges(waiters)} {verb([*waiters], 'waits', 'wait')} for it: {now}{why}")
    if len(remarks) > MAX_ROWS:
        remarks[MAX_ROWS:] = [f"and {len(remarks) - MAX_ROWS} more"]
    ranks = runs_of(rank for ranks, _ in found_roots for rank in ranks)
    behind = {rank for _, waiters in found_roots for rank in waiters}
    others = sorted({ELSEWHERE for found in waits.values() for wait in found if ELSEWHERE in wait.call.awaits})
    who = f"{ranges(waits)} {verb([*waits], 'waits', 'wait')}" + (f" for {names(others)}" if others else "")
    if ranks:
        who = f"{ranges(behind)} {verb([*behind], 'waits', 'wait')} in the end for {runs_in_words(ranks)}"
    begun = min(wait.call.begun for found in waits.values() for wait in found)
    return FlightFinding(WAITS, WAITS, who, ranks, begun, rows=rows, remarks=remarks)


def _circles(waits: Waits) -> Iterator[list[RecordedWait]]:
    """A circle of each set of ranks that all wait for each other; one across several calls where there is such a one."""
    forward = {rank: _awaited(found) & set(waits) for rank, found in waits.items()}
    for ranks in _mutual(forward):
        inside = {rank: forward[rank] & ranks for rank in sorted(ranks)}
        keys = {rank: {wait.key for wait in waits[rank] if ranks & set(wait.call.awaits)} for rank in inside}
        steps = [(rank, peer) for rank, peers in inside.items() for peer in sorted(peers)]
        crossing = [step for step in steps if keys[step[0]] != keys[step[1]]]
        start, peer = min(crossing or steps, key=lambda step: (step[0] not in inside[step[1]], step))
        path = [start, *_path(peer, start, inside)]
        yield [next(wait for wait in waits[a] if b in wait.call.awaits) for a, b in pairwise(path)]


def _mutual(edges: Mapping[int, set[int]]) -> list[set[int]]:
    """Sets of two or more ranks in which each reaches each, the one with the lowest rank first."""
    backward: dict[int, set[int]] = {}
    for rank, peers in edges.items():
        for peer in peers:
            backward.setdefault(peer, set()).add(rank)
    left, found = set(edges), []
    while ends := {rank for rank in left if not edges[rank] & left}:
        left -= ends
    for rank in sorted(left):
        if rank in left:
            ranks = _reached([rank], edges) & _reached([rank], backward)
            left -= ranks
            if len(ranks) > 1:
                found.append(ranks)
    return found


def _path(start: int, end: int, edges: Mapping[int, set[int]]) -> list[int]:
    """A shortest path, both ends included."""
    before, queue = {start: start}, deque([start])
    while end not in before:
        rank = queue.popleft()
        for peer in sorted(edges[rank] - set(before)):
            before[peer] = rank
            queue.append(peer)
    path = [end]
    while path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


def _circle(circle: list[RecordedWait]) -> FlightFinding:
    ranks = tuple(sorted(wait.rank for wait in circle))
    begun, keys = min(wait.call.begun for wait in circle), {wait.key for wait in circle}
    together = (f"ranks {ranks[0]} and {ranks[1]}" if len(ranks) == 2 else ranges(ranks)) + " wait for each other"
    if len(keys) == 1:
        inside = f"{together} in {circle[0].text}: messages were lost, or records written at different times"
        return FlightFinding(CROSSING, f"{together} in one call", inside, runs_of(ranks), begun, *circle[0].key)
    others = [*circle[1:], circle[0]]
    steps = [f"rank {wait.rank} waits in {wait.text}, for rank {other.rank}" for wait, other in zip(circle, others)]
    if len(steps) > MAX_ROWS:
        steps[MAX_ROWS:] = [f"and {len(steps) - MAX_ROWS} more"]
    told = "; ".join(f"rank {wait.rank} in {spelled(wait.call)} on {wait.label}" for wait in circle[:MAX_ROWS])
    sentence = f"{together}: {told}" + ("; ..." if len(circle) > MAX_ROWS else "")
    return FlightFinding(CIRCLE, together, sentence, runs_of(ranks), begun, remarks=steps)


def _dead(ranks: list[int], waiters: Sequence[int], waits: Waits) -> Iterator[FlightFinding]:
    """Ranks without a record for which the same ranks wait, those together that the first of them awaits in one call."""
    left, begun = set(ranks), min(wait.call.begun for waiter in waiters for wait in waits[waiter])
    for wait in waits[waiters[0]]:
        here = left.intersection(wait.call.awaits)
        left -= here
        if here:
            them = "it" if len(here) == 1 else "them"
            text = f"{ranges(here)} left no record: probably dead; {ranges(waiters)} {verb(waiters, 'waits', 'wait')} for {them}"
            yield FlightFinding(DEAD, text, f"{text} in {wait.text}", runs_of(here), begun, *wait.key)
