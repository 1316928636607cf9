"""Ring slots between ranks: when a message has been used, and which schedules come to a stop because a send finds no free slot."""

from collections.abc import Sequence
from functools import partial

import pytest
from handmade import made

from hpcoll.analysis.prove import modes, prove_schedules
from hpcoll.analysis.ring_slots import used_at
from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.ir import RING_SLOTS, Op, Schedule, Writer, inputs, outputs
from hpcoll.schedules.row import schedule


def slots_needed(schedules: Sequence[Schedule], *, in_place: bool = False, uniform: bool = True) -> int:
    """Fewest slots with which nothing deadlocks; an error that no slot helps against passes through."""
    for slots in range(1, 10):
        try:
            verify_schedules(schedules, in_place=in_place, uniform=uniform, slots=slots)
        except ScheduleError as error:
            if "not used yet" not in str(error):
                raise
        else:
            return slots
    raise AssertionError("not even with 9 slots")


# --- when a message has been used

STEPS = "s send, v receive into a chunk of its own, x and y receive-and-reduce into x and y, c copy, r reduce"


def uses(letters: str) -> list[int]:
    """Of each receive in a channel spelled in the letters above: at which step its message has been used."""
    w = Writer(2, 0, 0, 1)
    x, y, z = w.scratch(0), w.scratch(0), w.scratch(0)
    for letter in letters:
        {
            "s": lambda: w.send(1, inputs(0)),
            "v": lambda: w.recv(1, z),
            "x": lambda: w.recv_reduce(1, inputs(0), x),
            "y": lambda: w.recv_reduce(1, y),
            "c": lambda: w.copy(inputs(0), z),
            "r": lambda: w.reduce(y, z, dst=x),
        }[letter]()
    return [end for letter, end in zip(letters, used_at(w.channels[0])) if letter in "vxy"]


@pytest.mark.parametrize(
    ("letters", "ends"),
    [
        ("", []),
        ("v", [0]),
        ("vsvv", [0, 2, 3]),
        ("vvr", [2, 2]),
        ("svvrr", [3, 3]),
        ("vrvr", [1, 3]),
        ("vsvr", [0, 3]),
        ("vvcr", [0, 1]),
        ("xxyysx", [1, 1, 3, 3, 5]),
        ("xvx", [0, 1, 2]),
        ("xsx", [0, 2]),
        ("xvxr", [0, 1, 2]),
        ("xvvr", [0, 3, 3]),
        ("crcvx", [3, 4]),
    ],
)
def test_when_a_message_has_been_used(letters: str, ends: list[int]) -> None:
    assert uses(letters) == ends, STEPS


# --- schedules that need slots


def swap_in_pieces(w: Writer, *, burst: bool) -> None:
    """Allreduce of two ranks, chunk by chunk, or all sends and then all receives."""
    if burst:
        for i in range(w.nchunks):
            w.send(1 - w.rank, inputs(i))
    for i in range(w.nchunks):
        if not burst:
            w.send(1 - w.rank, inputs(i))
        w.recv_reduce(1 - w.rank, inputs(i), outputs(i))


def test_two_ranks_that_both_send_more_than_there_are_lines() -> None:
    schedules = made("allreduce", partial(swap_in_pieces, burst=True), nchunks=RING_SLOTS + 1)
    with pytest.raises(ScheduleError) as caught:
        verify_schedules(schedules, in_place=False)
    cause = "4 messages to rank 1 not used yet, while rank 1 waits at step 4: send(peer 0, input[4]): let ranks receive between their sends"
    assert str(caught.value) == f"rank 0, step 4 (send(peer 1, input[4])): deadlock: {cause}"
    assert (caught.value.rank, caught.value.step) == (0, 4)
    assert slots_needed(schedules) == 5
    assert slots_needed(made("allreduce", partial(swap_in_pieces, burst=True), nchunks=RING_SLOTS)) == 4
    assert slots_needed(made("allreduce", partial(swap_in_pieces, burst=False), nchunks=9)) == 1


def ring_in_pieces(w: Writer) -> None:
    """Allreduce of three ranks in a ring, chunk by chunk: every piece goes to both neighbours."""
    neighbours = ((w.rank + 1) % 3, (w.rank + 2) % 3)
    for i in range(w.nchunks):
        pieces = {w.rank: inputs(i)}
        for peer in neighbours:
            w.send(peer, inputs(i))
        for peer in reversed(neighbours):
            pieces[peer] = w.scratch(i)
            w.recv(peer, pieces[peer])
        w.reduce(pieces[0], pieces[1], pieces[2], dst=outputs(i))


def receives_last(s: Schedule) -> Schedule:
    """The mutant that sends all it has to send before it receives anything."""
    return s._replace(
        channels=tuple(tuple(sorted(steps, key=lambda step: step.op != Op.SEND)) for steps in s.channels)
    )


def test_a_ring_with_all_receives_moved_behind_all_sends() -> None:
    ring = CATALOGUE["allreduce/direct"]
    right = made("allreduce", ring_in_pieces, nranks=3, nchunks=RING_SLOTS + 1)
    mutated = [receives_last(s) for s in right]
    assert prove_schedules(ring, right).messages == 6 * (RING_SLOTS + 1)
    assert slots_needed(right) == 1
    with pytest.raises(ScheduleError, match=r"rank 0, step 8 .*: deadlock: .* not used yet"):
        prove_schedules(ring, mutated)
    assert slots_needed(mutated) == RING_SLOTS + 1
    assert prove_schedules(
        ring, [receives_last(s) for s in made("allreduce", ring_in_pieces, nranks=3, nchunks=RING_SLOTS)]
    ).ordered
    of_catalogue = CATALOGUE["allreduce/ring"]
    with pytest.raises(ScheduleError):
        prove_schedules(of_catalogue, [receives_last(schedule(of_catalogue, 8, rank)) for rank in range(8)])


@pytest.mark.parametrize("key", [key for key, row in CATALOGUE.items() if row.chunked])
def test_any_number_of_chunks_passes_even_with_one_line(key: str) -> None:
    for nranks in (2, 3, 4, 5, 8, 13):
        for nchunks in range(1, 41):
            schedules = [
                schedule(CATALOGUE[key], nranks, rank, nranks // 2, nchunks) for rank in range(nranks)
            ]
            assert all(
                slots_needed(schedules, in_place=in_place) == 1
                for in_place in modes(CATALOGUE[key].collective)
            )
