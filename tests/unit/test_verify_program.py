"""Programs of several channels that depend on one another: what is refused, and why."""

import pytest

from hpcoll.analysis.programs.proof import verify_program
from hpcoll.analysis.prove import prove_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.ir import Op, Schedule, Step, inputs, outputs


def bcast(*channels: tuple[Step, ...], links: tuple[int, ...] = (0, 1)) -> list[Schedule]:
    """A broadcast of two chunks from rank 1 to rank 0, whose channels are given."""
    root = tuple((Step(Op.SEND, 0, None, (outputs(link),)),) for link in links)
    return [
        Schedule("bcast", "test", 2, 0, 1, 2, channels, (0,), None, links),
        Schedule("bcast", "test", 2, 1, 1, 2, root, (), None, links),
    ]


def after(channel: int, steps: int) -> Step:
    return Step(Op.AFTER, -1, None, (), after=(channel, steps))


def recv(index: int) -> Step:
    return Step(Op.RECV, 1, outputs(index), ())


REFUSED = {
    "waits for 2 steps of channel 0, which has 1": bcast((recv(0),), (after(0, 2), recv(1))),
    "deadlock": bcast((after(1, 2), recv(0)), (after(0, 2), recv(1))),
    "output.1. must hold": [
        *bcast((recv(0), Step(Op.COPY, -1, outputs(1), (outputs(0),))), (), links=(0, 0))[:1],
        Schedule(
            "bcast", "test", 2, 1, 1, 2, ((Step(Op.SEND, 0, None, (outputs(0),)),), ()), (), None, (0, 0)
        ),
    ],
    "race": bcast((recv(0),), (recv(1), Step(Op.COPY, -1, outputs(1), (outputs(0),)))),
    "writes input.0.: input is read-only": [
        Schedule("allreduce", "test", 1, 0, 0, 2, ((Step(Op.COPY, -1, inputs(0), (inputs(1),)),),), ())
    ],
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text: str) -> None:
    """Each fault is refused, and the error names the step's place."""
    with pytest.raises(ScheduleError, match=rf"rank 0.*{text}"):
        verify_program(REFUSED[text], in_place=text != next(reversed(REFUSED)))


def test_a_put_needs_free_memory() -> None:
    """Data that a sender writes into this rank's memory must not meet an access that the sender cannot know of."""
    token = Step(Op.SEND, 1, None, (outputs(0, 0),))
    uses = Step(Op.COPY, -1, outputs(1), (inputs(0),)), Step(Op.COPY, -1, outputs(0), (outputs(1),))
    ends = Step(Op.RECV, 1, outputs(1), (), put=True), Step(Op.SEND, 1, None, (inputs(0),))
    puts = Step(Op.RECV, 0, outputs(0, 0), ()), Step(Op.SEND, 0, None, (inputs(0),), put=True)
    peer = (*puts, Step(Op.COPY, -1, outputs(1), (inputs(0),)), Step(Op.RECV, 0, outputs(0), ()))

    def program(*mine: Step) -> list[Schedule]:
        return [
            Schedule("allgather", "test", 2, rank, 0, 2, (steps,), (), None, (0,))
            for rank, steps in enumerate((mine, peer))
        ]

    assert verify_program(program(*uses, token, *ends), in_place=False).messages == 2
    with pytest.raises(ScheduleError, match="race"):
        verify_program(program(token, *uses, *ends), in_place=False)


def test_a_copy_that_is_none_in_place_is_a_write_out_of_place() -> None:
    """What a proof in place says of calls out of place does not hide that another channel reads what a copy writes."""
    ranks = [
        (
            (Step(Op.COPY, -1, outputs(rank), (inputs(0),)),),
            (Step(Op.SEND, 1 - rank, None, (outputs(rank),)), Step(Op.RECV, 1 - rank, outputs(1 - rank), ())),
        )
        for rank in range(2)
    ]
    schedules = [Schedule("allgather", "test", 2, rank, 0, 2, steps) for rank, steps in enumerate(ranks)]
    with pytest.raises(ScheduleError, match=r"output.0. is used by channels"):
        prove_schedules(CATALOGUE["allgather/ring"], schedules)
