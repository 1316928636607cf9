"""Proofs by the verifier: results, order of operands, reproducibility, rounds, of the whole catalogue; and puts."""

from collections.abc import Callable
from functools import partial

import pytest
from handmade import associating, exchange, made, refusal

from hpcoll.analysis.prove import Summary, prove, prove_catalogue, prove_schedules
from hpcoll.analysis.verify import Proof, verify_schedules
from hpcoll.base.errors import ScheduleError
from hpcoll.schedules.catalogue import CATALOGUE
from hpcoll.schedules.ir import Buffer, Chunk, Op, Schedule, Step, Writer, inputs, outputs
from hpcoll.schedules.row import schedule


def test_contribution_missing_in_the_output() -> None:
    error = refusal("allreduce", lambda w: w.copy(inputs(0), outputs(0)))
    assert "output[0] must hold item 0 of ranks [0, 1], holds item 0 of ranks [0]" in str(error)


def test_output_that_is_not_asked_for_may_hold_anything() -> None:
    """MPI leaves rank 0's exscan result undefined."""

    def build(w: Writer) -> None:
        if w.rank == 0:
            w.send(1, inputs(0))
        else:
            w.recv(0, outputs(0))

    assert verify_schedules(made("exscan", build), in_place=False).ordered


# --- what is proven besides


@pytest.mark.parametrize(("received_first", "ordered"), [(True, True), (False, False)])
def test_order_of_operands(received_first: bool, ordered: bool) -> None:
    def build(w: Writer) -> None:
        w.send(1 - w.rank, inputs(0))
        w.recv_reduce(1 - w.rank, inputs(0), outputs(0), received_first=received_first and w.rank == 1)

    proof = verify_schedules(made("allreduce", build), in_place=False)
    assert (proof.ordered, proof.reproducible) == (ordered, True)


@pytest.mark.parametrize("alike", [True, False])
def test_reproducible_means_the_same_expression_everywhere(alike: bool) -> None:
    proof = verify_schedules(made("allreduce", partial(associating, alike=alike), nranks=3), in_place=False)
    assert proof == Proof(
        messages=6, rounds=proof.rounds, ordered=True, reproducible=alike, chunks_sent=2, canonical=alike
    )


def test_rounds_count_dependent_messages_only() -> None:
    def chain(w: Writer) -> None:
        if w.rank:
            w.recv(w.rank - 1, outputs(0))
        if w.rank < 3:
            w.send(w.rank + 1, outputs(0))

    def star(w: Writer) -> None:
        for peer in (1, 2, 3):
            if w.rank == 0:
                w.send(peer, outputs(0))
            elif w.rank == peer:
                w.recv(0, outputs(0))

    assert verify_schedules(made("bcast", chain, nranks=4), in_place=True) == Proof(3, 3, True, True, 1, True)
    assert verify_schedules(made("bcast", star, nranks=4), in_place=True) == Proof(3, 1, True, True, 3, True)


# --- sweep


@pytest.mark.parametrize("claim", ["ordered", "reproducible"])
def test_claims_that_do_not_hold_are_refused(claim: str) -> None:
    row = CATALOGUE["allreduce/ring"]._replace(ordered=claim == "ordered")
    if claim == "ordered":
        with pytest.raises(ScheduleError, match="allreduce/ring is said to be ordered, and is not on"):
            prove(row, 3)
    else:
        with pytest.raises(ScheduleError, match="allreduce/ring is said to be reproducible, and is not on"):
            prove_schedules(row, made("allreduce", partial(associating, alike=False), nranks=3))
    assert prove(CATALOGUE["allreduce/ring"], 3).rounds == 4


def test_prove_covers_in_place_calls() -> None:
    with pytest.raises(ScheduleError, match="deadlock"):
        prove_schedules(CATALOGUE["allreduce/ring"], made("allreduce", exchange))


@pytest.mark.parametrize(("sent", "late"), [(outputs(0), False), (inputs(0), True)])
def test_what_only_one_kind_of_call_does_is_not_proven_by_the_other(sent: Chunk, late: bool) -> None:
    """A partner reads OUTPUT before it is written: right in place only; or INPUT after OUTPUT is written: right out of place only."""

    def build(w: Writer) -> None:
        if w.rank == 0 or not late:
            w.send(1 - w.rank, sent)
        w.recv(1 - w.rank, w.scratch(0))
        w.reduce(inputs(0), Chunk(Buffer.SCRATCH, 0), dst=outputs(0))
        if w.rank == 1 and late:
            w.send(0, sent)

    schedules = made("allreduce", build)
    assert verify_schedules(schedules, in_place=not late).messages == 2
    with pytest.raises(ScheduleError):
        verify_schedules(schedules, in_place=late)
    with pytest.raises(ScheduleError):
        prove_schedules(CATALOGUE["allreduce/ring"], schedules)


def test_roots_share_a_proof_only_where_ranks_are_renamed() -> None:
    """A fault of one root, in chunks or peers, is found, and an order that only some roots keep is not said of all."""

    def faulty(w: Writer, wrong: Step) -> None:
        CATALOGUE["bcast/chain"].build(w)
        if w.root == 2 and w.rank == 3:
            w.channels[0][0] = wrong

    for wrong in (
        Step(Op.RECV, 1, outputs(0), ()),
        Step(Op.RECV, 2, outputs(1), ()),
        Step(Op.COPY, -1, outputs(0), (outputs(0),)),
    ):
        row = CATALOGUE["bcast/chain"]._replace(builder=partial(faulty, wrong=wrong))
        with pytest.raises(ScheduleError, match="rank"):
            prove_catalogue(5, 1, (), rows=[row])
    chain = CATALOGUE["reduce/chain"]
    assert [prove(chain, 4, root).ordered for root in range(4)] == [True, False, False, True]
    found = prove_catalogue(4, 1, (), rows=[chain])[0]
    assert (found.instances, found.messages, found.ordered) == (10, 20, False)


def test_prove_covers_blocks_of_different_sizes() -> None:
    row = CATALOGUE["alltoall/bruck"]
    assert prove(row, 4).messages == 8
    with pytest.raises(ScheduleError, match="size"):
        prove(row._replace(uniform=False), 4)


def test_sweep_over_processes_proves_the_same() -> None:
    rows = [CATALOGUE["allreduce/ring"], CATALOGUE["scatter/binomial"]]

    def proven(jobs: int) -> list[Summary]:
        return [
            summary._replace(seconds=0.0) for summary in prove_catalogue(6, jobs=jobs, extra=(), rows=rows)
        ]

    assert proven(2) == proven(1)
    assert [summary.ordered for summary in proven(1)] == [False, True]


def test_sweep_passes_a_refusal_on() -> None:
    with pytest.raises(ScheduleError, match="is said to be ordered") as caught:
        prove_catalogue(3, jobs=2, extra=(), rows=[CATALOGUE["allreduce/ring"]._replace(ordered=True)])
    assert caught.value.rank == -1


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
    return (
        [*receives, *messages, *(step for step in steps if step not in messages + receives)]
        if rank == 1
        else steps
    )


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
        (
            before_its_message,
            r"tells rank \d in channel 0 of \['memory for a put', 'a message'\], which uses \['a message', 'memory",
        ),
        (into_what_was_used, "a put into what was used before"),
        (many, r"tells rank \d of 5 things in channel 0, and a ring has 4 slots"),
    ],
    ids=["only the receiver", "only the sender", "order", "used before", "too many"],
)
def test_it_refuses(change: Callable[[int, Steps], Steps], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        verify_schedules(two_shot(change), in_place=False)
