"""Puts: schedules whose puts could wait, or that only one side knows of, are refused."""

from collections.abc import Callable

import pytest

from hpcoll.analysis.verify import verify_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.ir import Op, Schedule, Step, outputs
from hpcoll.schedules.row import schedule

Steps = list[Step]


def two_shot(change: Callable[[int, Steps], Steps]) -> list[Schedule]:
    """Of three ranks, with each rank's steps changed."""
    found = [schedule(CATALOGUE["allreduce/two_shot"], 3, rank) for rank in range(3)]
    return [one._replace(channels=(tuple(change(one.rank, list(one.channels[0]))),)) for one in found]


def one_end(op: Op) -> Callable[[int, Steps], Steps]:
    return lambda rank, steps: [step._replace(put=step.put and (rank, step.op) != (1, op)) for step in steps]


def before_its_message(rank: int, steps: Steps) -> Steps:
    """Rank 1 tells the others of its memory before it sends to them, which they await first."""
    messages = [step for step in steps if step.op == Op.SEND and not step.put]
    receives = [step for step in steps if step.op == Op.RECV]
    return [*receives, *messages, *(step for step in steps if step not in messages + receives)] if rank == 1 else steps


def into_what_was_used(rank: int, steps: Steps) -> Steps:
    """The chunk of rank 0 is used on rank 1 before rank 0 puts its result there."""
    return [Step(Op.COPY, -1, outputs(0), (outputs(0)._replace(buffer=0),)), *steps] if rank == 1 else steps


def many(rank: int, steps: Steps) -> Steps:
    """More things between ranks 0 and 1 than a ring has room for."""
    again = [step for step in steps if step.peer == 1 - rank and not step.put]
    return [*again * 3, *steps] if rank < 2 else steps


def test_those_of_the_catalogue_hold() -> None:
    for in_place in (False, True):
        assert verify_schedules(two_shot(lambda rank, steps: steps), in_place=in_place).rounds == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (one_end(Op.SEND), r"of messages to rank \d in channel 0 one end puts"),
        (one_end(Op.RECV), r"of messages to rank 1 in channel 0 one end puts"),
        (before_its_message, r"tells rank \d in channel 0 of \['memory for a put', 'a message'\], which uses \['a message', 'memory"),
        (into_what_was_used, "a put into what was used before"),
        (many, r"tells rank \d of 5 things in channel 0, and a ring has 4 slots"),
    ],
    ids=["only the receiver", "only the sender", "order", "used before", "too many"],
)
def test_it_refuses(change: Callable[[int, Steps], Steps], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        verify_schedules(two_shot(change), in_place=False)
