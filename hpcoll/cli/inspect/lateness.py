"""Where all ended well: the call that ranks began at the most different times, and how late each rank usually was."""

from collections.abc import Iterator
from statistics import median

from hpcoll.base.units import ranks_in_words as ranges
from hpcoll.base.units import runs_of
from hpcoll.cli.inspect.flight_records import Flight, RecordedCall, RecordedCommunicator
from hpcoll.cli.inspect.wording import MAX_ROWS, FlightFinding, duration, numbered, spelled

SLOW = "lateness"


def lateness(flight: Flight) -> Iterator[FlightFinding]:
    """The largest spread of begin times, with the median lateness per rank; nothing where no call has two ranks.

    A rank is late in a call by the time from the first begin to its own, as the clocks of hosts show it.
    """
    shared = list(_shared(flight))
    if not shared:
        return
    late: dict[int, list[float]] = {}
    for _, calls in shared:
        first = min(call.begun for call in calls.values())
        for rank, call in calls.items():
            late.setdefault(rank, []).append(call.begun - first)
    communicator, calls = max(shared, key=lambda pair: _spread(pair[1]))
    last = max(calls, key=lambda rank: (calls[rank].begun, -rank))
    call, spread = calls[last], duration(_spread(calls))
    which = numbered(call.lane, call.seq, communicator.label)
    order = sorted(late, key=lambda rank: (-median(late[rank]), rank))
    rows = [["", "calls", "median lateness", "largest"]]
    rows += [[ranges([rank]), str(len(late[rank])), duration(median(late[rank])), duration(max(late[rank]))] for rank in order[:MAX_ROWS]]
    if len(order) > MAX_ROWS:
        rows.append([f"and {len(order) - MAX_ROWS} less late", "", "", ""])
    told = f"{spelled(call)}, the {which}, which rank {last} began last, {spread} after the first"
    heading, sentence = f"largest spread of begin times: {told}", f"the largest spread of begin times is in {told}"
    yield FlightFinding(SLOW, heading, sentence, runs_of([last]), call.begun, communicator.label, call.lane, call.seq, rows)


def _shared(flight: Flight) -> Iterator[tuple[RecordedCommunicator, dict[int, RecordedCall]]]:
    """Calls that every member with a record still has, if these are at least two."""
    for communicator in flight.communicators:
        members = {rank for rank in communicator.ranks if rank in flight.records}
        for by_number in communicator.calls.values():
            yield from ((communicator, calls) for calls in by_number.values() if len(calls) > 1 and set(calls) == members)


def _spread(calls: dict[int, RecordedCall]) -> float:
    begun = [call.begun for call in calls.values()]
    return max(begun) - min(begun)
